//! The *before*: an elevator under a lock. Slower, but it may lose nothing either.

use super::device::Script;
use super::model::{Client, Model};
use crate::planted::Planted;
use crate::{Access, PumpMode};
use blkmq_core::Nanos;
use blkmq_sched::{Scope, deadline};

const TWO: &[Client] = &[Client::new(4, 2, 1), Client::new(4, 4, 2)];
const THREE: &[Client] = &[Client::new(3, 3, 1), Client::new(3, 1, 1), Client::new(3, 2, 2)];

const SPIN: Model = Model { access: Access::Spin, ..Model::new(41, THREE) };
const LATER: Model =
    Model { device: Script::LATER, most_time: Nanos(9 * Script::LATER.service.0), ..SPIN };

#[test]
fn shuttle_spin_inline_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, ..SPIN }.check();
}

#[test]
fn shuttle_spin_later() {
    Model { seed: 42, ..LATER }.check();
}

#[test]
fn shuttle_mutex_later_mq_deadline() {
    let scheduler = &deadline::FACTORY;
    Model { access: Access::Mutex, scheduler, seed: 43, ..LATER }.check();
}

#[test]
fn shuttle_mutex_and_refusals() {
    let device = Script { resource: 5, dev_resource: 3, requeue: 4, inline: 2, ..Script::LATER };
    let model = Model { device, most_time: Nanos::from_millis(30), seed: 44, ..LATER };
    Model { access: Access::Mutex, hw_queue_depth: 2, clients: TWO, drift: true, ..model }.check();
}

#[test]
fn shuttle_mutex_one_budget_for_two_elevators() {
    let scope = Some(Scope::HwQueue);
    let model = Model { hw_queues: 2, budget: Some(1), scope, seed: 45, ..LATER };
    Model { access: Access::Mutex, ..model }.check();
}

#[test]
fn shuttle_mutex_one_tag_for_two_elevators() {
    let scope = Some(Scope::HwQueue);
    let model = Model { hw_queues: 2, shared_tags: true, scope, seed: 46, ..LATER };
    Model { access: Access::Mutex, ..model }.check();
}

#[test]
fn shuttle_spin_and_a_pump_thread() {
    let model = Model { pump: PumpMode::Thread, clients: TWO, seed: 47, ..LATER };
    model.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_spin_that_does_not_ask_to_be_told() {
    Model { planted: Some(Planted::ForgetsRestart), ..LATER }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_mutex_and_a_budget_that_comes_back_in_silence() {
    let scope = Some(Scope::HwQueue);
    let planted = Some(Planted::ForgetsBudgetWaiters);
    let model = Model { hw_queues: 2, budget: Some(1), scope, planted, ..LATER };
    Model { access: Access::Mutex, ..model }.check();
}
