//! Few threads for many sleepers: clients of one device, of which few watch it and wake the others; and pump threads,
//! each of which sleeps on its bell and on the device, and wakes the clients.

use super::disk::Kind;
use super::model::{Load, Model};
use crate::planted::Planted;
use blkmq_engine::PumpMode;
use blkmq_sched::deadline;

const THREE: &[Load] = &[Load::new(2, 1), Load::new(2, 1), Load::new(2, 1)];
const FOUR: &[Load] = &[Load::new(1, 1), Load::new(2, 1), Load::new(1, 1), Load::new(2, 2)];

/// A tag for each I/O, and one CPU: one client watches at a time.
const DEEP: Model = Model { hw_queue_depth: 4, ..Model::new(401, Kind::Watched, THREE) };
/// Fewer tags than I/Os.
const SHORT: Model = Model { hw_queue_depth: 1, seed: 402, ..DEEP };

#[test]
fn shuttle_clients_share_a_device() {
    DEEP.check();
}

#[test]
fn shuttle_clients_share_a_device_and_wait_for_tags() {
    SHORT.check();
}

#[test]
fn shuttle_clients_share_a_device_and_wait_for_tags_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 403, ..SHORT }.check();
}

/// Two may watch at a time, unless another one sleeps.
#[test]
fn shuttle_clients_share_a_device_on_two_cpus() {
    Model { cpus: 2, clients: FOUR, seed: 404, ..DEEP }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_client_that_leaves_its_duty() {
    Model { planted: Some(Planted::ForgetsDuty), ..DEEP }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_client_that_sleeps_without_a_look() {
    Model { planted: Some(Planted::SleepsWithoutALook), ..SHORT }.check();
}

const TWO: &[Load] = &[Load::new(2, 1), Load::new(3, 2)];

const PUMPED: Model = Model { pump: PumpMode::Thread, ..Model::new(701, Kind::Watched, TWO) };

#[test]
fn shuttle_clients_wait_for_a_pump_thread() {
    PUMPED.check();
}

#[test]
fn shuttle_clients_wait_for_a_pump_thread_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, hw_queue_depth: 2, seed: 702, ..PUMPED }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_pump_threads_that_are_called_before_they_may_go() {
    Model { planted: Some(Planted::StopsAfterTheCall), ..PUMPED }.check();
}
