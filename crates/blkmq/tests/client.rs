//! The client of a running service: cancelling, and moving between threads.

use blkmq::core::IoError;
use blkmq::prelude::*;

/// The I/Os wait in the plug, so the outcome does not depend on the speed of the device.
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

/// A client moves from thread to thread with reads in flight and loses no completion, on a file and on a device that
/// completes its I/Os at fixed times: a ring wakes the thread that sleeps on it, whichever thread that is.
#[test]
fn a_client_moves_between_threads_with_ios_in_flight() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = format!("uring:{},size=1", folder.path().join("disk").display());
    for text in ["memory,size=1,irqmode=2,completion_nsec=500000", &file] {
        let device = match blkmq::open(text) {
            Err(error) if error.is_unavailable() => {
                eprintln!("skipped {text} in a_client_moves_between_threads: {error}");
                continue;
            }
            device => device.expect("it opens"),
        };
        let service = device.start("mq-deadline").expect("it can run");
        let mut client = service.client().expect("one is free");
        let mut ended = Vec::new();
        for round in 0..20 {
            for nth in 0..8 {
                let cookie = round * 8 + nth;
                let io = Io::read(Bytes(cookie * 4096), AlignedBuf::new(4096)).cookie(cookie);
                client.push(io).expect("there is credit");
            }
            client.flush();
            // At least four reads stay in flight when the client moves to the next thread.
            (client, ended) = std::thread::spawn(move || {
                let most = client.in_flight() - 4;
                client.wait(1, most, |done| {
                    assert!(done.result.is_ok());
                    ended.push(done.cookie);
                });
                (client, ended)
            })
            .join()
            .expect("no panic");
            assert!(client.in_flight() >= 4);
        }
        let left = client.in_flight();
        client.wait(left, left, |done| ended.push(done.cookie));
        ended.sort_unstable();
        assert_eq!(ended, Vec::from_iter(0..160), "{text}");
    }
}
