//! Cancelled I/Os: each ends once, done or cancelled. A cancelled I/O had an ask, and never reaches the device. No
//! thread waits for a cancelled I/O, or sleeps through its completion.

use super::device::{Says, Script, TestDevice};
use super::durable;
use super::model::{Client, Model};
use super::replan;
use super::world::World;
use crate::planted::{self, Planted};
use crate::sync::yield_now;
use crate::{Access, Config, DeviceShape, Io, Plan, PumpMode, Queue, Submitter, WriteCache};
use blkmq_core::{HwQueue, Instant, IoFlags, Limits, Nanos, Op};
use blkmq_sched::{Scope, deadline};
use shuttle::thread;

/// Cancels every I/O; the next client cancels every other one.
const ALL: Client = Client { cancels: 1, ..Client::new(4, 3, 2) };
const SOME: Client = Client { cancels: 2, ..Client::new(4, 2, 1) };
const NEIGHBOURS: Client = Client { stride: 8, ..ALL };
const PLAIN: Client = Client::new(3, 2, 1);
const SAFE: Client = Client { flags: IoFlags::FUA, ..SOME };
const AGAIN: Client = Client { reuses: true, ..Client { cancels: 2, ..Client::new(6, 2, 1) } };

const MODEL: Model = Model {
    device: Script::LATER,
    most_time: Nanos(200_000),
    nr_requests: Some(4),
    ..Model::new(101, &[ALL, SOME])
};

#[test]
fn shuttle_two_threads_give_up_ios() {
    MODEL.check();
    Model { device: Script::INLINE, seed: 102, ..MODEL }.check();
}

#[test]
fn shuttle_ios_without_slots_are_given_up_mq_deadline() {
    let model = Model { clients: &[ALL, ALL, PLAIN], seed: 103, ..MODEL };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_neighbours_are_given_up_or_merged() {
    Model { clients: &[NEIGHBOURS, NEIGHBOURS], seed: 104, ..MODEL }.check();
}

#[test]
fn shuttle_ios_are_given_up_under_locks() {
    for (seed, access) in [(105, Access::Spin), (106, Access::Mutex), (116, Access::Serialised)] {
        Model { access, seed, schedules: 1000, ..MODEL }.check();
    }
}

#[test]
fn shuttle_ios_are_given_up_with_pump_threads() {
    let scope = Some(Scope::HwQueue);
    Model { pump: PumpMode::Thread, hw_queues: 2, scope, seed: 107, ..MODEL }.check();
}

#[test]
fn shuttle_flush_sequences_are_asked_for() {
    let cache = WriteCache::Back { fua: false };
    Model { cache, clients: &[SAFE, SOME], most_time: Nanos(400_000), seed: 108, ..MODEL }.check();
}

fn rebuild(queue: &Queue<u64>, world: &World) {
    for nr_requests in [4, 8] {
        let to = Plan { nr_requests: Some(nr_requests), ..queue.plan() };
        let mut change = replan(&queue, to).expect("there is one who changes it");
        while !change.step(world.now()) {
            world.sleep(world.last_seat(), Some(world.now() + Nanos(100)));
        }
    }
}

#[test]
fn shuttle_ios_are_given_up_while_the_queue_is_rebuilt() {
    let most_time = Nanos::from_millis(1);
    let model = Model { meddle: Some(rebuild), most_time, seed: 109, ..MODEL };
    model.check();
    Model { access: Access::Mutex, schedules: 1000, seed: 110, ..model }.check();
    Model { access: Access::Serialised, schedules: 1000, seed: 117, ..model }.check();
    Model { clients: &[AGAIN, AGAIN], seed: 111, ..model }.check();
}

#[test]
fn shuttle_cookies_are_used_again() {
    let model = Model { clients: &[AGAIN, AGAIN, PLAIN], seed: 112, ..MODEL };
    model.check();
    Model { access: Access::Mutex, schedules: 1000, seed: 113, ..model }.check();
}

/// While one thread is in a pass, another cancels an I/O that the device has, reaps it, and reuses its cookie for an
/// I/O that waits behind another. The ask must not apply to the new I/O.
fn an_ask_comes_late(model: &Model) {
    planted::plant(model.planted);
    durable::begin(WriteCache::Through);
    let shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 1,
        shared_tags: false,
        budget: None,
        limits: Limits::default(),
        cache: WriteCache::Through,
        timeout: crate::DEFAULT_TIMEOUT,
    };
    let device = TestDevice::new(Script { says: Says::Nothing, ..Script::LATER }, None);
    let config = Config { nr_requests: Some(4), ..Config::new(shape, vec![Box::new(device)]) };
    let queue = Queue::new(config).expect("a valid queue");
    let mut submitter = queue.submitter().expect("one is free");
    let now = Instant::ZERO;
    let push = |submitter: &mut Submitter<u64>, cookie: u64, payload: u64| {
        durable::pushed(payload * 64, IoFlags::NONE);
        let io = Io::new(Op::Write, payload * 64, 8, cookie, payload);
        submitter.push(now, io).expect("there is credit for it");
        submitter.flush(now);
    };
    push(&mut submitter, 7, 0);
    let mut run = queue.begin_run(HwQueue(0)).expect("nobody has it");
    push(&mut submitter, 8, 1);
    let runner = thread::spawn(move || {
        run.step(now);
        run.step(now);
        run.finish(now);
    });
    submitter.cancel(now, 7);
    let mut ended = Vec::new();
    for turn in 0..100 {
        submitter.poll(now);
        let used = ended.len();
        submitter.reap(u32::MAX, |done| ended.push((done.payload, done.result)));
        if used == 0 && !ended.is_empty() {
            push(&mut submitter, 7, 2);
        }
        if ended.len() == 3 {
            break;
        }
        assert!(turn < 99, "only {ended:?} have ended");
        if turn > 4 {
            yield_now();
        }
    }
    runner.join().expect("a panic ends the schedule");
    ended.sort_unstable_by_key(|(payload, _)| *payload);
    assert_eq!(ended[2], (2, Ok(())), "an I/O is gone that nobody asked for");
}

#[test]
fn shuttle_an_ask_comes_late() {
    MODEL.explore(an_ask_comes_late);
}

#[test]
#[should_panic(expected = "that nobody asked for")]
fn shuttle_planted_an_ask_for_whoever_has_the_cookie() {
    Model { planted: Some(Planted::ForgetsMarks), ..MODEL }.explore(an_ask_comes_late);
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_an_io_given_up_in_silence() {
    Model { planted: Some(Planted::CancelsInSilence), ..MODEL }.check();
}

#[test]
#[should_panic(expected = "is in a list already")]
fn shuttle_planted_a_request_given_up_and_kept_by_the_policy() {
    Model { planted: Some(Planted::ForgetsToWithdraw), ..MODEL }.check();
}
