//! The queue is reconfigured, frozen and quiesced while clients use it (`reconfiguration.rs`): no I/O submitted in the
//! meantime is stranded in the replaced queue.

use super::replan;
use super::world::World;
use crate::planted::Planted;
use crate::shuttle_tests::world::Script;
use crate::shuttle_tests::{Client, Meddle, Model, max};
use crate::{Access, InsertMode, Modes, Plan, PumpMode, Queue};
use blkmq_core::{GroupId, Nanos};
use blkmq_sched::{Scope, deadline, none};

const CLIENTS: &[Client] = &[Client::new(4, 2, 1), Client::new(3, 1, 1)];

/// The pause between two steps, so that time passes for devices that need it.
const PAUSE: Nanos = Nanos(100);
/// The most time of a model: shuttle may choose any number of pauses.
const MOST_TIME: Nanos = Nanos::from_millis(1);

fn pause(world: &World) {
    world.sleep(world.last_seat(), Some(world.now() + PAUSE));
}

fn change(queue: &Queue<u64>, world: &World, to: impl FnOnce(Plan) -> Plan) {
    let mut change = replan(&queue, to(queue.plan())).expect("there is one who changes it");
    while !change.step(world.now()) {
        pause(world);
    }
}

fn rebuild(queue: &Queue<u64>, world: &World) {
    change(queue, world, |plan| plan.scheduler(&deadline::FACTORY));
}

fn rebuild_twice(queue: &Queue<u64>, world: &World) {
    change(queue, world, |plan| Plan { nr_requests: Some(4), ..plan });
    change(queue, world, |plan| plan.scheduler(&none::FACTORY));
}

fn other_access(queue: &Queue<u64>, world: &World) {
    change(queue, world, |plan| Plan { access: Access::Mutex, ..plan });
    change(queue, world, |plan| Plan { access: Access::Combining, ..plan });
}

/// Each mode of insertion, so that the next change has to deal with parked requests.
fn other_modes(queue: &Queue<u64>, world: &World) {
    change(queue, world, |plan| plan.access(Access::Serialised));
    let direct = Modes { insert: Some(InsertMode::Direct), ..Modes::default() };
    change(queue, world, |plan| Plan { modes: direct, ..plan });
}

fn other_scope(queue: &Queue<u64>, world: &World) {
    change(queue, world, |plan| Plan { scope: Some(Scope::HwQueue), ..plan });
}

fn lift(queue: &Queue<u64>, world: &World) {
    change(queue, world, |mut plan| {
        plan.groups.set_max("all", max("")).expect("it is there");
        plan
    });
}

fn hold(queue: &Queue<u64>, world: &World) {
    let mut freeze = queue.freeze();
    while !freeze.step(world.now()) {
        pause(world);
    }
    drop(freeze);
    let mut quiesce = queue.quiesce();
    while !quiesce.step(world.now()) {
        pause(world);
    }
}

fn give_up(queue: &Queue<u64>, world: &World) {
    let plan = queue.plan().scheduler(&deadline::FACTORY);
    let mut change = replan(&queue, plan).expect("no other thread changes it");
    if !change.step(world.now()) {
        drop(change);
    }
}

/// Reads what only the holder of an elevator or a pump knows, and does no other work.
fn look(queue: &Queue<u64>, world: &World) {
    for _ in 0..2 {
        let _ = queue.outstanding(world.now(), 8);
        let _ = queue.group_io(GroupId::ROOT);
        pause(world);
    }
}

const fn model(seed: u64, meddle: Meddle) -> Model {
    Model { meddle: Some(meddle), most_time: MOST_TIME, ..Model::new(seed, CLIENTS) }
}

#[test]
fn shuttle_a_queue_is_rebuilt() {
    model(81, rebuild).check();
}

#[test]
fn shuttle_a_queue_is_rebuilt_twice_around_a_slow_device() {
    Model { device: Script::LATER, ..model(82, rebuild_twice) }.check();
}

#[test]
fn shuttle_a_queue_is_accessed_otherwise() {
    model(83, other_access).check();
    Model { access: Access::Spin, ..model(84, other_access) }.check();
}

#[test]
fn shuttle_a_queue_with_parked_requests_is_rebuilt_frozen_and_quiesced() {
    let model =
        Model { access: Access::Serialised, nr_requests: Some(4), ..model(93, other_modes) };
    model.check();
    Model { device: Script::LATER, seed: 94, ..model }.check();
    Model { meddle: Some(hold), seed: 95, ..model }.check();
    Model { meddle: Some(rebuild), seed: 96, ..model }.check();
}

#[test]
fn shuttle_a_queue_gets_an_elevator_for_each_hardware_queue() {
    Model { hw_queues: 2, ..model(85, other_scope) }.check();
}

#[test]
fn shuttle_a_queue_is_looked_at() {
    model(97, look).check();
    Model { device: Script::LATER, ..model(98, look) }.check();
    Model { pump: PumpMode::Thread, ..model(99, look) }.check();
}

/// Regression test: the reader found the elevator idle, a client came in the meantime, left its request to the thread
/// inside and fell asleep, and the reader left.
#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_reader_that_leaves_in_silence() {
    let planted = Some(Planted::LeavesAVisitInSilence);
    // One schedule in 50,000 or so shows it.
    Model { planted, schedules: 60_000, ..model(203, look) }.check();
}

/// Regression test: the reader took the slots back for which I/Os waited, and no pass tried these again.
#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_reader_that_tells_no_pass_of_freed_slots() {
    let planted = Some(Planted::ForgetsFreedSlots);
    Model { planted, schedules: 20_000, ..model(97, look) }.check();
}

/// Each I/O but the first waits for a millisecond or more, until the limit is lifted.
const LIMITED: Model = Model { max: "wiops=1000", most_time: Nanos(500_000), ..model(611, lift) };

#[test]
fn shuttle_a_limit_is_lifted() {
    LIMITED.check();
}

#[test]
#[should_panic(expected = "something waited for a timer")]
fn shuttle_planted_a_submitter_that_does_not_look_whether_a_limit_is_another() {
    Model { planted: Some(Planted::ForgetsLimits), ..LIMITED }.check();
}

#[test]
#[should_panic(expected = "something waited for a timer")]
fn shuttle_planted_a_limit_that_is_changed_in_silence() {
    Model { planted: Some(Planted::ChangesInSilence), ..LIMITED }.check();
}

#[test]
fn shuttle_a_queue_is_frozen_and_quiesced() {
    model(86, hold).check();
    Model { access: Access::Mutex, ..model(87, hold) }.check();
}

#[test]
fn shuttle_a_queue_with_a_pump_thread_is_rebuilt_frozen_and_quiesced() {
    Model { pump: PumpMode::Thread, ..model(88, rebuild) }.check();
    Model { pump: PumpMode::Thread, ..model(89, hold) }.check();
}

#[test]
fn shuttle_a_change_is_given_up() {
    model(90, give_up).check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_submitter_that_does_not_look_whether_the_queue_is_another() {
    Model { planted: Some(Planted::ForgetsVersion), schedules: 20_000, ..model(91, rebuild) }
        .check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_rebuilt_queue_that_looks_at_nothing_staged() {
    Model { planted: Some(Planted::ForgetsStaged), ..model(92, rebuild) }.check();
}
