//! The client of a running service: cancelling, moving between threads, and I/Os that are split by the limits of the
//! device: a client waits for I/Os, not for parts.

use blkmq::core::{Buffer, IoError};
use blkmq::engine::{PumpMode, Refusal};
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

/// Starts a service for a device that takes at most 8 sectors in a request.
fn service(pump: PumpMode, depth: u32) -> Service<Buffer> {
    let device = blkmq::device("null,max_sectors=8,irqmode=1").expect("a null device");
    let config = Config { pump, depth, ..device.config() };
    Service::start(config).expect("it starts")
}

fn io(sectors: u32, cookie: u64) -> Io<Buffer> {
    Io::new(Op::Write, cookie * 64, sectors, cookie, Buffer::new(vec![1; sectors as usize * 512]))
}

#[test]
fn a_client_waits_for_ios_and_for_no_more_than_there_are() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = service(pump, 64);
        let mut client = service.client().expect("one is free");
        for round in 0..200 {
            let now = client.clock().now();
            client.push_at(now, io(40, 0)).expect("there is credit");
            client.push_at(now, io(8, 1)).expect("there is credit");
            client.push_at(now, io(24, 2)).expect("there is credit");
            assert_eq!((client.in_flight(), client.outstanding()), (9, 3));
            let mut done = Vec::new();
            // Wait for two, then for more than remain.
            let mut take = |c: Completion<Buffer>| {
                assert_eq!(c.result, Ok(()));
                done.push((c.cookie, c.payload.into_inner().len()));
            };
            assert_eq!(client.wait(2, 2, &mut take), 2, "round {round}");
            assert_eq!(client.outstanding(), 1);
            assert_eq!(client.wait(5, 10, &mut take), 1, "round {round}");
            done.sort_unstable();
            assert_eq!(done, [(0, 40 * 512), (1, 8 * 512), (2, 24 * 512)]);
            assert_eq!((client.in_flight(), client.outstanding()), (0, 0));
        }
        let stats = service.stats();
        assert_eq!((stats.submitted, stats.completed, stats.splits), (1800, 1800, 1200));
    }
}

#[test]
fn a_blocking_call_returns_when_the_last_part_is_done() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = service(pump, 4);
        let mut blocking = service.blocking().expect("one is free");
        for _ in 0..200 {
            let (result, payload) = blocking.call(io(32, 3)).expect("as many parts as credit");
            assert_eq!((result, payload.into_inner().len()), (Ok(()), 32 * 512));
        }
        let refused = blocking.call(io(33, 3)).expect_err("one part more");
        let refused = refused.into_refused().expect("it is not lost");
        assert_eq!(refused.why, Refusal::TooLong { most: 32 });
        assert_eq!(service.stats().splits, 600);
    }
}
