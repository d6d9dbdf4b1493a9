//! Every submitted I/O completes once, at its own submitter, and nothing is left; also an I/O that is cancelled, and
//! one that the device loses. The device sees the elevator's order (decision 0003): per hardware queue, requests arrive
//! as they were picked.
//!
//! A cancelled I/O had an ask, and never reaches the device. No thread waits for a cancelled I/O, or sleeps through its
//! completion. A lost request is answered once, and a thread handles it in time.

use crate::planted::{self, Planted};
use crate::shuttle_tests::world::{Arrivals, Says, Script, TestDevice, World};
use crate::shuttle_tests::{Client, Model, flush, replan};
use crate::sync::yield_now;
use crate::{
    Access, Config, DeviceShape, DispatchMode, Io, Modes, Plan, PumpMode, Queue, Submitter,
    WriteCache,
};
use blkmq_core::{HwQueue, Instant, IoFlags, Limits, Nanos, Op, RequestId};
use blkmq_sched::{
    Bypass, Cx, Factory, Facts, Observed, Observer, Pick, Scheduler, Scope, deadline, none,
};
use shuttle::thread;
use std::cell::{Cell, RefCell};

const TWO: &[Client] = &[Client::new(6, 4, 2), Client::new(6, 4, 2)];

const THREE: &[Client] = &[Client::new(4, 4, 2), Client::new(4, 2, 1), Client::new(4, 4, 4)];

/// Neighbouring I/Os, which merge in plugs and in the elevator.
const MERGEABLE: &[Client] =
    &[Client { stride: 8, ..Client::new(6, 6, 3) }, Client { stride: 8, ..Client::new(6, 6, 1) }];

/// Every fault, and every form of completion.
const MOODY: Script = Script {
    room: 1,
    resource: 5,
    dev_resource: 3,
    requeue: 7,
    requeue_tail: 0,
    lose: 0,
    inline: 2,
    service: Nanos(10_000),
    says: Says::When,
};

/// RESOURCE may strike at every attempt in a row and costs 3 ms each time.
const A_TIMER_EACH: Nanos = Nanos::from_millis(60);

#[test]
fn shuttle_two_submitters_inline() {
    Model::new(1, TWO).check();
}

#[test]
fn shuttle_three_submitters_inline_mq_deadline() {
    Model { scheduler: &deadline::FACTORY, ..Model::new(2, THREE) }.check();
}

#[test]
fn shuttle_three_submitters_later() {
    // One at a time: twelve times the service time, if no thread waits longer than needed.
    let most_time = Nanos(12 * Script::LATER.service.0);
    Model { device: Script::LATER, most_time, ..Model::new(3, THREE) }.check();
}

#[test]
fn shuttle_three_submitters_and_a_moody_device() {
    let model = Model { device: MOODY, most_time: A_TIMER_EACH, ..Model::new(4, THREE) };
    model.check();
}

#[test]
fn shuttle_two_submitters_and_a_moody_device_mq_deadline() {
    let model = Model { device: MOODY, most_time: A_TIMER_EACH, ..Model::new(5, TWO) };
    Model { scheduler: &deadline::FACTORY, hw_queue_depth: 2, drift: true, ..model }.check();
}

#[test]
fn shuttle_a_device_that_cannot_tell() {
    let device = Script { says: Says::Nothing, inline: 3, dev_resource: 4, ..Script::LATER };
    Model { device, hw_queue_depth: 2, ..Model::new(6, THREE) }.check();
}

#[test]
fn shuttle_merging_while_slots_are_short() {
    let most_time = Nanos(12 * Script::LATER.service.0);
    let model = Model { device: Script::LATER, most_time, ..Model::new(7, MERGEABLE) };
    Model { nr_requests: Some(4), scheduler: &deadline::FACTORY, ..model }.check();
}

/// A single I/O for each client: schedules are short, so a larger part of them is explored.
const TINY: Model = Model { schedules: 10_000, ..Model::new(8, &[Client::new(1, 1, 1); 2]) };

/// The second client finds no slot while the slot of the first client is being returned.
#[test]
fn shuttle_tiny_inline() {
    TINY.check();
}

/// One client submits its second I/O while the other removes the refused request that blocked the way.
#[test]
fn shuttle_tiny_refused() {
    // The first request occupies the device for 10 us. Until then the second is refused; offered again, it is answered
    // immediately.
    let device = Script { room: 2, dev_resource: 2, inline: 3, ..Script::LATER };
    const CLIENTS: &[Client] = &[Client::new(1, 1, 1), Client::new(2, 1, 1)];
    let model = Model { device, clients: CLIENTS, most_time: Nanos(60_000), seed: 9, ..TINY };
    Model { nr_requests: Some(4), hw_queue_depth: 2, ..model }.check();
}

/// Each client finds the other's tag in use.
#[test]
fn shuttle_tiny_later() {
    let (device, most_time) = (Script::LATER, Nanos(2 * Script::LATER.service.0));
    Model { device, nr_requests: Some(4), most_time, seed: 10, ..TINY }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_run_that_loses_an_owed_pass() {
    Model { planted: Some(Planted::LosesOwedPass), ..Model::new(1, TWO) }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_an_elevator_that_does_not_ask_to_be_told() {
    let device = Script::LATER;
    Model { planted: Some(Planted::ForgetsRestart), device, ..Model::new(3, THREE) }.check();
}

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
    flush::begin(WriteCache::Through);
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
        flush::pushed(payload * 64, IoFlags::NONE);
        let io = Io::new(Op::Write, payload * 64, 8, cookie, payload);
        submitter.push(now, io).expect("there is credit for it");
        submitter.flush(now);
    };
    push(&mut submitter, 7, 0);
    let mut run = queue.begin_run(HwQueue(0)).expect("it is free");
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
    assert_eq!(ended[2], (2, Ok(())), "an I/O is gone without a request for it");
}

#[test]
fn shuttle_an_ask_comes_late() {
    MODEL.explore(an_ask_comes_late);
}

#[test]
#[should_panic(expected = "without a request for it")]
fn shuttle_planted_an_ask_for_any_io_with_the_cookie() {
    Model { planted: Some(Planted::ForgetsMarks), ..MODEL }.explore(an_ask_comes_late);
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_an_io_given_up_in_silence() {
    Model { planted: Some(Planted::CancelsInSilence), ..MODEL }.check();
}

#[test]
#[should_panic(expected = "is in a list already")]
fn shuttle_planted_a_request_given_up_and_kept_by_the_policy() {
    Model { planted: Some(Planted::ForgetsToWithdraw), ..MODEL }.check();
}

const TIMEOUT: Nanos = Nanos::from_millis(1);

/// One in three attempts is lost. One of two lost requests is given up at its timeout, the other a timeout later.
const LOSES: Script = Script { room: 2, lose: 3, ..Script::LATER };

const ONE: &[Client] = &[Client::new(4, 2, 1)];

const TIMED: &[Client] = &[Client::new(4, 2, 1), Client::new(3, 1, 1)];

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
    Model { pump: PumpMode::Inline, clients: TIMED, hw_queue_depth: 2, seed: 82, ..THREADED };

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
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_timer_that_no_thread_is_told_of() {
    Model { planted: Some(Planted::ForgetsTimer), ..THREADED }.check();
}

#[test]
#[should_panic(expected = "no thread will ever be woken")]
fn shuttle_planted_a_timer_that_two_submitters_are_not_told_of() {
    Model { planted: Some(Planted::ForgetsTimer), ..INLINE }.check();
}

const PAIR: &[Client] = &[Client::new(2, 2, 2), Client::new(2, 2, 2)];

thread_local! {
    // All threads of a model are coroutines on the thread of its test.
    static PICKS: RefCell<Vec<(HwQueue, u64)>> = const { RefCell::new(Vec::new()) };
}

/// First come, first served, with a record of every pick.
const RECORDED: Factory = Factory {
    name: "recorded",
    summary: "none, under observation",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, options| {
        Box::new(Observed::new((none::FACTORY.build)(shape, options), Recorded))
    },
};

struct Recorded;

impl Observer for Recorded {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, ..policy.facts() }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = policy.pick(cx, hw);
        if let Pick::Issue(id) = pick {
            PICKS.with_borrow_mut(|picks| picks.push((hw, cx.requests.get(id).sector)));
        }
        pick
    }
}

/// The picks and the arrivals, each in order, with hardware queues.
type Orders = (Vec<(HwQueue, u64)>, Vec<(HwQueue, u64)>);

/// Runs one schedule.
fn picks_and_arrivals(model: &Model) -> Orders {
    PICKS.take();
    let arrivals = Arrivals::default();
    model.schedule(Some(&arrivals));
    let arrivals = arrivals.lock().expect("a panic ends the schedule").clone();
    assert!(arrivals.len() >= model.clients.len());
    (PICKS.take(), arrivals)
}

fn in_order(model: &Model) {
    let (picks, arrivals) = picks_and_arrivals(model);
    for hw in (0..model.hw_queues).map(HwQueue) {
        let of = |list: &[(HwQueue, u64)]| -> Vec<u64> {
            list.iter().filter(|entry| entry.0 == hw).map(|entry| entry.1).collect()
        };
        assert_eq!(of(&arrivals), of(&picks), "arrivals on {hw:?} are not in the order of picks");
    }
}

const ORDERED: Model = Model {
    scheduler: &RECORDED,
    hw_queue_depth: 4,
    device: Script { room: 4, ..Script::INLINE },
    ..Model::new(61, THREE)
};

#[test]
fn shuttle_the_device_sees_the_order_of_picks() {
    ORDERED.explore(in_order);
}

/// A request that the device refuses waits ahead of all requests picked later.
#[test]
fn shuttle_the_device_sees_the_order_of_picks_through_refusals() {
    let device = Script { room: 2, resource: 5, dev_resource: 3, inline: 2, ..Script::LATER };
    let most_time = Nanos::from_millis(30);
    Model { device, most_time, drift: true, seed: 62, ..ORDERED }.explore(in_order);
}

#[test]
fn shuttle_two_hardware_queues_each_see_the_order_of_their_picks() {
    Model { hw_queues: 2, seed: 63, ..ORDERED }.explore(in_order);
}

#[test]
fn shuttle_a_pump_thread_keeps_the_order_of_picks() {
    Model { pump: PumpMode::Thread, seed: 64, ..ORDERED }.explore(in_order);
}

/// As in the kernel: each thread picks under the lock, and issues after it has released the lock (`spec/framework.md`
/// section 15).
#[test]
#[should_panic(expected = "are not in the order of picks")]
fn shuttle_planted_one_at_a_time_dispatch_inverts_the_order() {
    Model { access: Access::Mutex, ..ORDERED }.explore(in_order);
}

/// As proposed: the requests of one hold of the lock stay together, but the batches of two threads may change places.
/// Each pair is inserted in one hold, so no batch has only half of a pair.
#[test]
fn shuttle_batch_dispatch_keeps_batches_together_and_may_exchange_them() {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    let modes = Modes { dispatch: Some(DispatchMode::Batch), ..ORDERED.modes };
    let model =
        Model { access: Access::Spin, modes, clients: PAIR, seed: 66, schedules: 6000, ..ORDERED };
    model.explore(|model| {
        let (picks, arrivals) = picks_and_arrivals(model);
        let [one, two, three, four] = picks[..] else { panic!("{picks:?} are not four") };
        let exchanged = arrivals == [three, four, one, two];
        assert!(exchanged || arrivals == picks, "{arrivals:?} for {picks:?}: a batch is torn");
        SEEN.set(SEEN.get() + u32::from(exchanged));
    });
    assert!(SEEN.get() > 0, "no schedule has exchanged them");
}

/// Two threads that take turns at the lock: one collects 1 and 3, the other 2 and 4.
#[test]
fn shuttle_one_at_a_time_dispatch_shows_1_3_2_4() {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    let model = Model { access: Access::Spin, clients: PAIR, seed: 65, ..ORDERED };
    model.explore(|model| {
        let (picks, arrivals) = picks_and_arrivals(model);
        let [one, two, three, four] = picks[..] else { panic!("{picks:?} are not four") };
        if arrivals == [one, three, two, four] {
            SEEN.set(SEEN.get() + 1);
        }
    });
    assert!(SEEN.get() > 0, "no schedule has shown it");
}
