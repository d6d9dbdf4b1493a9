//! Connections that are refused, lost, and ended in order. After a loss, unanswered requests are sent again, and
//! nothing is lost or done out of order. Of poisonous requests, which their server does not survive, only they fail,
//! and other requests do not wait for them.

use crate::contents::{BLOCK, open, round_trip, start};
use crate::fake::{End, Fake, Plan, Poison, SIZE};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, IoError};
use blkmq_engine::{BlockDevice, Config, Io};
use blkmq_nbd::{Command, ErrorCode, HeaderStyle, TransmissionFlags};
use blkmq_remote::NbdDevice;
use blkmq_runtime::{Client, Service};
use std::collections::BTreeMap;
use std::time::Duration;

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
    use crate::fake::Poison;
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
