//! A lane to the device for each submitter: its completions wake it, and it is woken for requests that other submitters
//! pick for it.

use super::device::Script;
use super::model::{Client, Model};
use crate::planted::Planted;
use crate::{PumpMode, WriteCache};
use blkmq_core::{IoFlags, Nanos};
use blkmq_sched::{bfq, deadline, kyber};

/// One I/O at a time each: every client sleeps after every I/O.
const SLEEPY: &[Client] = &[Client::new(4, 1, 1), Client::new(4, 1, 1), Client::new(4, 1, 1)];
const TWO: &[Client] = &[Client::new(4, 2, 1), Client::new(4, 3, 3)];

/// Fewer tags than I/Os: requests wait for completions of other clients.
const SHORT: Model = Model {
    pump: PumpMode::Owner,
    hw_queue_depth: 1,
    device: Script::LATER,
    most_time: Nanos(12 * Script::LATER.service.0),
    ..Model::new(211, SLEEPY)
};

#[test]
fn shuttle_owners_are_called_for_requests_that_others_picked() {
    SHORT.check();
}

#[test]
fn shuttle_owners_are_called_for_requests_that_others_picked_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 212, ..SHORT }.check();
}

#[test]
fn shuttle_owners_are_called_for_requests_that_others_picked_kyber() {
    Model { scheduler: &kyber::FACTORY, seed: 213, ..SHORT }.check();
}

#[test]
fn shuttle_owners_are_called_for_requests_that_others_picked_bfq() {
    Model { scheduler: &bfq::FACTORY, seed: 214, ..SHORT }.check();
}

/// As many tags as I/Os, so none waits for another.
#[test]
fn shuttle_owners_are_woken_by_their_own_completions() {
    let most_time = Nanos(4 * Script::LATER.service.0);
    Model { hw_queue_depth: 4, most_time, seed: 215, ..SHORT }.check();
}

#[test]
fn shuttle_owners_of_several_requests_and_refusals() {
    let device = Script { room: 4, resource: 4, requeue: 3, ..Script::LATER };
    let model =
        Model { device, most_time: Nanos::from_millis(30), clients: TWO, seed: 216, ..SHORT };
    Model { hw_queue_depth: 3, drift: true, scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_owners_and_budgets() {
    LEAVING.check();
}

#[test]
fn shuttle_owners_whose_flushes_others_serve() {
    const DURABLE: Client = Client { flags: IoFlags::FUA, ..Client::new(3, 1, 1) };
    let cache = WriteCache::Back { fua: false };
    let clients = &[DURABLE, DURABLE];
    let model = Model { cache, clients, hw_queue_depth: 2, seed: 218, ..SHORT };
    Model { most_time: Nanos(40 * Script::LATER.service.0), ..model }.check();
}

#[test]
fn shuttle_owners_that_cancel() {
    const CANCELS: Client = Client { cancels: 2, ..Client::new(4, 2, 1) };
    Model { clients: &[CANCELS, CANCELS], seed: 219, ..SHORT }.check();
}

/// Budgets, which let requests leave in the order in which they came.
const LEAVING: Model = Model { hw_queue_depth: 4, budget: Some(1), seed: 217, ..SHORT };

/// A device that finishes a request at the second poll without signalling it.
const AWAY: Model = Model {
    device: Script { says: super::device::Says::Nothing, ..Script::LATER },
    clients: &[Client { goes_away: true, ..Client::new(2, 1, 1) }, Client::new(4, 1, 1)],
    most_time: Nanos(0),
    seed: 220,
    ..SHORT
};

#[test]
fn shuttle_an_owner_that_is_away_keeps_no_tag() {
    AWAY.check();
}

#[test]
#[should_panic(expected = "lies with a thread that has no CPU")]
fn shuttle_planted_a_client_that_looks_at_its_own_lane_only() {
    Model { planted: Some(Planted::LooksAtItsOwn), ..AWAY }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_request_that_its_owner_is_not_told_of() {
    Model { planted: Some(Planted::ForgetsOwner), ..SHORT }.check();
}

/// A lane frees the tag for which a request of another lane waits.
#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_mark_that_other_lanes_do_not_see() {
    Model { planted: Some(Planted::ForgetsRestart), ..SHORT }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_an_owner_that_is_not_told_to_look_earlier() {
    const BUSY: &[Client] = &[Client::new(6, 2, 1), Client::new(6, 2, 1), Client::new(6, 2, 1)];
    let model = Model { clients: BUSY, most_time: Nanos(60 * Script::LATER.service.0), ..LEAVING };
    Model { planted: Some(Planted::KeepsDeadline), schedules: 6000, ..model }.check();
}
