//! Every submitted I/O completes once, at its own submitter, and nothing is left.

use super::device::{Says, Script};
use super::model::{Client, Model};
use crate::planted::Planted;
use blkmq_core::Nanos;
use blkmq_sched::deadline;

const TWO: &[Client] = &[Client::new(6, 4, 2), Client::new(6, 4, 2)];
const THREE: &[Client] = &[Client::new(4, 4, 2), Client::new(4, 2, 1), Client::new(4, 4, 4)];
/// Neighbouring I/Os, which merge in plugs and in the elevator.
const MERGEABLE: &[Client] =
    &[Client { stride: 8, ..Client::new(6, 6, 3) }, Client { stride: 8, ..Client::new(6, 6, 1) }];

/// Every fault, and every form of completion.
const MOODY: Script = Script {
    room: 1,
    resource: 5,
    dev_resource: 3,
    requeue: 7,
    requeue_tail: 0,
    lose: 0,
    inline: 2,
    service: Nanos(10_000),
    says: Says::When,
};

/// RESOURCE may strike at every attempt in a row and costs 3 ms each time.
const A_TIMER_EACH: Nanos = Nanos::from_millis(60);

#[test]
fn shuttle_two_submitters_inline() {
    Model::new(1, TWO).check();
}

#[test]
fn shuttle_three_submitters_inline_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, ..Model::new(2, THREE) }.check();
}

#[test]
fn shuttle_three_submitters_later() {
    // One at a time: twelve times the service time, if no thread waits longer than needed.
    let most_time = Nanos(12 * Script::LATER.service.0);
    Model { device: Script::LATER, most_time, ..Model::new(3, THREE) }.check();
}

#[test]
fn shuttle_three_submitters_and_a_moody_device() {
    let model = Model { device: MOODY, most_time: A_TIMER_EACH, ..Model::new(4, THREE) };
    model.check();
}

#[test]
fn shuttle_two_submitters_and_a_moody_device_mq_deadline() {
    let model = Model { device: MOODY, most_time: A_TIMER_EACH, ..Model::new(5, TWO) };
    Model { scheduler: &deadline::FACTORY, hw_queue_depth: 2, drift: true, ..model }.check();
}

#[test]
fn shuttle_a_device_that_cannot_tell() {
    let device = Script { says: Says::Nothing, inline: 3, dev_resource: 4, ..Script::LATER };
    Model { device, hw_queue_depth: 2, ..Model::new(6, THREE) }.check();
}

#[test]
fn shuttle_merging_while_slots_are_short() {
    let most_time = Nanos(12 * Script::LATER.service.0);
    let model = Model { device: Script::LATER, most_time, ..Model::new(7, MERGEABLE) };
    Model { nr_requests: Some(4), scheduler: &deadline::FACTORY, ..model }.check();
}

/// A single I/O for each client: schedules are short, so a larger part of them is explored.
const TINY: Model = Model { schedules: 10_000, ..Model::new(8, &[Client::new(1, 1, 1); 2]) };

/// The second client finds no slot while the slot of the first client is being returned.
#[test]
fn shuttle_tiny_inline() {
    TINY.check();
}

/// One client submits its second I/O while the other removes the refused request that blocked the way.
#[test]
fn shuttle_tiny_refused() {
    // The first request occupies the device for 10 us. Until then the second is refused; offered again, it is answered
    // immediately.
    let device = Script { room: 2, dev_resource: 2, inline: 3, ..Script::LATER };
    const CLIENTS: &[Client] = &[Client::new(1, 1, 1), Client::new(2, 1, 1)];
    let model = Model { device, clients: CLIENTS, most_time: Nanos(60_000), seed: 9, ..TINY };
    Model { nr_requests: Some(4), hw_queue_depth: 2, ..model }.check();
}

/// Each client finds the other's tag in use.
#[test]
fn shuttle_tiny_later() {
    let (device, most_time) = (Script::LATER, Nanos(2 * Script::LATER.service.0));
    Model { device, nr_requests: Some(4), most_time, seed: 10, ..TINY }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_run_that_loses_an_owed_pass() {
    Model { planted: Some(Planted::LosesOwedPass), ..Model::new(1, TWO) }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_an_elevator_that_does_not_ask_to_be_told() {
    let device = Script::LATER;
    Model { planted: Some(Planted::ForgetsRestart), device, ..Model::new(3, THREE) }.check();
}
