//! A pump thread per hardware queue, and clients that only submit and wait.

use super::device::{Says, Script};
use super::model::{Client, Model};
use super::world::Bell;
use crate::PumpMode;
use blkmq_core::Nanos;
use blkmq_sched::{Scope, deadline};

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
