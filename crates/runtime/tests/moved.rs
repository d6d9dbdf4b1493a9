//! Clients that are made on one thread and used on another, and clients that outlive their service.
//!
//! Regression tests. A client was woken on the thread that made it: in a queue without descriptors to watch, a client
//! that had moved slept until something else woke its thread. A service that was dropped stopped the pump threads that
//! its clients needed.
//! clients needed.

use crate::common;

use blkmq_core::Op;
use blkmq_engine::{Io, PumpMode};
use blkmq_runtime::Waiting;
use common::{PUMPS, null};
use std::sync::mpsc::channel;
use std::thread;

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
    common::until(|| service.queue().stats().submitted == 1);
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
            common::until(|| service.client().is_ok());
        }
    }
}
