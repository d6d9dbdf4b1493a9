//! Clients with their own lanes: each sleeps on its ring, and is woken for requests that other threads pick.

use super::disk::{Fault, Kind};
use super::model::{Load, Model, io};
use crate::Client;
use crate::planted::Planted;
use crate::port::model::thread;
use blkmq_core::{Instant, Nanos};
use blkmq_sched::{bfq, deadline};

const ONE_BY_ONE: &[Load] = &[Load::new(2, 1), Load::new(2, 1), Load::new(2, 1)];
const SEVERAL: &[Load] = &[Load { least: 2, ..Load::new(4, 2) }, Load::new(4, 3)];

/// Fewer tags than I/Os: requests wait in the elevator for completions of other clients.
const SHORT: Model = Model::new(301, Kind::Lanes(None), ONE_BY_ONE);

#[test]
fn shuttle_owners_wait_for_tags() {
    SHORT.check();
}

#[test]
fn shuttle_owners_wait_for_tags_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 302, ..SHORT }.check();
}

#[test]
fn shuttle_owners_wait_for_tags_bfq() {
    Model { scheduler: &bfq::FACTORY, seed: 303, drift: true, ..SHORT }.check();
}

#[test]
fn shuttle_owners_wait_for_their_own() {
    Model { hw_queue_depth: 4, seed: 304, ..SHORT }.check();
}

#[test]
fn shuttle_owners_wait_for_several() {
    let model = Model { hw_queue_depth: 2, clients: SEVERAL, seed: 305, ..SHORT };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

/// A client computes with a request at the device. It has the only tag, which is freed when other clients check its
/// lane.
pub(super) const AWAY: Model = Model {
    clients: &[Load { computes: LONG, ..Load::new(1, 1) }, Load::new(2, 1), Load::new(2, 1)],
    seed: 306,
    ..SHORT
};
/// Longer than the first check of all lanes, and shorter than the second.
const LONG: Nanos = Nanos::from_millis(10);

fn the_others_get_on(model: &Model) {
    others_get_on(model, Load::wait_alone);
}

/// The clients that do not compute end before the one that does. They wait by `run`.
pub(super) fn others_get_on(model: &Model, run: fn(&Load, Client<u64>)) {
    let stage = model.stage();
    let mut threads = Vec::new();
    for load in model.clients {
        let client = stage.service.client().expect("the queue was built for as many");
        let clock = client.clock();
        threads.push(thread::spawn(move || {
            run(load, client);
            clock.now()
        }));
    }
    let ends = threads.into_iter().map(|it| it.join().expect("a panic ends the schedule"));
    let ends: Vec<Instant> = ends.collect();
    let after_away = ends[1..].iter().any(|end| *end >= Instant::ZERO + LONG);
    assert!(!after_away, "clients wait for one that computes: {ends:?}");
    // Each check by two clients collects all completions so far.
    assert!(stage.world.timeouts() <= 4, "{} looks", stage.world.timeouts());
    stage.end(5);
}

#[test]
fn shuttle_an_owner_that_computes_keeps_no_tag() {
    AWAY.explore(the_others_get_on);
}

#[test]
fn shuttle_an_owner_that_computes_keeps_no_tag_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 307, ..AWAY }.explore(the_others_get_on);
}

#[test]
#[should_panic(expected = "wait for one that computes")]
fn shuttle_planted_owners_that_look_at_their_own_lane_only() {
    Model { planted: Some(Planted::LooksAtItsOwn), ..AWAY }.explore(the_others_get_on);
}

/// Time-outs at any moment do no harm.
#[test]
fn shuttle_owners_with_timeouts_at_any_moment() {
    Model { drift: true, seed: 308, ..AWAY }.check();
}

/// One client has the only tag and computes; the other waits for a limited time.
fn a_wait_ends_at_its_deadline(model: &Model) {
    let stage = model.stage();
    let first = stage.service.client().expect("one of two");
    let mut second = stage.service.client().expect("the other");
    let away = model.clients[0];
    let threads = [
        thread::spawn(move || away.wait_alone(first)),
        thread::spawn(move || {
            second.push(io(0)).expect("there is credit");
            let deadline = Instant::ZERO + Nanos::from_millis(1);
            let in_time = second.wait_until(deadline, 1, 1, |_| {});
            let now = second.clock().now();
            assert!(in_time == 1 || now == deadline, "it ended at {now:?}");
            assert_eq!(in_time + second.wait(1, 1, |_| {}), 1);
        }),
    ];
    threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
    stage.end(2);
}

#[test]
fn shuttle_a_wait_ends_at_its_deadline() {
    const TWO: &[Load] = &[Load { computes: LONG, ..Load::new(1, 1) }, Load::new(1, 1)];
    Model { clients: TWO, seed: 309, ..SHORT }.explore(a_wait_ends_at_its_deadline);
}

/// The policy changes while clients wait.
fn the_policy_changes(model: &Model) {
    let stage = model.stage();
    let mut threads = Vec::new();
    for load in model.clients {
        let client = stage.service.client().expect("the queue was built for as many");
        threads.push(thread::spawn(move || load.wait_alone(client)));
    }
    for policy in ["mq-deadline", "none"] {
        stage.service.set_attribute("queue/scheduler", policy).expect("it is one");
    }
    threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
    stage.end(6);
}

#[test]
fn shuttle_owners_wait_while_the_policy_changes() {
    Model { seed: 310, ..SHORT }.explore(the_policy_changes);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_owners_that_sleep_without_a_look() {
    Model { planted: Some(Planted::SleepsWithoutALook), ..SHORT }.check();
}

/// A turn of another thread, which saw that the owner was away, takes the wake-up for it, between the owner's last
/// check and its sleep. Regression test: the owner slept for ever, because the wake-up's mark was gone.
#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_turn_that_takes_calls_to_others() {
    Model { kind: Kind::Lanes(Some(Fault::TakesCalls)), ..SHORT }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_berth_that_forgets_early_calls() {
    Model { kind: Kind::Lanes(Some(Fault::ForgetsEarlyCalls)), ..SHORT }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_sleep_that_leaves_entries() {
    Model { kind: Kind::Lanes(Some(Fault::LeavesEntries)), ..SHORT }.check();
}
