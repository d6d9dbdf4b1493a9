//! Sleepers: each thread that waits is woken in time for all of its work, whichever thread has it.
//!
//! The sleepers are a parked submitter, a client beside a pump thread per hardware queue, one with a lane of its own to
//! the device, and an elevator that waits for a budget, a tag or a token that another one returns. The leader of an
//! elevator may stop and leave at any moment (`shared/hub.rs`), and a thread may lose its CPU between two steps
//! (decision 0025), without stranding an I/O.

use crate::planted::{Planted, Stop};
use crate::shuttle_tests::world::{Bell, Says, Script};
use crate::shuttle_tests::{Client, Leaves, Model};
use crate::{Access, PumpMode, WriteCache};
use blkmq_core::{IoFlags, Nanos};
use blkmq_sched::testkit::rationed;
use blkmq_sched::{Scope, bfq, deadline, kyber};

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

/// A thread that is refused with RESOURCE sets a timer of 3 ms, and sleeps until then unless another thread does.
#[test]
fn shuttle_a_sleeper_has_the_timer() {
    let device = Script { resource: 4, inline: 1, ..Script::INLINE };
    // One attempt in four is refused: four refusals for twelve I/Os.
    Model { device, most_time: Nanos::from_millis(12), seed: 13, ..LATER }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_host_that_forgets_an_early_wake_up() {
    Model { bell: Bell::Forgets, ..LATER }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_device_that_forgets_to_say_when() {
    let device = Script { says: Says::Never, ..Script::LATER };
    Model { device, ..LATER }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_an_engine_that_looks_for_no_sleepers() {
    Model { planted: Some(Planted::ForgetsParked), ..LATER }.check();
}

const TWO: &[Client] = &[Client::new(4, 2, 1), Client::new(4, 3, 3)];

const THREADED: Model = Model {
    pump: PumpMode::Thread,
    device: Script::LATER,
    most_time: Nanos(8 * Script::LATER.service.0),
    ..Model::new(31, TWO)
};

#[test]
fn shuttle_a_pump_thread() {
    THREADED.check();
}

#[test]
fn shuttle_a_pump_thread_and_an_inline_device_mq_deadline() {
    let device = Script::INLINE;
    let model = Model { device, most_time: Nanos(0), seed: 32, ..THREADED };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_two_pump_threads_and_a_budget() {
    let model = Model { hw_queues: 2, budget: Some(1), seed: 33, ..THREADED };
    Model { scope: Some(Scope::HwQueue), ..model }.check();
}

#[test]
fn shuttle_a_pump_thread_and_refusals() {
    let device = Script { resource: 4, requeue: 3, ..Script::LATER };
    let model = Model { device, most_time: Nanos::from_millis(30), seed: 34, ..THREADED };
    Model { hw_queue_depth: 3, drift: true, ..model }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_pump_thread_that_forgets_an_early_call() {
    Model { bell: Bell::Forgets, ..THREADED }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_device_that_never_calls_its_pump_thread() {
    let device = Script { says: Says::Never, ..Script::LATER };
    Model { device, ..THREADED }.check();
}

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
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_leader_that_hands_nothing_on() {
    Model { planted: Some(Planted::ForgetsToWakeSuccessor), ..REFUSING }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_thread_that_polls_for_others_and_hands_nothing_on() {
    Model { planted: Some(Planted::ForgetsToWakeSuccessor), ..MEDDLING }.check();
}

/// Another thread has relied on the alarm of a sleeper that had already woken and left.
#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_sleeper_that_keeps_its_alarm() {
    Model { planted: Some(Planted::KeepsAlarm), ..MEDDLING }.check();
}

/// Each client may leave its I/Os to the other. The device takes one at a time, so requests wait for its tag.
const STOPPED: &[Client] = &[Client::new(6, 2, 1), Client::new(6, 2, 1)];

/// The first thread that reaches the place stays there until the other client has all its I/Os and has left. Stops
/// inside a pass or a turn are not modelled, because no other thread could take over there.
const SENT: Model = Model { stop: Some(Stop::BeforePump), ..Model::new(61, STOPPED) };

const FREED: Model = Model { stop: Some(Stop::BeforePass), ..Model::new(62, STOPPED) };

#[test]
fn shuttle_another_thread_pumps_what_a_runner_without_a_cpu_has_sent() {
    SENT.check();
}

#[test]
fn shuttle_another_thread_pumps_what_a_runner_without_a_cpu_has_sent_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 63, ..SENT }.check();
}

#[test]
fn shuttle_another_thread_makes_the_pass_for_what_a_pump_gave_back() {
    FREED.check();
}

#[test]
fn shuttle_another_thread_makes_the_pass_for_what_a_pump_gave_back_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, seed: 64, ..FREED }.check();
}

#[test]
#[should_panic(expected = "lies with a thread that has no CPU")]
fn shuttle_planted_no_thread_looks_at_outboxes() {
    Model { planted: Some(Planted::LeavesOutboxes), ..SENT }.check();
}

#[test]
#[should_panic(expected = "lies with a thread that has no CPU")]
fn shuttle_planted_a_pump_that_tells_no_other_thread() {
    Model { planted: Some(Planted::LeavesPasses), ..FREED }.check();
}

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
    device: Script { says: Says::Nothing, ..Script::LATER },
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
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_request_that_its_owner_is_not_told_of() {
    Model { planted: Some(Planted::ForgetsOwner), ..SHORT }.check();
}

/// A lane frees the tag for which a request of another lane waits.
#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_mark_that_other_lanes_do_not_see() {
    Model { planted: Some(Planted::ForgetsRestart), ..SHORT }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_an_owner_that_is_not_told_to_look_earlier() {
    const BUSY: &[Client] = &[Client::new(6, 2, 1), Client::new(6, 2, 1), Client::new(6, 2, 1)];
    let model = Model { clients: BUSY, most_time: Nanos(60 * Script::LATER.service.0), ..LEAVING };
    Model { planted: Some(Planted::KeepsDeadline), schedules: 6000, ..model }.check();
}

/// Consecutive submitters map to consecutive hardware queues.
const FOUR: &[Client] =
    &[Client::new(3, 2, 1), Client::new(3, 2, 2), Client::new(3, 1, 1), Client::new(3, 3, 1)];

const TWO_SHARDS: Model = Model {
    scope: Some(Scope::HwQueue),
    hw_queues: 2,
    device: Script::LATER,
    most_time: Nanos(12 * Script::LATER.service.0),
    ..Model::new(21, FOUR)
};

#[test]
fn shuttle_one_budget_for_two_elevators() {
    Model { budget: Some(1), ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_two_budgets_and_one_elevator_mq_deadline() {
    let scope = Some(Scope::Queue);
    let model = Model { budget: Some(2), scope, seed: 22, ..TWO_SHARDS };
    Model { scheduler: &deadline::FACTORY, ..model }.check();
}

#[test]
fn shuttle_one_tag_for_two_elevators() {
    Model { shared_tags: true, seed: 23, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_shared_tags_and_budgets_and_an_inline_device() {
    let device = Script { inline: 2, dev_resource: 5, ..Script::LATER };
    let model = Model { device, shared_tags: true, budget: Some(1), seed: 24, ..TWO_SHARDS };
    // A refusal costs 10 us more.
    Model { hw_queue_depth: 2, most_time: Nanos(2 * TWO_SHARDS.most_time.0), ..model }.check();
}

/// A single I/O for each of two elevators: schedules are short, so a larger part of them is explored.
const TINY: Model = Model {
    schedules: 10_000,
    clients: &[Client::new(1, 1, 1); 2],
    most_time: Nanos(2 * Script::LATER.service.0),
    ..TWO_SHARDS
};

#[test]
fn shuttle_tiny_budget() {
    Model { budget: Some(1), device: Script::INLINE, most_time: Nanos(0), seed: 25, ..TINY }
        .check();
}

#[test]
fn shuttle_tiny_budget_later() {
    Model { budget: Some(1), seed: 26, ..TINY }.check();
}

#[test]
fn shuttle_tiny_shared_tag() {
    let device = Script::INLINE;
    Model { shared_tags: true, device, most_time: Nanos(0), seed: 27, ..TINY }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_budget_that_comes_back_in_silence() {
    let planted = Some(Planted::ForgetsBudgetWaiters);
    Model { planted, budget: Some(1), ..TWO_SHARDS }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_shared_tag_and_no_thread_is_woken_for_it() {
    let planted = Some(Planted::ForgetsParked);
    Model { planted, shared_tags: true, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_one_token_for_two_elevators() {
    Model { scheduler: &rationed::FACTORY, seed: 28, ..TWO_SHARDS }.check();
}

#[test]
fn shuttle_one_token_for_four_elevators_of_a_deep_device() {
    let model = Model { scheduler: &rationed::FACTORY, hw_queues: 4, seed: 29, ..TWO_SHARDS };
    Model { hw_queue_depth: 4, ..model }.check();
}

#[test]
fn shuttle_tiny_token() {
    let device = Script::INLINE;
    Model { scheduler: &rationed::FACTORY, device, most_time: Nanos(0), seed: 30, ..TINY }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_token_that_comes_back_in_silence() {
    let planted = Some(Planted::ForgetsTokenWaiters);
    Model { planted, scheduler: &rationed::FACTORY, hw_queue_depth: 4, ..TWO_SHARDS }.check();
}
