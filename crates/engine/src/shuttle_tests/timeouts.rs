//! Requests that a device loses, while other threads use the queue: each is answered once, and a thread handles it in
//! time.

use super::device::Script;
use super::model::{Client, Model};
use crate::planted::Planted;
use crate::{Access, PumpMode, WriteCache};
use blkmq_core::{IoFlags, Nanos};
use blkmq_sched::deadline;

const TIMEOUT: Nanos = Nanos::from_millis(1);

/// One in three attempts is lost. One of two lost requests is given up at its timeout, the other a timeout later.
const LOSES: Script = Script { room: 2, lose: 3, ..Script::LATER };

const ONE: &[Client] = &[Client::new(4, 2, 1)];
const TWO: &[Client] = &[Client::new(4, 2, 1), Client::new(3, 1, 1)];

/// A submitter and a pump thread.
const THREADED: Model = Model {
    pump: PumpMode::Thread,
    device: LOSES,
    timeout: TIMEOUT,
    retries: 2,
    most_time: Nanos::from_millis(20),
    ..Model::new(81, ONE)
};

/// Two submitters that also pump.
const INLINE: Model =
    Model { pump: PumpMode::Inline, clients: TWO, hw_queue_depth: 2, seed: 82, ..THREADED };

#[test]
fn shuttle_timeouts_and_a_pump_thread() {
    THREADED.check();
}

#[test]
fn shuttle_timeouts_and_two_submitters_who_pump() {
    INLINE.check();
    Model { retries: 0, scheduler: &deadline::FACTORY, seed: 83, ..INLINE }.check();
}

#[test]
fn shuttle_timeouts_under_locks() {
    for (seed, access) in [(84, Access::Spin), (85, Access::Mutex), (87, Access::Serialised)] {
        Model { access, seed, schedules: 1000, ..INLINE }.check();
        Model { access, seed, schedules: 1000, ..THREADED }.check();
    }
}

#[test]
fn shuttle_timeouts_of_flushes_and_requeues_to_the_tail() {
    const FUA: Client = Client { flags: IoFlags::FUA, ..Client::new(3, 1, 1) };
    let device = Script { lose: 4, requeue_tail: 5, ..LOSES };
    let model = Model { device, clients: &[FUA, FUA], most_time: Nanos::from_millis(60), ..INLINE };
    Model { cache: WriteCache::Back { fua: false }, retries: 9, seed: 86, ..model }.check();
}

#[test]
#[should_panic(expected = "is at the device already")]
fn shuttle_planted_a_request_that_was_given_up_and_is_still_expected() {
    Model { planted: Some(Planted::KeepsExpired), ..THREADED }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_timer_that_nobody_is_told_of() {
    Model { planted: Some(Planted::ForgetsTimer), ..THREADED }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_timer_that_two_submitters_are_not_told_of() {
    Model { planted: Some(Planted::ForgetsTimer), ..INLINE }.check();
}
