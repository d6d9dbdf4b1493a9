//! The connections of a device: one for each hardware queue, the first of which opened the device, each ended in order.

use crate::contents::{BLOCK, open, start};
use crate::fake::{End, Fake, Plan};
use blkmq_buf::AlignedBuf;
use blkmq_core::Bytes;
use blkmq_engine::Io;
use blkmq_nbd::TransmissionFlags;
use blkmq_remote::NbdDevice;

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
