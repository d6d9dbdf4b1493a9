//! A client of a running service: what a program calls.

use blkmq::core::IoError;
use blkmq::prelude::*;

/// In the plug an I/O waits for certain, so that what comes of it does not depend on how fast a device is.
#[test]
fn a_client_gives_up_an_io_that_still_waits() {
    let device = blkmq::device("null").expect("it takes no parameters");
    let service = Service::start(device.config()).expect("it can run");
    let mut client = service.client().expect("one is free");
    let now = client.clock().now();
    for cookie in 0..3 {
        client
            .push_at(now, Io::new(Op::Read, cookie * 1000, 8, cookie, ()))
            .expect("there is credit");
    }
    client.cancel(1);
    let mut ended = Vec::new();
    client.wait(3, 3, |done| ended.push((done.cookie, done.result)));
    ended.sort_unstable_by_key(|(cookie, _)| *cookie);
    assert_eq!(ended, [(0, Ok(())), (1, Err(IoError::CANCELLED)), (2, Ok(()))]);
    client.cancel(2);
    assert_eq!((client.in_flight(), service.stats().cancelled.total()), (0, 1), "it was done");
}
