//! Endings: futures dropped at every stage, reactors dropped with I/Os in flight, panics. No payload is lost, freed
//! twice, or freed while the device has it.

use crate::common;

use blkmq_core::IoError;
use blkmq_engine::Io;
use blkmq_runtime::{Answer, SubmitError, SubmitErrorKind, Unavailable};
use common::{Counted, Drops, POISON, PUMPS, Woken, block_on, gate, null, poll, read, until};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

fn number(answer: &Answer<Counted>) -> u64 {
    answer.as_ref().map(|done| done.payload.0).expect("it was done")
}

#[test]
fn a_dropped_future_leaves_its_payload_to_the_device() {
    for pump in PUMPS {
        let (service, keeper) = gate(4, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
        // I/Os at the device: one whose future is never polled, one polled once, and one that is kept.
        let fresh = handle.submit(drops.io(0));
        let mut polled = handle.submit(drops.io(1));
        let kept = handle.submit(drops.io(2));
        assert!(poll(&mut polled, &woken).is_pending());
        until(|| keeper.inside() == 3);
        drop((fresh, polled));
        assert_eq!((drops.count(), keeper.inside()), (0, 3), "the device has them");
        keeper.let_go(2);
        until(|| drops.count() == 2);
        keeper.let_go(1);
        assert_eq!(number(&block_on(kept)), 2);
        assert_eq!((drops.count(), keeper.inside()), (3, 0));
        assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 0, "it was not there");
    }
}

#[test]
fn a_dropped_future_keeps_its_place_in_the_inbox_but_not_in_line() {
    const PLACES: u64 = 2 + 4;
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops) = (reactor.handle(), Drops::default());
        let mut at_device: Vec<_> = (0..2).map(|n| handle.submit(drops.io(n))).collect();
        until(|| keeper.inside() == 2);
        let mut rest: Vec<_> = (2..PLACES + 4).map(|n| Some(handle.submit(drops.io(n)))).collect();
        let mut forsake = |n: u64| drop(rest[n as usize - 2].take().expect("not dropped before"));
        forsake(3);
        assert_eq!(drops.count(), 0, "it has a place");
        // I/Os from the middle of the line, its end and its head.
        for (n, dropped) in [(PLACES + 1, 1), (PLACES + 3, 2), (PLACES, 3)] {
            forsake(n);
            assert_eq!(drops.count(), dropped);
        }
        assert_eq!(keeper.came(), 2);
        keeper.let_go(100);
        let done = at_device.drain(..).chain(rest.into_iter().flatten());
        let numbers: Vec<u64> = done.map(|future| number(&block_on(future))).collect();
        assert_eq!(numbers, [0, 1, 2, 4, 5, PLACES + 2]);
        assert_eq!((keeper.came(), drops.count()), (PLACES + 1, PLACES + 4));
    }
}

#[test]
fn an_answer_that_nobody_fetches_is_dropped_with_its_future() {
    let service = null("null,irqmode=0", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
    let mut futures = [0, 1].map(|n| handle.submit(drops.io(n)));
    until(|| service.stats().completed == 2);
    // It follows the two, so they are delivered when it is.
    assert!(block_on(handle.submit(drops.io(2))).is_ok());
    assert_eq!(drops.count(), 1);
    assert!(poll(&mut futures[0], &woken).is_ready());
    assert_eq!(drops.count(), 2, "the answer was dropped just now");
    drop(futures);
    assert_eq!(drops.count(), 3);
}

#[test]
fn thousands_of_futures_dropped_at_random_leak_nothing() {
    const IOS: u64 = 4_000;
    for pump in PUMPS {
        let change = |config: &mut blkmq_engine::Config<_>| {
            (config.pump, config.depth) = (pump, 8);
        };
        let service = null("null,irqmode=2,completion_nsec=2000", change);
        let reactor = service.reactor().unwrap();
        let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
        let mut random = blkmq_core::Rng::new(7);
        let mut alive = Vec::new();
        for n in 0..IOS {
            let mut future = handle.submit(drops.io(n));
            match random.below(4) {
                0 => drop(future),
                1 => drop(poll(&mut future, &woken)),
                2 => alive.push(future),
                _ => assert_eq!(number(&block_on(future)), n),
            }
            if alive.len() == 30 {
                drop(alive.swap_remove(random.below(30) as usize));
                alive.truncate(random.below(30) as usize);
            }
        }
        drop(reactor);
        drop(alive);
        assert_eq!(drops.count(), IOS);
        let stats = service.stats();
        assert_eq!(stats.submitted, stats.completed);
    }
}

#[test]
fn a_dropped_reactor_finishes_what_it_took_and_gives_back_the_rest() {
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops, called) = (reactor.handle(), Drops::default(), channel());
        let mut futures: Vec<_> = (0..2).map(|n| handle.submit(drops.io(n))).collect();
        until(|| keeper.inside() == 2);
        futures.extend((2..5).map(|n| handle.submit(drops.io(n))));
        handle.call(drops.io(5), move |answer| called.0.send(number(&answer)).unwrap()).unwrap();
        let in_line = handle.submit(drops.io(6));
        thread::scope(|scope| {
            scope.spawn(|| drop(reactor));
            // The I/O in line is refused immediately, although the device still holds all requests.
            let Err(SubmitError::Closed(io)) = block_on(in_line) else { panic!("it was in line") };
            let io = io.into_io();
            assert_eq!((io.cookie, io.payload.0, drops.count()), (6, 6, 0));
            let Err(refused) = handle.try_submit(io) else { panic!("it is closed") };
            assert_eq!(refused.why, Unavailable::Closed);
            let answer = block_on(handle.submit(refused.into_io())).expect_err("it is closed");
            assert_eq!(answer.into_io().expect("it is handed back").payload.0, 6);
            keeper.let_go(6);
        });
        // The reactor is gone, and every answer was delivered.
        assert_eq!(called.1.try_recv(), Ok(5));
        for (n, future) in (0..).zip(futures) {
            assert_eq!(number(&block_on(future)), n);
        }
        assert_eq!((keeper.came(), drops.count()), (6, 7));
        assert_eq!(service.stats().completed, 6);
    }
}

#[test]
fn a_reactor_outlives_its_service() {
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let future = reactor.handle().submit(read(1));
        until(|| keeper.inside() == 1);
        drop(service);
        keeper.let_go(2);
        assert_eq!(block_on(future).unwrap().payload, 1);
        assert_eq!(block_on(reactor.handle().submit(read(2))).unwrap().payload, 2);
    }
}

#[test]
fn a_reactor_may_be_dropped_by_its_own_callback() {
    let service = null::<u64>("null", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, (sent, received)) = (reactor.handle(), channel());
    let place = Arc::new(Mutex::new(None));
    let its_place = Arc::clone(&place);
    let drops_it = move |_| {
        until(|| its_place.lock().unwrap().is_some());
        drop(its_place.lock().unwrap().take());
        sent.send(()).unwrap();
    };
    handle.call(read(1), drops_it).unwrap();
    *place.lock().unwrap() = Some(reactor);
    received.recv().unwrap();
    let closed = block_on(handle.submit(read(2))).expect_err("it is gone");
    assert_eq!((closed.why(), closed.into_io()), (SubmitErrorKind::Closed, Some(read(2))));
    // The reactor's thread ends without a call and frees the submitter.
    until(|| service.reactor().is_ok());
}

#[test]
fn a_panic_in_a_callback_ends_there_and_is_counted() {
    let service = null("null", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, drops) = (reactor.handle(), Drops::default());
    handle.call(drops.io(1), |_| panic!("a callback that panics, as this test wants")).unwrap();
    assert_eq!(number(&block_on(handle.submit(drops.io(2)))), 2);
    assert_eq!((reactor.panics(), drops.count()), (1, 2));
}

#[test]
fn when_a_device_panics_everything_is_answered() {
    let (service, keeper) = gate(2, blkmq_engine::PumpMode::Inline);
    let reactor = service.reactor().unwrap();
    let (handle, called) = (reactor.handle(), channel());
    let held = handle.submit(read(1));
    until(|| keeper.inside() == 1);
    let panics = handle.submit(Io { sector: POISON, ..read(2) });
    for (future, n) in [(panics, 2), (held, 1)] {
        let done = block_on(future).expect("the device gives it back");
        assert_eq!((done.cookie, done.payload, done.result), (n, n, Err(IoError::POISONED)));
    }
    // Dropping the reactor waits for its thread, which has no more work.
    drop(reactor);
    let late = handle.call(read(3), move |_| called.0.send(()).unwrap());
    assert_eq!(late.unwrap_err().why, Unavailable::Closed);
    assert!(service.is_poisoned());
    assert!(called.1.recv().is_err(), "it was not taken, so it is not called");
}
