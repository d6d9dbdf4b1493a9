//! A parked submitter is woken for all work that is due to it, and in time.

use super::device::{Says, Script};
use super::model::{Client, Model};
use super::world::Bell;
use crate::planted::Planted;
use blkmq_core::Nanos;

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

/// A thread that is refused with RESOURCE sets a timer of 3 ms, and sleeps until then itself, unless another thread
/// does.
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
