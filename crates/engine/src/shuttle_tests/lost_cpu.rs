//! A thread that loses its CPU between two steps holds up no other thread's I/O (decision 0025).
//!
//! The first thread that reaches the place stays there until the other client has all its I/Os and has left. Stops
//! inside a pass or a turn are not modelled, because no other thread could take over there.

use super::model::{Client, Model};
use crate::planted::{Planted, Stop};
use blkmq_sched::deadline;

/// Each client may leave its I/Os to the other. The device takes one at a time, so requests wait for its tag.
const TWO: &[Client] = &[Client::new(6, 2, 1), Client::new(6, 2, 1)];

const SENT: Model = Model { stop: Some(Stop::BeforePump), ..Model::new(61, TWO) };
const FREED: Model = Model { stop: Some(Stop::BeforePass), ..Model::new(62, TWO) };

#[test]
fn shuttle_another_thread_pumps_what_a_runner_without_a_cpu_has_sent() {
    SENT.check();
}

#[test]
fn shuttle_another_thread_pumps_what_a_runner_without_a_cpu_has_sent_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 63, ..SENT }.check();
}

#[test]
fn shuttle_another_thread_makes_the_pass_for_what_a_pump_gave_back() {
    FREED.check();
}

#[test]
fn shuttle_another_thread_makes_the_pass_for_what_a_pump_gave_back_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 64, ..FREED }.check();
}

#[test]
#[should_panic(expected = "lies with a thread that has no CPU")]
fn shuttle_planted_nobody_looks_at_outboxes() {
    Model { planted: Some(Planted::LeavesOutboxes), ..SENT }.check();
}

#[test]
#[should_panic(expected = "lies with a thread that has no CPU")]
fn shuttle_planted_a_pump_that_tells_nobody_else() {
    Model { planted: Some(Planted::LeavesPasses), ..FREED }.check();
}
