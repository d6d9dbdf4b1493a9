//! Exports that cannot be opened, and their errors.

use crate::fake::{Fake, Plan};
use blkmq_nbd::TransmissionFlags;
use blkmq_remote::NbdDevice;

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
    assert_eq!(device.queues::<blkmq_buf::AlignedBuf>().expect("at the third").len(), 2);
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
