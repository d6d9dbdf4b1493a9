//! Clients: blocking calls that take their length from the payload, clients that are made on one thread and used on
//! another, and clients that outlive their service.
//!
//! Some are regression tests. A client was woken on the thread that made it: in a queue without descriptors to watch, a
//! client that had moved slept until something else woke its thread. A service that was dropped stopped the pump
//! threads that its clients needed.

use crate::common::{PUMPS, gate, null, read, until};
use blkmq_core::{Buffer, Bytes, IoError, Op, Sectors};
use blkmq_engine::{Config, DEFAULT_SUBMITTERS, Io, PumpMode, Refusal};
use blkmq_runtime::{ClientError, Waiting};
use std::sync::mpsc::channel;
use std::thread;

#[test]
fn an_io_is_as_long_as_its_payload() {
    for pump in PUMPS {
        // The device has 2048 sectors.
        let service = null::<Buffer>("null,size=1", |config| config.pump = pump);
        let mut client = service.blocking().unwrap();
        let buffer = Buffer::new(vec![7; 4096]);
        let (result, buffer) = client.write(Sectors(2040), buffer).unwrap();
        assert_eq!(result, Ok(()));
        let (result, buffer) = client.read(Bytes(2040 * 512), buffer).unwrap();
        assert_eq!((result, buffer.borrow().len()), (Ok(()), 4096));
        assert_eq!(client.flush(), Ok(()));
        // A write that begins one sector later exceeds the device.
        let refused = client.write(Sectors(2041), buffer).unwrap_err().into_refused().unwrap();
        assert_eq!(refused.why, Refusal::OutOfRange { capacity: 2048 });
        let io = refused.into_io();
        assert_eq!((io.sectors, io.payload.borrow().len()), (8, 4096));
        assert_eq!(service.stats().completed, 3);
    }
}

#[test]
fn what_fills_no_whole_sectors_is_refused() {
    let service = null::<Vec<u8>>("null,size=1", |_| {});
    let mut client = service.blocking().unwrap();
    for bytes in [0, 1, 511, 513] {
        let refused = client.write(Bytes(0), vec![0; bytes]).unwrap_err().into_refused().unwrap();
        assert_eq!(refused.why, Refusal::Misaligned { block: 512 });
        assert_eq!(refused.into_io().payload.len(), bytes);
    }
    let refused = client.write(Bytes(100), vec![0; 512]).unwrap_err().into_refused().unwrap();
    assert_eq!(refused.why, Refusal::Misaligned { block: 512 }, "between two sectors");
    // The payload carries no data, and so has no length.
    let service = null::<u64>("null,size=1", |_| {});
    let mut client = service.blocking().unwrap();
    let refused = client.read(Bytes(0), 1).unwrap_err().into_refused().unwrap();
    assert_eq!(refused.why, Refusal::Misaligned { block: 512 });
}

/// Regression test: by default a queue was built for a single client, so the second thread of a program got an error.
/// The last error names the setting.
#[test]
fn threads_get_clients_up_to_the_default_number() {
    for pump in PUMPS {
        let service = null::<u64>("null,irqmode=1", |config| {
            (config.pump, config.submitters) = (pump, DEFAULT_SUBMITTERS);
        });
        let client = |_| service.blocking().expect("as many as by default");
        let clients = Vec::from_iter((0..DEFAULT_SUBMITTERS).map(client));
        let none_left = service.client().map(drop).expect_err("one too many");
        assert!(matches!(none_left, ClientError::NoSubmitterLeft(_)));
        assert!(none_left.to_string().contains("Config::submitters"), "{none_left}");
        thread::scope(|scope| {
            for mut client in clients {
                scope.spawn(move || {
                    for _ in 0..20 {
                        assert!(client.call(read(8)).is_ok_and(|(result, _)| result.is_ok()));
                    }
                });
            }
        });
        assert!(service.client().is_ok(), "their places are free again");
    }
    let config = Config::<u64>::new(gate::<u64>(1, PUMPS[0]).0.queue().plan().device, Vec::new());
    assert_eq!(config.submitters, DEFAULT_SUBMITTERS);
}

#[test]
fn a_call_is_given_up_from_another_thread() {
    for pump in PUMPS {
        let (service, keeper) = gate::<u64>(4, pump);
        let mut client = service.blocking().expect("one place");
        let canceller = client.canceller();
        // No call is in progress, and later calls are not affected.
        canceller.cancel();
        for round in 1..=3 {
            // In a frozen queue the read waits.
            let freeze = service.queue().freeze();
            thread::scope(|scope| {
                let call = scope.spawn(|| client.call(read(8)).expect("it comes back"));
                until(|| service.stats().submitted == 2 * round - 1);
                canceller.clone().cancel();
                let (result, payload) = call.join().expect("it does not panic");
                assert_eq!((result, payload), (Err(IoError::CANCELLED), 8));
            });
            drop(freeze);
            thread::scope(|scope| {
                let call = scope.spawn(|| client.call(read(16)).expect("it comes back"));
                until(|| keeper.inside() == 1);
                // A read at the device cannot be cancelled.
                canceller.cancel();
                keeper.let_go(1);
                let (result, payload) = call.join().expect("it does not panic");
                assert_eq!((result, payload), (Ok(()), 16));
            });
        }
    }
}

/// Long enough for a waiting thread to go to sleep, with [`SLEEPY`].
const SLOW: &str = "null,submit_queues=1,irqmode=2,completion_nsec=3000000";

/// A waiting thread sleeps immediately.
const SLEEPY: Waiting = Waiting { spins: 0, rounds: 0, yields: 0 };

fn io(n: u64) -> Io<u64> {
    Io::new(Op::Read, n * 64, 8, n, n)
}

#[test]
fn a_client_is_woken_on_the_thread_that_uses_it() {
    for pump in PUMPS {
        let mut service = null(SLOW, |config| config.pump = pump);
        service.set_waiting(SLEEPY);
        let mut client = service.client().expect("one is free");
        // A first wait here, so that a bell that remembered its first thread would remember this one.
        client.push(io(1)).expect("there is credit");
        assert_eq!(client.wait(1, 1, |_| {}), 1);
        // The client moves with an I/O in flight.
        client.push(io(2)).expect("there is credit");
        client.flush();
        let (sent, received) = channel();
        let there = thread::spawn(move || {
            for n in 3..6 {
                client.push(io(n)).expect("there is credit");
                assert_eq!(client.wait(1, 1, |_| {}), 1);
            }
            assert_eq!(client.wait(1, 8, |_| {}), 1);
            sent.send(client).expect("the test waits for it");
        });
        let mut client = received.recv().expect("it comes back");
        there.join().expect("no panic");
        client.push(io(7)).expect("there is credit");
        assert_eq!(client.wait(1, 1, |_| {}), 1);
    }
}

#[test]
fn a_moved_client_hears_of_the_end_of_a_freeze() {
    let mut service = null("null", |_| {});
    service.set_waiting(SLEEPY);
    let mut client = service.client().expect("one is free");
    let freeze = service.queue().freeze();
    let there = thread::spawn(move || {
        client.push(io(1)).expect("there is credit");
        client.wait(1, 1, |_| {})
    });
    until(|| service.queue().stats().submitted == 1);
    drop(freeze);
    assert_eq!(there.join().expect("no panic"), 1);
}

#[test]
fn ios_complete_after_their_service_is_gone() {
    for pump in PUMPS {
        let service = null(SLOW, |config| config.pump = pump);
        let mut client = service.client().expect("one is free");
        for n in 0..8 {
            client.push(io(n)).expect("there is credit");
        }
        client.flush();
        drop(service);
        assert_eq!(client.wait(8, 8, |done| assert!(done.result.is_ok())), 8, "{pump:?}");
        client.push(io(9)).expect("there is credit");
        assert_eq!(client.wait(1, 1, |_| {}), 1, "{pump:?}");
    }
}

#[test]
fn a_client_that_is_dropped_with_ios_in_flight_gives_its_place_back() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = null(SLOW, |config| config.pump = pump);
        for n in 0..3 {
            let mut client = service.client().expect("the only place is free");
            client.push(io(n)).expect("there is credit");
            client.flush();
            drop(client);
            until(|| service.client().is_ok());
        }
    }
}
