//! The allocation of an export, as its server reports it.

use crate::contents::{BLOCK, open, start};
use crate::fake::{Fake, Plan, SIZE};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, Extent};
use blkmq_engine::Io;
use blkmq_nbd::{HeaderStyle, TransmissionFlags};

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
