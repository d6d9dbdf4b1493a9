//! Reactors whose turns are tasks of a tokio runtime: answers, endings of reactors and of runtimes, cancelling,
//! permits.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_core::{IoError, IoResult, Payload};
use blkmq_engine::{Config, Io, PumpMode};
use blkmq_runtime::{Handle, Reactor, ReactorError, Service, SubmitErrorKind, Unavailable};
use blkmq_sched::registry;
use common::{Counted, Drops, POISON, PUMPS, block_on, gate, gate_with, null, read, until};
use std::sync::mpsc::channel;
use tokio::runtime::{Builder, Runtime};

/// Completion within the call, at the next reap, a few microseconds later, and later than a task stays awake.
const DEVICES: [&str; 4] = [
    "null,irqmode=0",
    "null,irqmode=1,hw_queue_depth=4",
    "null,irqmode=2,completion_nsec=5000",
    "null,irqmode=2,completion_nsec=200000",
];
const CANCELLED: IoResult = Err(IoError::CANCELLED);

fn workers(n: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(n).enable_io().enable_time().build().expect("a few threads")
}

fn on<P: Payload>(runtime: &Runtime, service: &Service<P>) -> Reactor<P> {
    service.reactor_on(runtime.handle()).expect("there is a submitter")
}

async fn read_all(handle: Handle<u64>, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let done = handle.submit(read(n)).await.expect("the reactor is there");
        assert_eq!((done.cookie, done.payload, done.result), (n, n, Ok(())));
    }
}

#[test]
fn tasks_get_each_answer_once() {
    const TASKS: u64 = 12;
    const IOS: u64 = 20;
    for runtime in [workers(2), workers(4)] {
        let submitters = runtime.metrics().num_workers() as u16;
        for (scheduler, device) in registry::ALL.iter().flat_map(|it| DEVICES.map(|of| (it, of))) {
            for pump in PUMPS {
                let service = null(device, |config: &mut Config<u64>| {
                    config.scheduler = scheduler;
                    config.options = blkmq_sched::Options::defaults(scheduler.attributes);
                    (config.pump, config.depth, config.submitters) = (pump, 8, submitters);
                });
                let reactor = on(&runtime, &service);
                assert!(service.client().is_err(), "a submitter for each worker");
                let task =
                    |nth| runtime.spawn(read_all(reactor.handle(), nth * IOS..nth * IOS + IOS));
                for task in Vec::from_iter((0..TASKS).map(task)) {
                    block_on(task).expect("no panic");
                }
                assert_eq!(reactor.panics(), 0);
                drop(reactor);
                assert_eq!(service.stats().completed, TASKS * IOS);
            }
        }
    }
}

/// Threads other than workers share the inboxes.
#[test]
fn other_threads_and_executors_may_wait_for_answers() {
    let runtime = workers(2);
    let service = null("null,irqmode=1", |config: &mut Config<u64>| config.submitters = 2);
    let reactor = on(&runtime, &service);
    std::thread::scope(|scope| {
        for nth in 0..4 {
            let handle = reactor.handle();
            scope.spawn(move || block_on(read_all(handle, nth * 100..nth * 100 + 100)));
        }
    });
    runtime.block_on(read_all(reactor.handle(), 400..500));
}

#[test]
fn a_runtime_of_one_thread_will_do() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("no thread");
    for pump in PUMPS {
        let service = null(DEVICES[3], |config: &mut Config<u64>| config.pump = pump);
        let reactor = on(&runtime, &service);
        runtime.block_on(read_all(reactor.handle(), 0..10));
        // Outside of `block_on` no task runs, so this must not wait.
        drop(reactor);
        assert!(service.client().is_err(), "the task has not ended");
        runtime.block_on(async { until_free(&service).await });
    }
}

/// Yields to the tasks of the runtime until a submitter is free.
async fn until_free<P: Payload>(service: &Service<P>) {
    while service.client().is_err() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn it_takes_the_submitters_that_are_left() {
    let runtime = workers(4);
    let service = null("null", |config: &mut Config<u64>| config.submitters = 3);
    let client = service.client().expect("one of three");
    let reactor = on(&runtime, &service);
    let none_left = service.reactor_on(runtime.handle());
    assert!(matches!(none_left, Err(ReactorError::NoSubmitterLeft(_))));
    drop((reactor, client));
    let _three = [(); 3].map(|()| service.client().expect("the tasks have given them back"));
}

#[test]
fn callbacks_are_called_and_their_panics_counted() {
    let runtime = workers(2);
    let service = null("null", |config: &mut Config<Counted>| config.submitters = 2);
    let reactor = on(&runtime, &service);
    let (handle, drops, (sent, received)) = (reactor.handle(), Drops::default(), channel());
    handle
        .call(drops.io(1), |_| panic!("a callback that panics, as this test wants"))
        .expect("room");
    handle
        .call(drops.io(2), move |answer| sent.send(answer.is_ok()).expect("it waits"))
        .expect("room");
    assert_eq!(received.recv(), Ok(true));
    until(|| (reactor.panics(), drops.count()) == (1, 2));
}

#[test]
fn dropped_outside_its_runtime_it_waits() {
    let runtime = workers(2);
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = on(&runtime, &service);
        let (handle, drops) = (reactor.handle(), Drops::default());
        let mut futures = Vec::from_iter((0..2).map(|n| handle.submit(drops.io(n))));
        until(|| keeper.inside() == 2);
        futures.extend((2..7).map(|n| handle.submit(drops.io(n))));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(reactor));
            // In line behind two at the device and four in the inbox.
            let in_line = block_on(futures.pop().expect("seven")).expect_err("it is closed");
            assert_eq!(in_line.why(), SubmitErrorKind::Closed);
            keeper.let_go(6);
        });
        for (n, future) in (0..).zip(futures) {
            assert_eq!(block_on(future).expect("it had a place").payload.0, n);
        }
        assert_eq!((drops.count(), service.stats().completed), (7, 6));
        drop(service.client().expect("the task has ended"));
    }
}

#[test]
fn dropped_within_its_runtime_it_does_not_wait() {
    let runtime = workers(1);
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = on(&runtime, &service);
        let handle = reactor.handle();
        let future = handle.submit(read(1));
        until(|| keeper.inside() == 1);
        let (sent, received) = channel();
        // In a task, on the only worker, while the device does not answer.
        runtime.spawn(async move {
            drop(reactor);
            sent.send(()).expect("the test waits");
        });
        received.recv().expect("it is dropped");
        let closed = handle.try_submit(read(2)).expect_err("it is closed");
        assert_eq!(closed.why, Unavailable::Closed);
        keeper.let_go(1);
        assert_eq!(block_on(future).expect("it had a place").payload, 1);
        until(|| service.client().is_ok());
    }
}

/// The runtime ends first: its tasks are dropped, and no future waits for ever.
#[test]
fn a_runtime_that_is_shut_down_answers_everything() {
    for pump in PUMPS {
        let runtime = workers(2);
        let (service, keeper) = gate(2, pump);
        let reactor = on(&runtime, &service);
        let (handle, drops, (sent, called)) = (reactor.handle(), Drops::default(), channel());
        let mut futures = Vec::from_iter((0..2).map(|n| handle.submit(drops.io(n))));
        until(|| keeper.inside() == 2);
        futures.extend((2..5).map(|n| handle.submit(drops.io(n))));
        let then = move |answer: blkmq_runtime::Answer<Counted>| {
            sent.send(answer.map_err(|error| error.why()).is_ok()).expect("the test waits");
        };
        handle.call(drops.io(5), then).expect("there is room");
        futures.push(handle.submit(drops.io(6)));
        drop(runtime);
        let why = futures.into_iter().map(|it| block_on(it).expect_err("it ended").why());
        let (closed, lost) = (SubmitErrorKind::Closed, SubmitErrorKind::Lost);
        assert_eq!(Vec::from_iter(why), [lost, lost, closed, closed, closed, closed]);
        assert_eq!(called.recv(), Ok(false));
        assert_eq!((drops.count(), keeper.inside()), (5, 2), "the device has two");
        let late = block_on(handle.submit(drops.io(7))).expect_err("it is closed");
        assert_eq!(late.why(), closed);
        drop((late, reactor));
        keeper.let_go(2);
        until(|| service.client().is_ok());
        assert_eq!(drops.count(), 8, "the device has given them back");
    }
}

#[test]
fn a_runtime_that_has_ended_is_no_place_for_a_reactor() {
    let runtime = workers(1);
    let handle = runtime.handle().clone();
    drop(runtime);
    let service = null::<u64>("null", |_| {});
    match service.reactor_on(&handle) {
        Err(ReactorError::Descriptor(_)) => {}
        Err(error) => panic!("{error}"),
        Ok(reactor) => {
            let answer = block_on(reactor.handle().submit(read(1))).expect_err("no task runs");
            assert_eq!(answer.why(), SubmitErrorKind::Closed);
        }
    }
}

#[test]
fn when_a_device_panics_everything_is_answered() {
    let runtime = workers(2);
    let (service, keeper) = gate(2, PumpMode::Inline);
    let reactor = on(&runtime, &service);
    let handle = reactor.handle();
    let held = handle.submit(read(1));
    until(|| keeper.inside() == 1);
    let panics = handle.submit(Io { sector: POISON, ..read(2) });
    for (future, n) in [(panics, 2), (held, 1)] {
        let done = block_on(future).expect("the device gives it back");
        assert_eq!((done.payload, done.result), (n, Err(IoError::POISONED)));
    }
    drop(reactor);
    assert!(service.is_poisoned() && handle.try_submit(read(3)).is_err());
}

#[test]
fn an_io_can_be_cancelled_wherever_it_waits() {
    let runtime = workers(2);
    // A device of depth 1, so that the second I/O waits in the scheduler; credit for two and places for four.
    let (service, keeper) = gate_with(2, PumpMode::Inline, |shape| shape.hw_queue_depth = 1);
    let reactor = on(&runtime, &service);
    let handle = reactor.handle();
    let mut futures = vec![handle.submit(read(0))];
    until(|| keeper.inside() == 1);
    futures.push(handle.submit(read(100)));
    until(|| service.stats().submitted == 2);
    let (sent, called) = channel();
    let then = move |answer: blkmq_runtime::Answer<u64>| {
        sent.send(answer.expect("the reactor is there").result).expect("the test waits");
    };
    handle.call(read(200), then).expect("there is room");
    futures.extend((3..7).map(|n| handle.submit(read(n * 100))));
    handle.cancel(200);
    assert_eq!(called.recv(), Ok(CANCELLED), "of the inbox");
    for n in [5, 3, 1] {
        futures[n].cancel();
        assert_eq!(block_on(futures.remove(n)).expect("an answer").result, CANCELLED);
    }
    keeper.let_go(3);
    for future in futures {
        assert_eq!(block_on(future).expect("an answer").result, Ok(()));
    }
}

#[test]
fn permits_are_granted_in_order_and_withdrawn_at_the_end() {
    let runtime = workers(2);
    let (service, keeper) = gate(1, PumpMode::Inline);
    let reactor = on(&runtime, &service);
    let handle = reactor.handle();
    let io = handle.submit(read(0));
    until(|| keeper.inside() == 1);
    let permits = [(); 2].map(|()| block_on(handle.reserve()).expect("two places"));
    let [next, last] = [handle.reserve(), handle.reserve()];
    assert_eq!(handle.try_submit(read(9)).expect_err("full").why, Unavailable::Full { most: 2 });
    let [first, second] = permits;
    drop(first);
    let next = block_on(next).expect("the place of the first");
    let kept = [second, next].map(|permit| permit.submit(read(1)).expect("it was promised"));
    // The inbox is full again; it has room once the device has finished a request.
    keeper.let_go(1);
    let last = block_on(last).expect("a place");
    keeper.let_go(2);
    for future in kept.into_iter().chain([io]) {
        assert_eq!(block_on(future).expect("it was taken").result, Ok(()));
    }
    drop(reactor);
    assert_eq!(last.submit(read(2)).expect_err("it is closed").why, Unavailable::Closed);
    assert!(block_on(handle.reserve()).is_err());
}

/// Regression test: an I/O that the queue refused was answered only with the next event, so that a task alone waited
/// for ever.
#[test]
fn an_io_that_is_refused_is_answered_without_another_event() {
    let runtime = workers(2);
    let service = null::<u64>("null", |config| config.submitters = 2);
    let reactor = on(&runtime, &service);
    let beyond = Io { sector: u64::MAX, ..read(7) };
    let error = block_on(reactor.handle().submit(beyond)).expect_err("beyond the end");
    assert!(matches!(error.why(), SubmitErrorKind::Refused(_)), "{error}");
}
