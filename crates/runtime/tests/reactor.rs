//! A reactor: its futures, on the tests' own executor and on tokio, under every scheduler, with and without pump
//! threads; its callbacks, called in the order of completion, once each, and free to submit again; its permits; and
//! I/Os that exceed the device's limits, which cost a credit for each of their parts.

use crate::common::{
    POISON, PUMPS, Woken, block_on, gate, gate_of, gate_with, null, poll, read, until,
};
use blkmq_core::{IoError, IoResult, Op};
use blkmq_engine::{Config, Io, PumpMode, Refusal};
use blkmq_runtime::{
    Answer, Handle, Permit, ReactorError, SubmitError, SubmitErrorKind, Submitted, Unavailable,
};
use blkmq_sched::registry;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;
use std::thread;

/// Completion within the call, at the next reap, and 5 us later.
const DEVICES: [&str; 3] =
    ["null,irqmode=0", "null,irqmode=1,hw_queue_depth=4", "null,irqmode=2,completion_nsec=5000"];

/// Calls `run` for every scheduler on every device with every kind of pump.
fn everywhere(run: impl Fn(&str, &dyn Fn(&mut Config<u64>))) {
    for scheduler in registry::ALL {
        for device in DEVICES {
            for pump in PUMPS {
                run(device, &|config| {
                    config.scheduler = scheduler;
                    config.options = blkmq_sched::Options::defaults(scheduler.attributes);
                    (config.pump, config.depth) = (pump, 16);
                });
            }
        }
    }
}

#[test]
fn handles_cross_threads_and_futures_are_not_pinned() {
    fn is_shared<T: Clone + Send + Sync>() {}
    fn moves<T: Send + Unpin>() {}
    is_shared::<Handle<std::cell::RefCell<Vec<u8>>>>();
    moves::<Submitted<std::cell::RefCell<Vec<u8>>>>();
}

#[test]
fn threads_that_block_on_futures_get_each_answer_once() {
    const THREADS: u64 = 3;
    const IOS: u64 = 400;
    const WINDOW: usize = 12;
    everywhere(|device, change| {
        let service = null(device, change);
        let reactor = service.reactor().unwrap();
        thread::scope(|scope| {
            for nth in 0..THREADS {
                let handle = reactor.handle();
                scope.spawn(move || {
                    let mut window = VecDeque::new();
                    for n in 0..IOS {
                        window.push_back((n, handle.submit(read(nth * IOS + n))));
                        if window.len() == WINDOW || n == IOS - 1 {
                            for (n, future) in window.drain(..) {
                                let done = block_on(future).unwrap();
                                assert_eq!(done.cookie, nth * IOS + n);
                                assert_eq!((done.payload, done.result), (done.cookie, Ok(())));
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(reactor.panics(), 0);
        drop(reactor);
        assert_eq!(service.stats().completed, THREADS * IOS);
    });
}

#[test]
fn tokio_tasks_get_each_answer_once() {
    const TASKS: u64 = 24;
    const IOS: u64 = 50;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    everywhere(|device, change| {
        let service = null(device, change);
        let reactor = service.reactor().unwrap();
        let task = |nth| {
            let handle = reactor.handle();
            runtime.spawn(async move {
                for n in nth * IOS..(nth + 1) * IOS {
                    let done = handle.submit(read(n)).await.unwrap();
                    assert_eq!((done.cookie, done.payload, done.result), (n, n, Ok(())));
                }
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        for task in tasks {
            runtime.block_on(task).unwrap();
        }
        drop(reactor);
        assert_eq!(service.stats().completed, TASKS * IOS);
    });
}

#[test]
fn what_is_submitted_before_the_reactor_looks_merges_in_one_plug() {
    let service = null::<u64>("null,irqmode=0", |_| {});
    let reactor = service.reactor().unwrap();
    let handle = reactor.handle();
    // A callback that blocks, in breach of its contract, so that the reactor takes no I/Os.
    let (begun, begin) = channel();
    let (end, ended) = channel();
    let hold = move |_| {
        begun.send(()).unwrap();
        ended.recv().unwrap();
    };
    handle.call(read(1000), hold).unwrap();
    begin.recv().unwrap();
    let futures: Vec<_> =
        (0..8).map(|n| handle.submit(Io::new(Op::Write, n * 8, 8, n, n))).collect();
    end.send(()).unwrap();
    for (n, future) in (0..).zip(futures) {
        assert_eq!(block_on(future).unwrap().cookie, n);
    }
    assert_eq!(service.stats().merges.plug, 7);
}

#[test]
fn a_refused_io_comes_back_unchanged_and_the_others_go_on() {
    let service = null::<u64>("null,size=1,irqmode=2,completion_nsec=5000", |_| {});
    let reactor = service.reactor().unwrap();
    let handle = reactor.handle();
    let beyond = Io { cookie: 9, ..read(1 << 20) };
    let futures = [read(0), beyond, read(1), beyond, read(2)].map(|io| handle.submit(io));
    let answers = futures.map(block_on);
    let why = Refusal::OutOfRange { capacity: 2048 };
    for (n, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(done) => assert_eq!((n % 2, done.result), (0, Ok(()))),
            Err(error) => {
                assert_eq!((n % 2, error.why()), (1, SubmitErrorKind::Refused(why)));
                assert_eq!(error.into_io(), Some(beyond));
            }
        }
    }
}

#[test]
fn only_the_waker_of_the_last_poll_is_woken_and_once() {
    for pump in PUMPS {
        let (service, keeper) = gate(8, pump);
        let reactor = service.reactor().unwrap();
        let mut future = reactor.handle().submit(read(1));
        let [first, last] = [(); 2].map(|()| Arc::<Woken>::default());
        for woken in [&first, &first, &last, &last] {
            assert!(poll(&mut future, woken).is_pending());
        }
        keeper.let_go(1);
        until(|| last.0.load(Ordering::SeqCst) > 0);
        let Poll::Ready(Ok(done)) = poll(&mut future, &last) else { panic!("woken for nothing") };
        assert_eq!(done.payload, 1);
        let counts = [&first, &last].map(|woken| woken.0.load(Ordering::SeqCst));
        assert_eq!(counts, [0, 1]);
    }
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn an_answer_is_given_once() {
    let service = null::<u64>("null,irqmode=0", |_| {});
    let reactor = service.reactor().unwrap();
    let mut future = reactor.handle().submit(read(1));
    let woken = Arc::default();
    until(|| service.stats().completed == 1);
    while poll(&mut future, &woken).is_pending() {}
    let _ = poll(&mut future, &woken);
}

#[test]
fn with_a_depth_of_one_everybody_waits_and_the_order_is_kept() {
    for pump in PUMPS {
        let (service, keeper) = gate(1, pump);
        let reactor = service.reactor().unwrap();
        let handle = reactor.handle();
        let mut futures = vec![handle.submit(read(0))];
        until(|| keeper.came() == 1);
        // Two places in the inbox, and then a line.
        futures.push(handle.try_submit(read(1)).unwrap());
        futures.push(handle.try_submit(read(2)).unwrap());
        let full = Unavailable::Full { most: 2 };
        let refused = handle.try_submit(read(3)).unwrap_err();
        assert_eq!((refused.why, refused.into_io()), (full, read(3)));
        let refused = handle.call(read(4), |_| unreachable!("it was not taken")).unwrap_err();
        assert_eq!((refused.why, refused.into_io()), (full, read(4)));
        futures.extend((3..20).map(|n| handle.submit(read(n))));
        for (n, future) in (0..).zip(futures) {
            assert_eq!((keeper.came(), keeper.inside()), (n + 1, 1), "one at a time, in order");
            keeper.let_go(1);
            assert_eq!(block_on(future).unwrap().payload, n);
            until(|| keeper.came() == (n + 2).min(20));
        }
    }
}

#[test]
fn a_reactor_takes_a_submitter_and_gives_it_back() {
    let service = null::<u64>("null", |_| {});
    let reactor = service.reactor().unwrap();
    assert!(matches!(service.reactor(), Err(ReactorError::NoSubmitterLeft(_))));
    assert!(service.client().is_err());
    drop(reactor);
    let reactor = service.reactor().expect("the first one has given it back");
    assert!(block_on(reactor.handle().submit(read(1))).is_ok());
}

/// The cookie and the result of a future's I/O.
fn result_of(future: Submitted<u64>) -> (u64, IoResult) {
    let done = block_on(future).expect("the reactor is there");
    (done.cookie, done.result)
}

#[test]
fn an_io_can_be_cancelled_wherever_it_waits() {
    const CANCELLED: IoResult = Err(IoError::CANCELLED);
    for pump in PUMPS {
        // Credit for two and places for four; the other futures are in line.
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().expect("one place");
        let handle = reactor.handle();
        let mut futures: VecDeque<_> = (0..2).map(|n| handle.submit(read(n))).collect();
        until(|| keeper.inside() == 2);
        futures.extend((2..8).map(|n| handle.submit(read(n))));
        // One in line, one in the inbox, one at the device.
        for n in [7, 3, 0] {
            futures[n].cancel();
        }
        assert_eq!(result_of(futures.remove(7).expect("eight")), (7, CANCELLED));
        assert_eq!(result_of(futures.remove(3).expect("eight")), (3, CANCELLED));
        keeper.let_go(6);
        for (future, n) in futures.into_iter().zip([0, 1, 2, 4, 5, 6]) {
            future.cancel();
            let (cookie, result) = result_of(future);
            assert!(cookie == n && (result == Ok(()) || n > 1), "{cookie} {result:?}");
        }
    }
}

#[test]
fn an_io_in_the_queue_is_cancelled_while_the_reactor_has_no_credit() {
    // A device of depth 1, so that the second I/O waits in the scheduler; and no more credit.
    let (service, keeper) = gate_with(2, PumpMode::Inline, |shape| shape.hw_queue_depth = 1);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let first = handle.submit(read(0));
    until(|| keeper.inside() == 1);
    let second = handle.submit(read(100));
    let third = handle.submit(read(200));
    until(|| service.stats().submitted == 2);
    second.cancel();
    assert_eq!(result_of(second), (100, Err(IoError::CANCELLED)));
    keeper.let_go(2);
    assert_eq!([result_of(first), result_of(third)], [(0, Ok(())), (200, Ok(()))]);
}

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

/// The output of a future; `None` if it is not ready.
fn ready<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Option<F::Output> {
    match poll(future, woken) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// All permits that are available immediately.
fn all_permits(handle: &Handle<u64>) -> Vec<Permit<u64>> {
    let woken = Arc::new(Woken::default());
    std::iter::from_fn(|| {
        let mut next = handle.reserve();
        ready(&mut next, &woken).map(|permit| permit.expect("the reactor is there"))
    })
    .collect()
}

#[test]
fn a_permit_keeps_a_place_and_its_io_is_taken() {
    for pump in PUMPS {
        let (service, keeper) = gate::<u64>(2, pump);
        let reactor = service.reactor().expect("one place");
        let handle = reactor.handle();
        let permits = all_permits(&handle);
        let most = permits.len();
        assert!(most >= 2, "{most}");
        // All places are reserved, though no I/O was submitted.
        let full = handle.try_submit(read(100)).expect_err("there is no place");
        assert_eq!(full.why, Unavailable::Full { most: most as u32 });
        let futures = permits.into_iter().zip(0..).map(|(permit, n)| permit.submit(read(n)));
        let futures: Vec<_> = futures.map(|future| future.expect("it was promised")).collect();
        keeper.let_go(most as u64);
        for (future, n) in futures.into_iter().zip(0..) {
            let done = block_on(future).expect("it was taken");
            assert_eq!((done.cookie, done.result), (n, Ok(())));
        }
    }
}

#[test]
fn a_permit_that_is_dropped_lets_the_next_in_line_in() {
    let (service, keeper) = gate::<u64>(2, PumpMode::Inline);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let mut permits = all_permits(&handle);
    let woken = Arc::new(Woken::default());
    let (mut first, mut second) = (handle.reserve(), handle.reserve());
    let io = handle.submit(read(7));
    assert!(ready(&mut first, &woken).is_none() && ready(&mut second, &woken).is_none());
    // The first future leaves the line; the second one is next, and then the I/O.
    drop(first);
    drop(permits.pop());
    until(|| woken.0.load(Ordering::Relaxed) == 1);
    let second = ready(&mut second, &woken).expect("it was woken").expect("a permit");
    drop(permits.pop());
    keeper.let_go(1);
    assert_eq!(block_on(io).expect("it was in line").cookie, 7);
    drop(second);
    // Two of the permits were dropped.
    assert_eq!(all_permits(&handle).len(), 2);
}

#[test]
fn those_who_wait_for_a_permit_hear_that_the_reactor_is_gone() {
    let (service, _keeper) = gate::<u64>(2, PumpMode::Inline);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let mut permits = all_permits(&handle);
    let woken = Arc::new(Woken::default());
    let mut waiting = handle.reserve();
    assert!(ready(&mut waiting, &woken).is_none());
    drop(reactor);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let refused = ready(&mut waiting, &woken).expect("it was woken");
    assert_eq!(refused.expect_err("the reactor is gone"), Unavailable::Closed);
    let permit = permits.pop().expect("there was at least one");
    let refused = permit.submit(read(3)).expect_err("the reactor is gone");
    assert_eq!((refused.why, refused.into_io()), (Unavailable::Closed, read(3)));
    let permit = permits.pop().expect("there were two");
    let refused = permit.call(read(4), |_: Answer<u64>| panic!("it is not called"));
    assert_eq!(refused.expect_err("the reactor is gone").into_parts().0, read(4));
    let mut late = handle.reserve();
    assert!(matches!(ready(&mut late, &woken), Some(Err(Unavailable::Closed))));
}

#[test]
fn the_io_of_a_callback_is_given_up_wherever_it_waits() {
    // A device of depth 1, so that the second I/O waits in the scheduler; credit for two; the others are in the
    // inbox.
    let (service, keeper) = gate_with(2, PumpMode::Inline, |shape| shape.hw_queue_depth = 1);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let (sent, received) = channel::<(u64, IoResult)>();
    for n in 0..4 {
        let sent = sent.clone();
        let then = move |answer: Answer<u64>| {
            let done = answer.expect("the reactor is there");
            sent.send((done.cookie, done.result)).expect("the test waits");
        };
        handle.call(read(n * 100), then).expect("there is room");
        if n == 0 {
            until(|| keeper.inside() == 1);
        }
    }
    until(|| service.stats().submitted == 2);
    handle.cancel(300);
    assert_eq!(received.recv(), Ok((300, Err(IoError::CANCELLED))));
    handle.cancel(100);
    assert_eq!(received.recv(), Ok((100, Err(IoError::CANCELLED))));
    // A cookie without an I/O, or whose I/O has ended, is ignored.
    handle.cancel(100);
    handle.cancel(77);
    keeper.let_go(2);
    assert_eq!([received.recv(), received.recv()], [Ok((0, Ok(()))), Ok((200, Ok(())))]);
}

/// A read of that many parts of 8 sectors, which no other read continues.
fn parts(n: u64, count: u32) -> Io<u64> {
    Io::new(Op::Read, n * 64, 8 * count, n, n)
}

/// Callers do not see credit, so the read must not be refused for lack of it.
#[test]
fn what_has_too_little_credit_waits_for_it_and_so_does_all_behind() {
    for pump in PUMPS {
        let (service, keeper) = gate_of(4, pump, 8);
        let reactor = service.reactor().unwrap();
        let (handle, (sent, received)) = (reactor.handle(), channel());
        // If the last read could overtake the others, the device would answer it before them.
        for (n, count) in [(0, 3), (1, 2), (2, 4), (3, 1)] {
            let sent = sent.clone();
            let then = move |answer| sent.send(answer).unwrap();
            handle.call(parts(n, count), then).unwrap();
        }
        until(|| keeper.inside() == 3);
        keeper.let_go(100);
        for n in 0..4 {
            let answer = received.recv().unwrap().unwrap();
            assert_eq!((answer.cookie, answer.payload, answer.result), (n, n, Ok(())), "{pump:?}");
        }
        assert_eq!(keeper.came(), 10);
    }
}

#[test]
fn what_can_never_have_enough_is_refused() {
    let (service, keeper) = gate_of(4, PumpMode::Inline, 8);
    keeper.let_go(100);
    let reactor = service.reactor().unwrap();
    let handle = reactor.handle();
    let answer = block_on(handle.submit(parts(1, 5)));
    let Err(SubmitError::Refused(refused)) = answer else { panic!("it has five parts") };
    assert_eq!((refused.why, refused.into_io()), (Refusal::TooLong { most: 32 }, parts(1, 5)));
    assert_eq!(block_on(handle.submit(parts(2, 4))).unwrap().result, Ok(()));
}

/// A device panics: the I/Os that it gives back end with an error, and the I/Os that waited for credit are returned
/// undone.
#[test]
fn what_waits_for_credit_when_a_device_panics_comes_back() {
    let (service, keeper) = gate_of(4, PumpMode::Inline, 8);
    let reactor = service.reactor().unwrap();
    let (handle, (sent, received)) = (reactor.handle(), channel());
    let held = handle.submit(read(1));
    until(|| keeper.inside() == 1);
    // Submitted on the reactor's own thread, so that the reactor takes them together: the pushed ones take three
    // credits, which leaves none for the last one.
    let again = handle.clone();
    let all = [Io { sector: POISON, ..read(2) }, parts(3, 2), parts(4, 2)];
    let then = move |_| {
        for io in all {
            let sent = sent.clone();
            again.call(io, move |answer| sent.send(answer).unwrap()).unwrap();
        }
    };
    handle.call(Io { sectors: 0, ..read(0) }, then).unwrap();
    let mut undone = Vec::new();
    for answer in received.iter().take(3) {
        match answer {
            Ok(done) => assert_eq!(done.result, Err(IoError::POISONED)),
            Err(SubmitError::Closed(io)) => undone.push(io.into_io()),
            Err(SubmitError::Refused(refused)) => undone.push(refused.into_io()),
            Err(lost) => panic!("the device gives everything back: {lost}"),
        }
    }
    assert_eq!(undone.last(), Some(&parts(4, 2)));
    let done = block_on(held).expect("the device gives it back");
    assert_eq!(done.result, Err(IoError::POISONED));
    drop(reactor);
}
