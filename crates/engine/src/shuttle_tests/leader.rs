//! The leader of an elevator may stop and leave at any moment (`follow.rs`) without stranding an I/O.

use super::device::Script;
use super::model::{Client, Leaves, Model};
use crate::Access;
use crate::planted::Planted;
use blkmq_core::Nanos;

/// A client that submits steadily, in small plugs, so that the other one follows it, and that leaves in between.
const LEADER: Client = Client::new(6, 2, 1);
const FOLLOWER: Client = Client::new(2, 1, 1);
const LED: &[Client] = &[LEADER, FOLLOWER, FOLLOWER];

const MEDDLER: Client = Client { leaves: Leaves::AfterAPoll, ..Client::new(4, 2, 1) };
const MEDDLED: &[Client] = &[MEDDLER, Client::new(3, 1, 1)];

/// A device that refuses with RESOURCE; the leader may set the timer for other clients.
const REFUSING: Model = Model {
    device: Script { resource: 3, ..Script::INLINE },
    most_time: Nanos::from_millis(30),
    schedules: 6000,
    ..Model::new(51, LED)
};

const MEDDLING: Model = Model {
    device: Script { resource: 4, inline: 3, ..Script::LATER },
    most_time: Nanos::from_millis(30),
    ..Model::new(54, MEDDLED)
};

#[test]
fn shuttle_a_leader_goes_away() {
    Model::new(52, LED).check();
}

#[test]
fn shuttle_a_leader_goes_away_from_a_slow_device() {
    let most_time = Nanos(10 * Script::LATER.service.0);
    Model { device: Script::LATER, most_time, ..Model::new(53, LED) }.check();
}

#[test]
fn shuttle_a_leader_goes_away_and_leaves_a_timer() {
    REFUSING.check();
}

/// Regression test: a thread polled without I/Os in flight, gave another thread's request to the device, and left. The
/// other thread slept without a deadline, because the device had no request when it went to sleep.
#[test]
fn shuttle_a_thread_polls_for_others_and_goes_away() {
    MEDDLING.check();
}

#[test]
fn shuttle_a_thread_polls_for_others_and_goes_away_mutex() {
    Model { access: Access::Mutex, seed: 55, ..MEDDLING }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_leader_that_hands_nothing_on() {
    Model { planted: Some(Planted::ForgetsToWakeSuccessor), ..REFUSING }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_thread_that_polls_for_others_and_hands_nothing_on() {
    Model { planted: Some(Planted::ForgetsToWakeSuccessor), ..MEDDLING }.check();
}

/// Another thread has relied on the alarm of a sleeper that had already woken and left.
#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_sleeper_that_keeps_its_alarm() {
    Model { planted: Some(Planted::KeepsAlarm), ..MEDDLING }.check();
}
