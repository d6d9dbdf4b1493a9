//! Futures of a reactor: on the tests' own executor and on tokio, under every scheduler, with and without pump
//! threads.

use crate::common;

use blkmq_core::{IoError, IoResult, Op};
use blkmq_engine::{Config, Io, PumpMode, Refusal};
use blkmq_runtime::{Handle, ReactorError, SubmitErrorKind, Submitted, Unavailable};
use blkmq_sched::registry;
use common::{PUMPS, Woken, block_on, gate, gate_with, null, poll, read, until};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
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
