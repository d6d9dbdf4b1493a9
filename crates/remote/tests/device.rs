//! A device against the server. Data read equals data written, with every form of headers, and the allocation of an
//! export is as its server reports it.
//!
//! Connections are refused, lost, and ended in order. After a loss, unanswered requests are sent again, and nothing is
//! lost or done out of order. Of poisonous requests, which their server does not survive, only they fail, and other
//! requests do not wait for them.

use crate::{End, Fake, Plan, Poison, SIZE};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, Extent, IoError, Rng};
use blkmq_engine::{BlockDevice, Config, Io};
use blkmq_nbd::{Command, ErrorCode, HeaderStyle, TransmissionFlags};
use blkmq_remote::NbdDevice;
use blkmq_runtime::{Client, Service};
use std::collections::BTreeMap;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: u64 = (SIZE / BLOCK) as u64;

fn open(fake: &Fake, options: &str) -> NbdDevice {
    NbdDevice::parse(&fake.uri(options)).expect("the server is there")
}

fn start(device: &NbdDevice) -> Service<AlignedBuf> {
    Service::start(device.config().expect("connections")).expect("a service")
}

/// The bytes of block `n` in round `round`.
fn pattern(n: u64, round: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK);
    let mut rng = Rng::new(n << 32 | round);
    buf.as_mut_slice()
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    buf
}

/// Writes every block in random order, and reads all of them back, in plugs.
fn round_trip(client: &mut Client<AlignedBuf>, round: u64) {
    let mut order = Vec::from_iter(0..BLOCKS);
    let mut rng = Rng::new(round);
    (1..order.len()).rev().for_each(|n| order.swap(n, rng.below(n as u64 + 1) as usize));
    for is_write in [true, false] {
        for batch in order.chunks(24) {
            for n in batch {
                let at = Bytes(n * BLOCK as u64);
                let io = if is_write {
                    Io::write(at, pattern(*n, round))
                } else {
                    Io::read(at, AlignedBuf::new(BLOCK))
                };
                client.push(io.cookie(*n)).expect("there is credit");
            }
            let all = batch.len() as u32;
            let done = client.wait(all, all, |mut io| {
                assert_eq!(io.result, Ok(()), "block {}", io.cookie);
                let expected = pattern(io.cookie, round);
                let mut expected = expected;
                assert!(
                    io.payload.as_mut_slice() == expected.as_mut_slice(),
                    "block {}",
                    io.cookie
                );
            });
            assert_eq!(done, all);
        }
    }
}

#[test]
fn blocks_come_back_in_every_form_of_headers() {
    for most in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        for reversed in [1, 2] {
            // The fake answers in reverse order only complete batches, which needs an even number of requests in
            // flight: so `holes` reads one block at a time.
            let plan = Plan { most, ..Plan::default() };
            let fake = Fake::start(vec![Plan { reversed, ..plan }]);
            let service = start(&open(&fake, ""));
            let mut client = service.client().expect("a client");
            if reversed == 1 {
                round_trip(&mut client, 1);
            } else {
                pairs(&mut client);
            }
        }
    }
}

/// Issues two requests at a time that do not merge.
fn pairs(client: &mut Client<AlignedBuf>) {
    for is_write in [true, false] {
        for n in [0, 2, 4, 6] {
            for n in [n, n + 100] {
                let at = Bytes(n * BLOCK as u64);
                let io = if is_write {
                    Io::write(at, pattern(n, 7))
                } else {
                    Io::read(at, AlignedBuf::new(BLOCK))
                };
                client.push(io.cookie(n)).expect("there is credit");
            }
            let done = client.wait(2, 2, |mut io| {
                assert_eq!(io.result, Ok(()));
                assert!(io.payload.as_mut_slice() == pattern(io.cookie, 7).as_mut_slice());
            });
            assert_eq!(done, 2);
        }
    }
}

#[test]
fn holes_are_zeroes_in_a_buffer_that_had_other_bytes() {
    let plan = Plan { holes: true, ..Plan::default() };
    let fake = Fake::start(vec![plan]);
    let service = start(&open(&fake, ""));
    let mut disk = service.blocking().expect("a client");
    let (result, mut bytes) = disk.call(Io::read(Bytes(8192), pattern(1, 1))).expect("taken");
    assert_eq!(result, Ok(()));
    assert_eq!(bytes.as_mut_slice(), [0; BLOCK]);
}

#[test]
fn discards_zeroes_and_flushes_reach_the_server() {
    let fake = Fake::start(vec![Plan::default()]);
    fake.data.lock().expect("free").fill(7);
    let service = start(&open(&fake, ""));
    let mut disk = service.blocking().expect("a client");
    for io in [
        Io::discard(Bytes(0)..Bytes(8192)),
        Io::write_zeroes(Bytes(16384)..Bytes(20480)),
        Io::flush(),
        Io::write(Bytes(65536), pattern(3, 3)).fua(),
    ] {
        assert_eq!(disk.call(io).expect("taken").0, Ok(()));
    }
    let data = fake.data.lock().expect("free");
    let is = |range: std::ops::Range<usize>, byte| data[range].iter().all(|it| *it == byte);
    assert!(is(0..8192, 0) && is(8192..16384, 7) && is(16384..20480, 0) && is(20480..65536, 7));
    assert!(data[65536..65536 + BLOCK] == *pattern(3, 3).as_mut_slice());
}

/// The reply to a write may arrive before the client has sent the last byte of its payload. The payload must stay until
/// then, and the connection must remain usable.
#[test]
fn a_write_that_fails_before_its_payload_is_sent_ends_once() {
    let plan = Plan { writes_fail: Some(ErrorCode::NoSpace), ..Plan::default() };
    let fake = Fake::start(vec![plan]);
    let service = start(&open(&fake, ""));
    let mut disk = service.blocking().expect("a client");
    for _ in 0..20 {
        // A megabyte is more than one system call sends, and less than the socket holds.
        let (result, _) = disk.call(Io::write(Bytes(0), AlignedBuf::new(1 << 20))).expect("taken");
        assert_eq!(result, Err(IoError::NO_SPACE));
        let (result, _) = disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken");
        assert_eq!(result, Ok(()));
    }
}

const STORED: Extent = Extent { end: SIZE as u64, is_hole: false };

/// A plan for a server that reports holes, and has the same contents on all connections.
fn telling() -> Plan {
    let flags = Plan::default().flags.with(TransmissionFlags::CAN_MULTI_CONN);
    Plan { flags, tells_holes: true, ..Plan::default() }
}

fn stretches(all: &[Extent]) -> Vec<(u64, bool)> {
    all.iter().map(|extent| (extent.end, extent.is_hole)).collect()
}

#[test]
fn holes_are_those_of_the_server_at_this_moment() {
    for most in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let fake = Fake::start(vec![Plan { most, ..telling() }; 2]);
        let device = open(&fake, "");
        let service = start(&device);
        let all = || device.extents(0..SIZE as u64, 9);
        assert_eq!(stretches(&all()), [(SIZE as u64, true)]);
        let mut disk = service.blocking().expect("a client");
        let mut bytes = AlignedBuf::new(BLOCK);
        bytes.as_mut_slice().fill(7);
        assert_eq!(disk.call(Io::write(Bytes(65536), bytes)).expect("taken").0, Ok(()));
        let expected = [(65536, true), (65536 + BLOCK as u64, false), (SIZE as u64, true)];
        assert_eq!(stretches(&all()), expected);
        // At most one extent; and a range that begins and ends within extents.
        assert_eq!(stretches(&device.extents(0..SIZE as u64, 1)), expected[..1]);
        assert_eq!(stretches(&device.extents(0..SIZE as u64, 2)), expected[..2]);
        let inside = device.extents(4096..65536 + 512, 9);
        assert_eq!(stretches(&inside), [(65536, true), (65536 + 512, false)]);
    }
}

/// If the answer could be wrong, or there is none, everything counts as stored, and no connection is made for it.
#[test]
fn all_is_stored_if_the_server_does_not_tell_or_has_a_cache_for_each_connection() {
    let alone = Plan { flags: Plan::default().flags, ..telling() };
    let simple = Plan { most: HeaderStyle::Simple, ..telling() };
    for plan in [alone, simple, Plan { tells_holes: false, ..telling() }] {
        let fake = Fake::start(vec![plan]);
        assert_eq!(open(&fake, "").extents(0..SIZE as u64, 9), [STORED]);
    }
}

/// A connection that the server has closed is re-established. If that fails, it is not retried until a hardware queue
/// has reconnected.
#[test]
fn a_server_that_is_gone_is_asked_again_when_it_is_back() {
    let lossy = Plan { answers: 1, ..telling() };
    let refused = Plan { is_refused: true, ..telling() };
    let plans = [
        // For the hardware queue.
        lossy.clone(),
        // For the query of holes.
        lossy.clone(),
        lossy,
        refused,
        // For the hardware queue again, and for the query again.
        telling(),
        telling(),
    ];
    let fake = Fake::start(plans.into());
    let device = open(&fake, "");
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    let mut read = || disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0;
    let hole = [Extent { is_hole: true, ..STORED }];
    let all = || device.extents(0..SIZE as u64, 9);
    assert_eq!(read(), Ok(()));
    assert_eq!((all(), all()), (hole.into(), hole.into()), "over one connection and the next");
    assert_eq!((all(), all()), (vec![STORED], vec![STORED]), "a try, and none");
    assert_eq!(device.outages().restored, 0);
    assert_eq!(read(), Ok(()));
    assert_eq!(device.outages().restored, 1);
    assert_eq!(all(), hole);
}

/// Every connection ends amid requests, one of which was carried out without an answer.
#[test]
fn requests_without_an_answer_are_sent_again() {
    for ends_with_garbage in [false, true] {
        let lossy = |n: usize| Plan { answers: 1 + n % 5, ends_with_garbage, ..Plan::default() };
        let mut plans = Vec::from_iter((0..40).map(lossy));
        plans.push(Plan::default());
        let fake = Fake::start(plans);
        let device = open(&fake, "");
        let service = start(&device);
        let mut client = service.client().expect("a client");
        for round in 0..3 {
            round_trip(&mut client, round);
        }
        let outages = device.outages();
        assert_eq!((outages.lost, outages.restored), (40, 40), "{outages:?}");
        let why = outages.last.expect("a reason");
        assert!(!ends_with_garbage || why.contains("breaks the protocol"), "{why}");
    }
}

/// A server that accepts connections and answers nothing is retried less and less often, and requests fail in time.
#[test]
fn a_server_that_only_accepts_is_no_connection() {
    let mute = Plan { answers: 0, ..Plan::default() };
    let fake = Fake::start(vec![mute; 1000]);
    let device = open(&fake, ",reconnect_delay=1");
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    let (result, _) = disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken");
    assert_eq!(result, Err(IoError::IO));
    // Immediately, and after 0.1, 0.2 and 0.4 s.
    let lost = device.outages().lost;
    assert!((2..=6).contains(&lost), "{lost} connections");
}

#[test]
fn requests_fail_when_their_time_without_a_connection_is_over() {
    let fake = Fake::start(vec![Plan { answers: 0, ..Plan::default() }]);
    let device = open(&fake, ",reconnect_delay=0");
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    for _ in 0..3 {
        let (result, _) = disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken");
        assert_eq!(result, Err(IoError::IO));
    }
    assert_eq!(device.outages().lost, 1);
}

/// An export that has become smaller or read-only is a different one: requests would fail with misleading errors.
#[test]
fn a_server_that_comes_back_with_less_is_not_used() {
    let read_only = Plan::default().flags.with(TransmissionFlags::READ_ONLY);
    for (plan, why) in [
        (Plan { size: 4096, ..Plan::default() }, "is smaller than before"),
        (Plan { flags: read_only, ..Plan::default() }, "can do less than before"),
        (Plan { flags: TransmissionFlags::NONE, ..Plan::default() }, "can do less than before"),
    ] {
        let lossy = Plan { answers: 0, ..Plan::default() };
        let fake = Fake::start(vec![lossy, plan, Plan::default()]);
        let device = open(&fake, "");
        let service = start(&device);
        let mut disk = service.blocking().expect("a client");
        let (result, _) = disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken");
        assert_eq!(result, Ok(()));
        let outages = device.outages();
        let last = outages.last.expect("a reason");
        assert!(last.contains(why), "{last}");
        assert_eq!((outages.lost, outages.restored), (1, 1));
    }
}

/// Regression test: a server restarted with less capable headers, as after a downgrade, was not used, and all I/Os
/// failed after `reconnect_delay`. No request depends on the previous form of headers: those in flight are sent again
/// in the new form.
#[test]
fn a_server_that_comes_back_with_other_headers_is_used() {
    let styles = [HeaderStyle::Extended, HeaderStyle::Simple, HeaderStyle::Structured];
    let lossy = |n: usize| Plan { most: styles[n % 3], answers: 3 + n % 4, ..Plan::default() };
    let mut plans = Vec::from_iter((0..30).map(lossy));
    plans.push(Plan { most: HeaderStyle::Simple, ..Plan::default() });
    let fake = Fake::start(plans);
    let device = open(&fake, "");
    let service = start(&device);
    let mut client = service.client().expect("a client");
    for round in 0..3 {
        round_trip(&mut client, round);
    }
    assert_eq!(device.outages().restored, 30);
}

/// Replies arrive in reverse order, and the connection is lost between two of them.
#[test]
fn replies_in_reverse_order_before_a_loss_are_not_asked_for_again() {
    let lossy = |n: usize| Plan { reversed: 4, answers: 4 * (1 + n % 3), ..Plan::default() };
    let mut plans = Vec::from_iter((0..10).map(lossy));
    plans.push(Plan::default());
    let fake = Fake::start(plans);
    let device = open(&fake, "");
    let service = start(&device);
    let mut client = service.client().expect("a client");
    for round in 0..3 {
        round_trip(&mut client, round);
    }
    assert_eq!(device.outages().given_up, 0);
}

/// A server at its limit of clients closes connections before its greeting, for a while.
#[test]
fn a_server_that_has_no_place_for_a_while_is_asked_again() {
    let refused = Plan { is_refused: true, ..Plan::default() };
    let lossy = Plan { answers: 5, ..Plan::default() };
    let fake = Fake::start(vec![lossy, refused.clone(), refused, Plan::default()]);
    let device = open(&fake, "");
    let service = start(&device);
    let mut client = service.client().expect("a client");
    round_trip(&mut client, 0);
    let outages = device.outages();
    assert_eq!((outages.restored, outages.given_up), (1, 0), "{outages:?}");
}

/// The export is unknown for a while, as with a server that reads its configuration late.
#[test]
fn a_server_that_does_not_know_its_export_yet_is_asked_again() {
    let unknown = Plan { is_unknown: true, ..Plan::default() };
    let lossy = Plan { answers: 5, ..Plan::default() };
    let fake = Fake::start(vec![lossy, unknown.clone(), unknown, Plan::default()]);
    let device = open(&fake, "");
    let service = start(&device);
    let mut client = service.client().expect("a client");
    round_trip(&mut client, 0);
    let outages = device.outages();
    assert_eq!((outages.restored, outages.given_up), (1, 0), "{outages:?}");
}

/// An export that has grown is still usable: it keeps its size for clients.
#[test]
fn a_server_that_comes_back_with_more_is_used() {
    let lossy = Plan { answers: 5, ..Plan::default() };
    let larger = Plan { size: 2 * SIZE as u64, ..Plan::default() };
    let fake = Fake::start(vec![lossy, larger]);
    let device = open(&fake, "");
    let service = start(&device);
    let mut client = service.client().expect("a client");
    for round in 0..2 {
        round_trip(&mut client, round);
    }
    let outages = device.outages();
    assert_eq!((outages.lost, outages.restored), (1, 1), "{outages:?}");
}

/// The plan of a server that treats every request of this kind so, on each of its connections.
fn poisoned(command: Command, n: u64, poison: Poison) -> Plan {
    Plan { poison: Some((command, place(n).0, poison)), ..Plan::default() }
}

/// Uses every other block, so that requests do not merge.
fn place(n: u64) -> Bytes {
    Bytes(2 * n * BLOCK as u64)
}

fn read(n: u64) -> Io<AlignedBuf> {
    Io::read(place(n), AlignedBuf::new(BLOCK)).cookie(n)
}

fn write(n: u64) -> Io<AlignedBuf> {
    Io::write(place(n), AlignedBuf::new(BLOCK)).cookie(n)
}

/// A client with as many I/Os in flight as the test needs.
fn client(device: &NbdDevice) -> (Service<AlignedBuf>, Client<AlignedBuf>) {
    let config = Config { depth: 1024, ..device.config().expect("connections") };
    let service = Service::start(config).expect("a service");
    let client = service.client().expect("a client");
    (service, client)
}

/// The result of each I/O, and the time of its answer.
fn results(
    client: &mut Client<AlignedBuf>,
    ios: impl Iterator<Item = Io<AlignedBuf>>,
) -> BTreeMap<u64, (Result<(), IoError>, Duration)> {
    let clock = client.clock();
    let begin = clock.now();
    let mut count = 0;
    for io in ios {
        client.push(io).expect("there is credit");
        count += 1;
    }
    let mut found = BTreeMap::new();
    while found.len() < count {
        client.wait(1, 1, |io| {
            found.insert(io.cookie, (io.result, Duration::from_nanos((clock.now() - begin).0)));
        });
    }
    found
}

/// Regression test: requests behind one at which the server closes each connection waited for the whole
/// `reconnect_delay`, and failed with it.
#[test]
fn one_poisoned_request_beside_a_thousand_good_ones() {
    let close = poisoned(Command::Write, 7, Poison::Close);
    let fake = Fake::start(vec![close; 100]);
    let device = open(&fake, ",hw_queue_depth=1024");
    let (_service, mut client) = client(&device);
    let good = (0..1000).map(|n| read(n % 128).cookie(1000 + n));
    let mut found = results(&mut client, std::iter::once(write(7)).chain(good));
    let (result, time) = found.remove(&7).expect("it has an end");
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(5), "{time:?}");
    assert_eq!(found.len(), 1000);
    for (block, (result, time)) in found {
        assert_eq!(result, Ok(()), "{block}");
        assert!(time < Duration::from_secs(1), "{block}: {time:?}");
    }
    let outages = device.outages();
    assert_eq!(outages.given_up, 1);
    let last = outages.last_given_up.expect("it is named");
    assert!(last.contains("write of 4096 bytes at 57344"), "{last}");
}

/// Each reaction of a server to a poisonous request ends only that request, with its error.
#[test]
fn every_kind_of_poison_fails_its_own_request() {
    let no_space = IoError(28);
    for (poison, most, error) in [
        (Poison::Close, HeaderStyle::Simple, IoError::IO),
        (Poison::CloseEarly, HeaderStyle::Extended, IoError::IO),
        (Poison::ShutDown, HeaderStyle::Structured, IoError::IO),
        // Chunks that break the protocol: an empty hole, and data beyond the request.
        (Poison::Chunk(2, &[0; 12]), HeaderStyle::Structured, IoError::IO),
        (Poison::Chunk(1, &[0xff; 9]), HeaderStyle::Extended, IoError::IO),
        // Errors of unknown types.
        (Poison::Chunk(0x8055, &[0, 0, 0, 28, 0, 0]), HeaderStyle::Structured, no_space),
        (Poison::Chunk(0x8000, &[0, 0, 0, 28, 0, 1, b'x', 9, 9]), HeaderStyle::Extended, no_space),
        (Poison::ErrorAndClose(ErrorCode::NoSpace), HeaderStyle::Extended, no_space),
    ] {
        for command in [Command::Read, Command::Write] {
            let plan = Plan { most, ..poisoned(command, 3, poison) };
            let fake = Fake::start(vec![plan; 100]);
            let device = open(&fake, "");
            let (_service, mut client) = client(&device);
            let io = |n| if command == Command::Read { read(n) } else { write(n) };
            let found = results(&mut client, (0..20).map(io));
            for (block, (result, time)) in found {
                let expected = if block == 3 { Err(error) } else { Ok(()) };
                assert_eq!(result, expected, "{poison:?}, {command:?} of block {block}");
                assert!(time < Duration::from_secs(2), "{poison:?}: {block} after {time:?}");
            }
        }
    }
}

/// An error of an unknown type is an answer like any other: the connection stays.
#[test]
fn an_unknown_error_costs_no_connection() {
    let chunk = Poison::Chunk(0x8055, &[0, 0, 0, 28, 0, 0]);
    let fake = Fake::start(vec![poisoned(Command::Read, 3, chunk)]);
    let device = open(&fake, "");
    let (_service, mut client) = client(&device);
    assert_eq!(results(&mut client, (0..9).map(read))[&3].0, Err(IoError(28)));
    assert_eq!(device.outages().lost, 0);
}

/// With a single request, no other answer shows that the server works: it is tried more often.
#[test]
fn a_poisoned_request_that_is_alone_fails_long_before_the_delay() {
    let fake = Fake::start(vec![poisoned(Command::Read, 0, Poison::Close); 100]);
    let device = open(&fake, "");
    let (_service, mut client) = client(&device);
    let (result, time) = results(&mut client, std::iter::once(read(0)))[&0];
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(5), "{time:?}");
    let (result, time) = results(&mut client, std::iter::once(read(1)))[&1];
    assert_eq!(result, Ok(()), "the link goes on");
    assert!(time < Duration::from_secs(1), "{time:?}");
}

/// Of two poisonous requests, both are found.
#[test]
fn several_poisoned_requests_are_found_one_by_one() {
    let fake = Fake::start(vec![poisoned(Command::Read, 3, Poison::Close); 100]);
    let device = open(&fake, ",hw_queue_depth=256");
    let (_service, mut client) = client(&device);
    let ios = (0..150).map(|n| read(if n % 50 == 0 { 3 } else { 4 + n % 100 }).cookie(n));
    for (n, (result, time)) in results(&mut client, ios) {
        let expected = if n % 50 == 0 { Err(IoError::IO) } else { Ok(()) };
        assert_eq!(result, expected, "{n}");
        assert!(n % 50 == 0 || time < Duration::from_secs(1), "{n}: {time:?}");
    }
}

/// A request that is never answered costs a connection at each `timeout`; other requests were answered in between, so
/// that each outage ended, and the request never failed.
#[test]
fn a_request_without_any_answer_ends_after_some_timeouts() {
    let fake = Fake::start(vec![poisoned(Command::Read, 3, Poison::Ignore); 100]);
    let device = open(&fake, ",timeout=1");
    let (_service, mut client) = client(&device);
    let mut found = results(&mut client, (0..20).map(read));
    let (result, time) = found.remove(&3).expect("it has an end");
    assert_eq!(result, Err(IoError::IO));
    assert!(time < Duration::from_secs(10), "{time:?}");
    assert!(found.values().all(|(result, time)| result.is_ok() && *time < Duration::from_secs(1)));
}

fn multi() -> Plan {
    let flags = Plan::default().flags.with(TransmissionFlags::CAN_MULTI_CONN);
    Plan { flags, ..Plan::default() }
}

/// Regression test: the device was opened over a separate connection, which ended without DISC. A server that accepts
/// only one client ended before the first I/O.
#[test]
fn the_connection_that_opened_the_device_is_that_of_queue_0() {
    for queues in [1, 3] {
        let fake = Fake::start(vec![multi(); 9]);
        let device = open(&fake, &format!(",hw_queues={queues}"));
        let service = start(&device);
        let mut disk = service.blocking().expect("a client");
        assert_eq!(disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0, Ok(()));
        drop((disk, service, device));
        for _ in 0..queues {
            assert_eq!(fake.end(), End::Disconnect);
        }
        assert!(fake.has_no_other_end());
    }
}

#[test]
fn a_device_that_is_never_used_says_so() {
    let fake = Fake::start(vec![Plan::default()]);
    drop(open(&fake, ""));
    assert_eq!(fake.end(), End::Disconnect);
}

#[test]
fn an_export_that_does_not_fit_is_left_in_order() {
    let fake = Fake::start(vec![Plan { size: 100, ..Plan::default() }]);
    NbdDevice::parse(&fake.uri("")).expect_err("100 bytes");
    assert_eq!(fake.end(), End::Disconnect);
}

/// The server has a different export, so the connection is not used.
#[test]
fn an_export_that_has_changed_is_left_in_order() {
    let lossy = Plan { answers: 0, ..Plan::default() };
    let fake = Fake::start(vec![lossy, Plan { size: 4096, ..Plan::default() }, Plan::default()]);
    let device = open(&fake, "");
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    assert_eq!(disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0, Ok(()));
    assert_eq!((fake.end(), fake.end()), (End::Closed, End::Disconnect));
}

/// One queue of three cannot be made: the connections of the others end in order.
#[test]
fn queues_that_are_not_used_end_in_order() {
    let smaller = Plan { size: 4096, ..multi() };
    let fake = Fake::start(vec![multi(), multi(), smaller]);
    let device = open(&fake, ",hw_queues=3");
    assert!(device.queues::<AlignedBuf>().is_err(), "the third is another export");
    assert_eq!([fake.end(), fake.end(), fake.end()], [End::Disconnect; 3]);
}

#[test]
fn the_connection_for_holes_ends_in_order() {
    let fake = Fake::start(vec![Plan { tells_holes: true, ..multi() }; 2]);
    let device = open(&fake, "");
    assert!(device.extents(0..4096, 1)[0].is_hole);
    drop(device);
    assert_eq!((fake.end(), fake.end()), (End::Disconnect, End::Disconnect));
}

/// A server that announces its end by ESHUTDOWN expects DISC (`docs/spec/nbd.md`, section 2).
#[test]
fn a_server_that_shuts_down_is_left_in_order() {
    use crate::Poison;
    use blkmq_nbd::Command;
    let poison = Some((Command::Read, 0, Poison::ShutDown));
    let fake = Fake::start(vec![Plan { poison, ..Plan::default() }, Plan::default()]);
    let device = open(&fake, "");
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    assert_eq!(disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0, Ok(()));
    assert_eq!(fake.end(), End::Disconnect);
}

/// The name is unknown: the handshake ends with ABORT.
#[test]
fn an_export_that_is_not_there_is_left_in_order() {
    let fake = Fake::start(vec![Plan { is_unknown: true, ..Plan::default() }]);
    let error = NbdDevice::parse(&fake.uri("")).expect_err("unknown").to_string();
    assert!(error.contains("refused Go"), "{error}");
    assert_eq!(fake.end(), End::Abort);
}

/// A connection that the server closed before the queue is made is not used.
#[test]
fn a_first_connection_that_has_ended_is_replaced() {
    let ends = Plan { answers: usize::MAX, ends_when_agreed: true, ..Plan::default() };
    let fake = Fake::start(vec![ends, Plan::default()]);
    let device = open(&fake, "");
    assert_eq!(fake.end(), End::Closed);
    let service = start(&device);
    let mut disk = service.blocking().expect("a client");
    assert_eq!(disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0, Ok(()));
    assert_eq!(device.outages().lost, 0, "nothing has been lost with it");
}

#[test]
fn what_cannot_be_a_device_is_refused_with_the_reason() {
    let tiny = Fake::start(vec![Plan { size: 100, ..Plan::default() }]);
    for (text, part) in [
        ("nbd+unix:///x?socket=/nowhere/at/all".to_owned(), "cannot be reached"),
        (tiny.uri(""), "the export has 100 bytes"),
    ] {
        let error = NbdDevice::parse(&text).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Regression test: a server that accepts one client at a time closed a connection because it had not noticed yet that
/// the previous client was gone.
#[test]
fn a_server_with_enough_clients_is_tried_again() {
    let refused = Plan { is_refused: true, ..Plan::default() };
    let multi = Plan::default().flags.with(TransmissionFlags::CAN_MULTI_CONN);
    let taken = Plan { flags: multi, ..Plan::default() };
    let fake = Fake::start(vec![refused.clone(), taken.clone(), refused.clone(), refused, taken]);
    let device = NbdDevice::parse(&fake.uri(",hw_queues=2")).expect("at the second try");
    assert_eq!(device.queues::<AlignedBuf>().expect("at the third").len(), 2);
}

#[test]
fn several_connections_need_a_server_that_keeps_them_consistent() {
    let multi = Plan::default().flags.with(TransmissionFlags::CAN_MULTI_CONN);
    for (flags, queues, notes) in [(Plan::default().flags, 1, 1), (multi, 3, 0)] {
        let fake = Fake::start(vec![Plan { flags, ..Plan::default() }]);
        let device = NbdDevice::parse(&fake.uri(",hw_queues=3")).expect("it is there");
        assert_eq!((device.shape().hw_queues, device.notes().len()), (queues, notes));
    }
}
