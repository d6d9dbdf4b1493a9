//! Data read equals data written, with every form of headers; and the allocation of an export is as its server reports
//! it.

use crate::fake::{Fake, Plan, SIZE};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, Extent, IoError, Rng};
use blkmq_engine::{BlockDevice, Io};
use blkmq_nbd::{ErrorCode, HeaderStyle, TransmissionFlags};
use blkmq_remote::NbdDevice;
use blkmq_runtime::{Client, Service};

pub const BLOCK: usize = 4096;
pub const BLOCKS: u64 = (SIZE / BLOCK) as u64;

pub fn open(fake: &Fake, options: &str) -> NbdDevice {
    NbdDevice::parse(&fake.uri(options)).expect("the server is there")
}

pub fn start(device: &NbdDevice) -> Service<AlignedBuf> {
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
pub fn round_trip(client: &mut Client<AlignedBuf>, round: u64) {
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
