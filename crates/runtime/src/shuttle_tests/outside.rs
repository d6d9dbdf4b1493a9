//! Clients whose threads sleep outside, on a descriptor that is readable while there is work.

use super::disk::{Fault, Kind};
use super::model::{Load, Model};
use super::owners::{AWAY, others_get_on};
use crate::planted::Planted;
use crate::port::{model::thread, poll};
use crate::{Client, Sleep, wait_any};
use blkmq_core::Instant;
use blkmq_engine::Completion;
use blkmq_sched::deadline;
use nix::poll::{PollFd, PollFlags};

const THREE: &[Load] = &[Load::new(2, 1), Load::new(2, 1), Load::new(2, 1)];

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
fn the_others_get_on(model: &Model) {
    others_get_on(model, |load, client| load.run(client, wait));
}

#[test]
fn shuttle_clients_outside_wait_for_no_client_that_computes() {
    Model { seed: 504, ..AWAY }.explore(the_others_get_on);
}

#[test]
#[should_panic(expected = "wait for one that computes")]
fn shuttle_planted_clients_outside_that_look_at_their_own_lane_only() {
    Model { planted: Some(Planted::LooksAtItsOwn), ..AWAY }.explore(the_others_get_on);
}
