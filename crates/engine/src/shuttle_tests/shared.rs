//! Elevators that share budgets, driver tags, or tokens of their policy: one waits for resources that another returns.

use super::device::Script;
use super::model::{Client, Model};
use crate::planted::Planted;
use blkmq_core::Nanos;
use blkmq_sched::testkit::rationed;
use blkmq_sched::{Scope, deadline};

/// Consecutive submitters map to consecutive hardware queues.
const FOUR: &[Client] =
    &[Client::new(3, 2, 1), Client::new(3, 2, 2), Client::new(3, 1, 1), Client::new(3, 3, 1)];

const TWO_SHARDS: Model = Model {
    scope: Some(Scope::HwQueue),
    hw_queues: 2,
    device: Script::LATER,
    most_time: Nanos(12 * Script::LATER.service.0),
    ..Model::new(21, FOUR)
};

#[test]
fn shuttle_one_budget_for_two_elevators() {
    Model { budget: Some(1), ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_two_budgets_and_one_elevator_mq_deadline() {
    let scope = Some(Scope::Queue);
    let model = Model { budget: Some(2), scope, seed: 22, ..TWO_SHARDS };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_one_tag_for_two_elevators() {
    Model { shared_tags: true, seed: 23, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_shared_tags_and_budgets_and_an_inline_device() {
    let device = Script { inline: 2, dev_resource: 5, ..Script::LATER };
    let model = Model { device, shared_tags: true, budget: Some(1), seed: 24, ..TWO_SHARDS };
    // A refusal costs 10 us more.
    Model { hw_queue_depth: 2, most_time: Nanos(2 * TWO_SHARDS.most_time.0), ..model }.check();
}

/// A single I/O for each of two elevators: schedules are short, so a larger part of them is explored.
const TINY: Model = Model {
    schedules: 10_000,
    clients: &[Client::new(1, 1, 1); 2],
    most_time: Nanos(2 * Script::LATER.service.0),
    ..TWO_SHARDS
};

#[test]
fn shuttle_tiny_budget() {
    Model { budget: Some(1), device: Script::INLINE, most_time: Nanos(0), seed: 25, ..TINY }
        .check();
}

#[test]
fn shuttle_tiny_budget_later() {
    Model { budget: Some(1), seed: 26, ..TINY }.check();
}

#[test]
fn shuttle_tiny_shared_tag() {
    let device = Script::INLINE;
    Model { shared_tags: true, device, most_time: Nanos(0), seed: 27, ..TINY }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_budget_that_comes_back_in_silence() {
    let planted = Some(Planted::ForgetsBudgetWaiters);
    Model { planted, budget: Some(1), ..TWO_SHARDS }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_shared_tag_and_nobody_is_woken_for_it() {
    let planted = Some(Planted::ForgetsParked);
    Model { planted, shared_tags: true, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_one_token_for_two_elevators() {
    Model { scheduler: &rationed::FACTORY, seed: 28, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_one_token_for_four_elevators_of_a_deep_device() {
    let model = Model { scheduler: &rationed::FACTORY, hw_queues: 4, seed: 29, ..TWO_SHARDS };
    Model { hw_queue_depth: 4, ..model }.check();
}

#[test]
fn shuttle_tiny_token() {
    let device = Script::INLINE;
    Model { scheduler: &rationed::FACTORY, device, most_time: Nanos(0), seed: 30, ..TINY }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_token_that_comes_back_in_silence() {
    let planted = Some(Planted::ForgetsTokenWaiters);
    Model { planted, scheduler: &rationed::FACTORY, hw_queue_depth: 4, ..TWO_SHARDS }.check();
}
