//! Callbacks of a reactor: called in the order of completion, once each, and free to submit again.

use crate::common;

use blkmq_engine::Io;
use blkmq_runtime::{Answer, Handle, SubmitError};
use common::{PUMPS, block_on, gate, null, read, until};
use std::sync::mpsc::{Sender, channel};
use std::thread;

#[test]
fn callbacks_come_in_the_order_of_completion_on_the_reactors_thread() {
    for pump in PUMPS {
        let (service, keeper) = gate::<u64>(16, pump);
        let reactor = service.reactor().unwrap();
        let (handle, (sent, received)) = (reactor.handle(), channel());
        for n in 0..20 {
            let sent = sent.clone();
            let then = move |answer: Answer<u64>| {
                let name = thread::current().name().map(str::to_owned);
                sent.send((answer.unwrap().cookie, name)).unwrap();
            };
            handle.call(read(n), then).unwrap();
        }
        keeper.let_go(20);
        for n in 0..20 {
            assert_eq!(received.recv().unwrap(), (n, Some("blkmq-reactor".to_owned())));
        }
    }
}

#[test]
fn a_refusal_is_an_answer_too() {
    let service = null::<u64>("null,size=1", |_| {});
    let reactor = service.reactor().unwrap();
    let (sent, received) = channel();
    let beyond = Io { cookie: 3, ..read(1 << 20) };
    reactor.handle().call(beyond, move |answer| sent.send(answer).unwrap()).unwrap();
    let Err(SubmitError::Refused(refused)) = received.recv().unwrap() else { panic!("beyond") };
    assert_eq!(refused.into_io(), beyond);
}

/// Reads `left` more, each when the previous read is done.
fn chain(handle: &Handle<u64>, left: u64, sent: Sender<u64>) {
    let next = handle.clone();
    let then = move |answer: Answer<u64>| {
        assert_eq!(answer.expect("it was done").cookie, left);
        match left {
            0 => sent.send(0).expect("the test waits"),
            _ => chain(&next, left - 1, sent),
        }
    };
    handle.call(read(left), then).expect("there is room for a few");
}

#[test]
fn a_callback_may_submit_the_next_io() {
    for pump in PUMPS {
        for device in ["null,irqmode=0", "null,irqmode=2,completion_nsec=2000"] {
            let service = null(device, |config| config.pump = pump);
            let reactor = service.reactor().unwrap();
            let (sent, received) = channel();
            for _ in 0..4 {
                chain(&reactor.handle(), 300, sent.clone());
            }
            (0..4).for_each(|_| assert_eq!(received.recv().unwrap(), 0));
            drop(reactor);
            assert_eq!(service.stats().completed, 4 * 301);
        }
    }
}

#[test]
fn callbacks_and_futures_share_a_reactor() {
    const IOS: u64 = 500;
    for pump in PUMPS {
        let service = null("null", |config| (config.pump, config.depth) = (pump, 16));
        let reactor = service.reactor().unwrap();
        let (sent, received) = channel();
        thread::scope(|scope| {
            let caller = reactor.handle();
            scope.spawn(move || {
                for n in 0..IOS {
                    let sent = sent.clone();
                    let mut offer = caller.call(read(n), move |answer| sent.send(answer).unwrap());
                    // The inbox is full: retries with the returned I/O and callback until they are taken.
                    while let Err(back) = offer {
                        thread::yield_now();
                        let (io, then) = back.into_parts();
                        offer = caller.call(io, then);
                    }
                }
            });
            let handle = reactor.handle();
            scope.spawn(move || {
                for n in IOS..2 * IOS {
                    assert_eq!(block_on(handle.submit(read(n))).unwrap().cookie, n);
                }
            });
        });
        drop(reactor);
        let mut cookies: Vec<u64> = received.iter().map(|done| done.unwrap().cookie).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..IOS).collect::<Vec<_>>());
        until(|| service.stats().completed == 2 * IOS);
    }
}
