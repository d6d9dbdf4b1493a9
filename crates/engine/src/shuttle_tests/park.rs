//! Sleepers: a parked submitter is woken in time for all of its work; and so are clients that only submit and wait,
//! beside a pump thread per hardware queue.

use super::device::{Says, Script};
use super::model::{Client, Model};
use super::world::Bell;
use crate::PumpMode;
use crate::planted::Planted;
use blkmq_core::Nanos;
use blkmq_sched::{Scope, deadline};

/// One I/O at a time each: every client sleeps after every I/O.
const SLEEPY: &[Client] = &[Client::new(4, 1, 1), Client::new(4, 1, 1), Client::new(4, 1, 1)];

const LATER: Model = Model {
    device: Script::LATER,
    most_time: Nanos(12 * Script::LATER.service.0),
    ..Model::new(11, SLEEPY)
};

#[test]
fn shuttle_sleepers_are_woken_for_their_completions() {
    LATER.check();
}

/// A queue deeper than the device: refusals with DEV_RESOURCE, which set no timer.
#[test]
fn shuttle_sleepers_are_woken_when_there_is_room_again() {
    Model { hw_queue_depth: 4, seed: 12, ..LATER }.check();
}

/// A thread that is refused with RESOURCE sets a timer of 3 ms, and sleeps until then unless another thread does.
#[test]
fn shuttle_a_sleeper_has_the_timer() {
    let device = Script { resource: 4, inline: 1, ..Script::INLINE };
    // One attempt in four is refused: four refusals for twelve I/Os.
    Model { device, most_time: Nanos::from_millis(12), seed: 13, ..LATER }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_host_that_forgets_an_early_wake_up() {
    Model { bell: Bell::Forgets, ..LATER }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_device_that_forgets_to_say_when() {
    let device = Script { says: Says::Never, ..Script::LATER };
    Model { device, ..LATER }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_an_engine_that_looks_for_no_sleepers() {
    Model { planted: Some(Planted::ForgetsParked), ..LATER }.check();
}

const TWO: &[Client] = &[Client::new(4, 2, 1), Client::new(4, 3, 3)];

const THREADED: Model = Model {
    pump: PumpMode::Thread,
    device: Script::LATER,
    most_time: Nanos(8 * Script::LATER.service.0),
    ..Model::new(31, TWO)
};

#[test]
fn shuttle_a_pump_thread() {
    THREADED.check();
}

#[test]
fn shuttle_a_pump_thread_and_an_inline_device_mq_deadline() {
    let device = Script::INLINE;
    let model = Model { device, most_time: Nanos(0), seed: 32, ..THREADED };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_two_pump_threads_and_a_budget() {
    let model = Model { hw_queues: 2, budget: Some(1), seed: 33, ..THREADED };
    Model { scope: Some(Scope::HwQueue), ..model }.check();
}

#[test]
fn shuttle_a_pump_thread_and_refusals() {
    let device = Script { resource: 4, requeue: 3, ..Script::LATER };
    let model = Model { device, most_time: Nanos::from_millis(30), seed: 34, ..THREADED };
    Model { hw_queue_depth: 3, drift: true, ..model }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_pump_thread_that_forgets_an_early_call() {
    Model { bell: Bell::Forgets, ..THREADED }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_device_that_never_calls_its_pump_thread() {
    let device = Script { says: Says::Never, ..Script::LATER };
    Model { device, ..THREADED }.check();
}
