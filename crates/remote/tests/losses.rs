//! Lost connections: unanswered requests are sent again, and nothing is lost or done out of order.

use crate::contents::{BLOCK, open, round_trip, start};
use crate::fake::{Fake, Plan, SIZE};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, IoError};
use blkmq_engine::Io;
use blkmq_nbd::{HeaderStyle, TransmissionFlags};

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
