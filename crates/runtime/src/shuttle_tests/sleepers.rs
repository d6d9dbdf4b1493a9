//! Models of sleepers: clients with their own lanes, clients of one device, pump threads, and clients whose threads
//! sleep outside. A client with a lane sleeps on its ring, and is woken for requests that other threads pick. Of the
//! clients of one device, few watch it and wake the others. A thread outside sleeps on a descriptor that is readable
//! while there is work.

use crate::planted::Planted;
use crate::port::model::thread;
use crate::port::poll;
use crate::shuttle_tests::{Fault, Kind, Load, Model, io};
use crate::{Client, Sleep, wait_any};
use blkmq_core::{Instant, Nanos};
use blkmq_engine::{Completion, PumpMode};
use blkmq_sched::{bfq, deadline};
use nix::poll::{PollFd, PollFlags};

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

const ONE_BY_ONE: &[Load] = &[Load::new(2, 1), Load::new(2, 1), Load::new(2, 1)];

const SEVERAL: &[Load] = &[Load { least: 2, ..Load::new(4, 2) }, Load::new(4, 3)];

/// Fewer tags than I/Os: requests wait in the elevator for completions of other clients.
const SHORT_LANES: Model = Model::new(301, Kind::Lanes(None), ONE_BY_ONE);

#[test]
fn shuttle_owners_wait_for_tags() {
    SHORT_LANES.check();
}

#[test]
fn shuttle_owners_wait_for_tags_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 302, ..SHORT_LANES }.check();
}

#[test]
fn shuttle_owners_wait_for_tags_bfq() {
    Model { scheduler: &bfq::FACTORY, seed: 303, drift: true, ..SHORT_LANES }.check();
}

#[test]
fn shuttle_owners_wait_for_their_own() {
    Model { hw_queue_depth: 4, seed: 304, ..SHORT_LANES }.check();
}

#[test]
fn shuttle_owners_wait_for_several() {
    let model = Model { hw_queue_depth: 2, clients: SEVERAL, seed: 305, ..SHORT_LANES };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

/// A client computes with a request at the device. It has the only tag, which is freed when other clients check its
/// lane.
pub(super) const AWAY: Model = Model {
    clients: &[Load { computes: LONG, ..Load::new(1, 1) }, Load::new(2, 1), Load::new(2, 1)],
    seed: 306,
    ..SHORT_LANES
};

/// Longer than the first check of all lanes, and shorter than the second.
const LONG: Nanos = Nanos::from_millis(10);

fn the_others_get_on(model: &Model) {
    others_get_on(model, Load::wait_alone);
}

/// The clients that do not compute end before the one that does. They wait by `run`.
fn others_get_on(model: &Model, run: fn(&Load, Client<u64>)) {
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
    Model { clients: TWO, seed: 309, ..SHORT_LANES }.explore(a_wait_ends_at_its_deadline);
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
    Model { seed: 310, ..SHORT_LANES }.explore(the_policy_changes);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_owners_that_sleep_without_a_look() {
    Model { planted: Some(Planted::SleepsWithoutALook), ..SHORT_LANES }.check();
}

/// A turn of another thread, which saw that the owner was away, takes the wake-up for it, between the owner's last
/// check and its sleep. Regression test: the owner slept for ever, because the wake-up's mark was gone.
#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_turn_that_takes_calls_to_others() {
    Model { kind: Kind::Lanes(Some(Fault::TakesCalls)), ..SHORT_LANES }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_berth_that_forgets_early_calls() {
    Model { kind: Kind::Lanes(Some(Fault::ForgetsEarlyCalls)), ..SHORT_LANES }.check();
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_sleep_that_leaves_entries() {
    Model { kind: Kind::Lanes(Some(Fault::LeavesEntries)), ..SHORT_LANES }.check();
}

const LANES: Model = Model::new(501, Kind::Lanes(None), THREE);

const WATCHED: Model = Model::new(502, Kind::Watched, THREE);

/// The loop of a program that watches other descriptors as well.
fn wait(client: &mut Client<u64>, _: u32, take: &mut dyn FnMut(Completion<u64>)) -> u32 {
    client.event_fd().expect("there are descriptors left");
    loop {
        let got = client.reap(u32::MAX, &mut *take);
        if got > 0 {
            return got;
        }
        match client.prepare_wait() {
            Sleep::No => shuttle::thread::yield_now(),
            Sleep::Until(at) => {
                let left = at.map(|at| at - client.clock().now());
                let fd = client.event_fd().expect("it has been made");
                poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], left).expect("it is one");
                client.end_wait();
            }
        }
    }
}

/// Like [`wait`], but by [`wait_any`].
fn any(client: &mut Client<u64>, _: u32, take: &mut dyn FnMut(Completion<u64>)) -> u32 {
    let first = wait_any(&mut [&mut *client], Instant::MAX).expect("there are descriptors left");
    assert_eq!(first, Some(0));
    client.reap(u32::MAX, take)
}

/// All clients wait outside but the last one, which uses its own wait.
fn wait_outside(model: &Model) {
    let stage = model.stage();
    let mut threads = Vec::new();
    for (n, load) in model.clients.iter().enumerate() {
        let client = stage.service.client().expect("the queue was built for as many");
        threads.push(thread::spawn(move || match n {
            0 => load.run(client, wait),
            1 => load.run(client, any),
            _ => load.wait_alone(client),
        }));
    }
    threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
    stage.check(model);
}

#[test]
fn shuttle_clients_wait_outside_on_their_lanes() {
    LANES.explore(wait_outside);
}

#[test]
fn shuttle_clients_wait_outside_on_their_lanes_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 503, ..LANES }.explore(wait_outside);
}

#[test]
fn shuttle_clients_wait_outside_on_a_shared_device() {
    WATCHED.explore(wait_outside);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_client_that_sleeps_outside_unattended() {
    Model { planted: Some(Planted::SleepsUnattended), ..LANES }.explore(wait_outside);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_client_that_sleeps_outside_unannounced() {
    let planted = Some(Planted::SleepsOutsideUnannounced);
    Model { planted, ..WATCHED }.explore(wait_outside);
}

/// A ring between the last check and the sleep is lost.
#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_client_that_silences_its_bell_after_its_look() {
    Model { planted: Some(Planted::SilencesLate), ..WATCHED }.explore(wait_outside);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_planted_a_turn_that_takes_calls_to_those_outside() {
    let kind = Kind::Lanes(Some(Fault::TakesCalls));
    Model { kind, ..LANES }.explore(wait_outside);
}

/// A client that waits outside finds the completions that a computing client holds. Regression test: it had no time for
/// its next check, and waited as long as the other client computed.
fn those_outside_get_on(model: &Model) {
    others_get_on(model, |load, client| load.run(client, wait));
}

#[test]
fn shuttle_clients_outside_wait_for_no_client_that_computes() {
    Model { seed: 504, ..AWAY }.explore(those_outside_get_on);
}

#[test]
#[should_panic(expected = "wait for one that computes")]
fn shuttle_planted_clients_outside_that_look_at_their_own_lane_only() {
    Model { planted: Some(Planted::LooksAtItsOwn), ..AWAY }.explore(those_outside_get_on);
}
