//! A reactor: its thread sleeps on its bell with nothing in flight, and otherwise in its client. Callers wake it.

use crate::planted::Planted;
use crate::port::model::{World, thread, world};
use crate::shuttle_tests::{Kind, Load, Model, SLEEPY, Stage, io};
use crate::{Handle, Service, Submitted};
use blkmq_core::{Instant, IoError, Nanos};
use blkmq_device::{MachineShape, registry};
use blkmq_engine::Config;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// The reactor has the only client.
const ALONE: &[Load] = &[Load::new(0, 2)];
/// A client that computes, and a reactor or a blocking client.
const BESIDE: &[Load] = &[Load::new(0, 1), Load::new(0, 1)];

const LANE: Model = Model { hw_queue_depth: 2, ..Model::new(601, Kind::Lanes(None), ALONE) };
const WATCHED: Model = Model { kind: Kind::Watched, seed: 602, ..LANE };

/// Time passes only while all threads sleep, so a thread that computes for this long finds them asleep.
const A_WHILE: Nanos = Nanos::from_micros(1);

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the answer, on an executor that parks.
fn wait(submitted: Submitted<u64>) -> Result<(), IoError> {
    let mut submitted = pin!(submitted);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match submitted.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer.expect("the reactor is there").result,
            Poll::Pending => crate::port::park(None),
        }
    }
}

/// One caller waits for each of its I/Os, another one for two at a time.
fn callers(handle: &Handle<u64>) -> [thread::JoinHandle<()>; 2] {
    let (one, other) = (handle.clone(), handle.clone());
    [
        thread::spawn(move || {
            for n in 0..2 {
                assert_eq!(wait(one.submit(io(n))), Ok(()));
            }
        }),
        thread::spawn(move || {
            let both = [other.submit(io(8)), other.submit(io(9))];
            both.into_iter().for_each(|it| assert_eq!(wait(it), Ok(())));
        }),
    ]
}

/// Callers submit, wait, and end; then the reactor is closed.
fn answers_come(model: &Model) {
    let stage = model.stage();
    let reactor = stage.service.reactor().expect("the queue was built for one");
    stage.world.compute(A_WHILE);
    let threads = callers(&reactor.handle());
    threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
    drop(reactor);
    stage.check_timeouts();
    stage.end(4);
}

#[test]
fn shuttle_a_reactor_on_its_lane() {
    LANE.explore(answers_come);
}

#[test]
fn shuttle_a_reactor_on_a_watched_device() {
    WATCHED.explore(answers_come);
}

/// A device without a descriptor, whose events have times: the reactor parks.
fn answers_come_to_a_thread_that_parks(_: &Model) {
    let world = World::begin(1, false);
    let machine = MachineShape { cpus: 1, nodes: 1 };
    let device = registry::parse("null,irqmode=2,completion_nsec=100000", &machine);
    let config = device.expect("it is a device").config();
    let mut service = Service::start(Config { depth: 2, ..config }).expect("a valid queue");
    service.set_waiting(SLEEPY);
    let reactor = service.reactor().expect("the queue was built for one");
    let threads = callers(&reactor.handle());
    threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
    drop(reactor);
    assert_eq!(service.stats().completed, 4);
    // The time of one I/O after the other, plus yields.
    assert!(world.now() < Instant::ZERO + Nanos::from_micros(600), "it ended at {:?}", world.now());
}

#[test]
fn shuttle_a_reactor_that_parks() {
    Model { seed: 606, ..LANE }.explore(answers_come_to_a_thread_that_parks);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_reactor_that_enrols_after_its_look() {
    let model = Model { planted: Some(Planted::EnrolsLate), seed: 606, ..LANE };
    model.explore(answers_come_to_a_thread_that_parks);
}

/// A thread that waits for no answer closes the reactor.
fn closes(model: &Model) {
    let stage = model.stage();
    let reactor = stage.service.reactor().expect("the queue was built for one");
    let submitted = reactor.handle().submit(io(0));
    drop(reactor);
    assert_eq!(wait(submitted), Ok(()));
    stage.check_timeouts();
    stage.end(1);
}

#[test]
fn shuttle_a_reactor_that_is_closed_answers_first() {
    LANE.explore(closes);
    Model { seed: 603, ..WATCHED }.explore(closes);
}

/// An idle reactor is woken without a reason, and sleeps again.
///
/// A wake-up is a completion on the reactor's lane. Regression test: an idle reactor made no turn there, so that a late
/// wake-up kept it from sleeping and cost a CPU until its next I/O. The lack of a first turn, which asks for wake-ups,
/// had the same effect.
fn is_called_for_nothing(model: &Model) {
    let stage = model.stage();
    let reactor = stage.service.reactor().expect("the queue was built for one");
    let handle = reactor.handle();
    let caller = thread::spawn(move || {
        let submitted = handle.submit(io(0));
        handle.call_for_nothing();
        assert_eq!(wait(submitted), Ok(()));
    });
    caller.join().expect("a panic ends the schedule");
    stage.world.compute(A_WHILE);
    drop(reactor);
    stage.check_timeouts();
    stage.end(1);
}

#[test]
fn shuttle_a_reactor_that_is_called_for_nothing() {
    LANE.explore(is_called_for_nothing);
    WATCHED.explore(is_called_for_nothing);
}

/// Begins a schedule in which a client has the only tag, and the disk completes nothing.
fn without_tags(model: &Model) -> (Stage, crate::Client<u64>) {
    let stage = model.stage();
    stage.disk.rest();
    let mut away = stage.service.client().expect("one of two");
    away.push(io(0)).expect("there is credit");
    away.flush();
    (stage, away)
}

/// A reactor without credit notices a cancellation without checking all lanes.
fn a_caller_cancels(model: &Model) {
    let (stage, mut away) = without_tags(model);
    let reactor = stage.service.reactor().expect("the other of two");
    let handle = reactor.handle();
    let caller = thread::spawn(move || {
        let submitted = handle.submit(io(1));
        world().compute(A_WHILE);
        submitted.cancel();
        assert_eq!(wait(submitted), Err(IoError::CANCELLED));
    });
    caller.join().expect("a panic ends the schedule");
    drop(reactor);
    stage.disk.work();
    assert_eq!(away.wait(1, 1, |_| {}), 1);
    stage.check_timeouts();
    stage.end_at_rest();
}

/// Like [`a_caller_cancels`], for a blocking call.
fn a_canceller_cancels(model: &Model) {
    let (stage, mut away) = without_tags(model);
    let mut blocking = stage.service.blocking().expect("the other of two");
    let canceller = blocking.canceller();
    let caller = thread::spawn(move || {
        let (result, _) = blocking.call(io(1)).expect("the queue takes it");
        assert_eq!(result, Err(IoError::CANCELLED));
    });
    stage.world.compute(A_WHILE);
    canceller.cancel();
    caller.join().expect("a panic ends the schedule");
    stage.disk.work();
    assert_eq!(away.wait(1, 1, |_| {}), 1);
    stage.check_timeouts();
    stage.end_at_rest();
}

const AWAY: Model = Model { clients: BESIDE, hw_queue_depth: 1, seed: 604, ..LANE };

#[test]
fn shuttle_a_reactor_without_credit_hears_of_a_cancel() {
    AWAY.explore(a_caller_cancels);
}

#[test]
fn shuttle_a_blocking_call_hears_of_a_cancel() {
    Model { seed: 605, ..AWAY }.explore(a_canceller_cancels);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_reactor_without_credit_that_does_not_say_that_it_parks() {
    Model { planted: Some(Planted::ParksSilently), ..AWAY }.explore(a_caller_cancels);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_canceller_that_does_not_wake_the_client() {
    Model { planted: Some(Planted::CancelsInSilence), ..AWAY }.explore(a_canceller_cancels);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_reactor_that_does_not_say_that_it_sleeps() {
    Model { planted: Some(Planted::SleepsSilently), ..LANE }.explore(answers_come);
}

/// The bell stays readable, and the thread does not sleep.
#[test]
#[should_panic(expected = "max_steps")]
fn shuttle_planted_an_idle_reactor_that_takes_no_notice_of_calls() {
    Model { planted: Some(Planted::KeepsCalls), ..LANE }.explore(is_called_for_nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_caller_that_does_not_wake_the_reactor() {
    Model { planted: Some(Planted::PutsInSilently), ..WATCHED }.explore(answers_come);
}
