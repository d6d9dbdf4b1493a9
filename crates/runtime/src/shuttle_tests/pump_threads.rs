//! Pump threads: each sleeps on its bell and on the device, and wakes the clients.

use super::disk::Kind;
use super::model::{Load, Model};
use crate::planted::Planted;
use blkmq_engine::PumpMode;
use blkmq_sched::deadline;

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
