//! Proposals for Linux, as options of a queue: each behaves as proposed, including the proposal's fault
//! (`spec/history.md` sections 1 to 3, `spec/framework.md` sections 9.1 and 15).
//!
//! A single thread never finds a lock taken, so the tests keep a [`Run`] in the middle of a dispatch.

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos, Tag};
use blkmq_engine::{
    Access, BioTable, Busy, Config, DeviceQueue, DeviceShape, DispatchMode, Enqueued, Expiry,
    Finished, Inflight, InsertMode, KickMode, MergeMode, Modes, Plan, PumpMode, Queue, Run,
    Submitter,
};
use blkmq_sched::{Factory, Scope};
use common::{
    Call, Calls, Handle, assert_at_rest, before_each_pick, config, deadline, drain, shape,
    submit_each, write,
};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;

const T0: Instant = Instant::ZERO;
const HW: HwQueue = HwQueue(0);

const BATCH: Modes =
    Modes { dispatch: Some(DispatchMode::Batch), insert: None, merge: None, kick: None };

fn ms(ms: u64) -> Instant {
    T0 + Nanos::from_millis(ms)
}

fn queue_of(
    shape: DeviceShape,
    access: Access,
    modes: Modes,
    adjust: impl FnOnce(Config<u32>) -> Config<u32>,
) -> (Queue<u32>, Handle) {
    let (config, device) = config(shape);
    let config = Config { access, modes, submitters: 3, ..config.scheduler(deadline()) };
    device.with(|c| c.interrupts = true);
    (Queue::new(adjust(config)).expect("valid"), device)
}

fn submitter(queue: &Queue<u32>) -> Submitter<u32> {
    queue.submitter().expect("three were asked for")
}

/// Finishes all requests at the device repeatedly, until the submitters have reaped all their I/Os.
fn finish(queue: &Queue<u32>, device: &Handle, subs: &mut [&mut Submitter<u32>]) {
    for _ in 0..1000 {
        device.with(|c| c.finish = c.inside);
        let _ = queue.pump(HW, T0);
        for sub in &mut *subs {
            sub.poll(T0);
            sub.reap(u32::MAX, |done| assert_eq!(done.result, Ok(())));
        }
        if subs.iter().all(|sub| sub.in_flight() == 0) {
            return assert_at_rest(queue, 1);
        }
    }
    panic!("some I/O is lost");
}

#[test]
fn a_thread_that_finds_a_dispatcher_at_work_leaves_it_everything() {
    let (queue, device) = queue_of(shape(1, 8), Access::Serialised, Modes::default(), |c| c);
    let (mut one, mut other) = (submitter(&queue), submitter(&queue));
    submit_each(&mut one, T0, [write(900, 8)]);
    let (run, before) = (queue.begin_run(HW).expect("no thread dispatches"), queue.stats().locks);
    assert!(queue.begin_run(HW).is_none());
    submit_each(&mut one, T0, [write(0, 8), write(100, 8)]);
    submit_each(&mut other, T0, [write(200, 8)]);
    one.poll(T0);
    let stats = queue.stats();
    assert_eq!((stats.locks.parked, stats.locks.merges_skipped, stats.inserted), (3, 3, 1));
    assert_eq!(stats.locks.left, 3, "each of them came to dispatch");
    assert_eq!((stats.locks.taken, stats.locks.contended), (before.taken, 0), "none waited");
    assert_eq!(device.sectors(), [900]);
    run.finish(T0);
    assert_eq!(device.sectors(), [900, 0, 100, 200], "by the one who let go, without another call");
    finish(&queue, &device, &mut [&mut one, &mut other]);
}

/// As many I/Os are parked as there are free slots. The rest waits, and no thread has to remember that.
#[test]
fn what_has_no_slot_is_not_parked() {
    let (queue, device) = queue_of(shape(1, 2), Access::Serialised, Modes::default(), |config| {
        Config { nr_requests: Some(4), ..config }
    });
    let (mut one, mut other) = (submitter(&queue), submitter(&queue));
    submit_each(&mut one, T0, [write(0, 8)]);
    let run = queue.begin_run(HW).expect("no thread dispatches");
    submit_each(&mut one, T0, (1..4).map(|i| write(i * 100, 8)));
    submit_each(&mut other, T0, (4..8).map(|i| write(i * 100, 8)));
    assert_eq!(queue.stats().locks.parked, 3, "one is in use, so three were free");
    run.finish(T0);
    assert_eq!((queue.stats().inserted, device.sectors().len()), (4, 2));
    finish(&queue, &device, &mut [&mut one, &mut other]);
    assert_eq!(device.sectors(), [0, 100, 200, 300, 400, 500, 600, 700]);
}

/// A parked I/O is cancelled like any waiting one, with or without a slot.
#[test]
fn what_is_parked_can_be_given_up() {
    let (queue, device) = queue_of(shape(1, 1), Access::Serialised, Modes::default(), |config| {
        Config { nr_requests: Some(8), ..config }
    });
    let mut sub = submitter(&queue);
    submit_each(&mut sub, T0, [write(0, 8)]);
    let run = queue.begin_run(HW).expect("no thread dispatches");
    submit_each(&mut sub, T0, [write(100, 8), write(200, 8)]);
    sub.cancel(T0, 100);
    submit_each(&mut sub, T0, [write(300, 8)]);
    run.finish(T0);
    let mut gone = Vec::new();
    for _ in 0..10 {
        device.finish(1);
        let _ = queue.pump(HW, T0);
        sub.reap(u32::MAX, |done| gone.extend(done.result.is_err().then_some(done.cookie)));
    }
    assert_eq!((gone, device.sectors()), (vec![100], vec![0, 200, 300]));
    assert_eq!((queue.stats().cancelled.total(), queue.stats().locks.parked), (1, 2));
    assert_at_rest(&queue, 1);
}

/// A thread that keeps a lock would make every other thread wait, so a run under a lock cannot be kept.
#[test]
fn only_a_run_without_waiters_can_be_kept() {
    let direct = Modes { insert: Some(InsertMode::Direct), ..Modes::default() };
    let merging = Modes { merge: Some(MergeMode::Always), ..Modes::default() };
    for (access, modes, kept) in [
        (Access::Combining, Modes::default(), true),
        (Access::Serialised, BATCH, true),
        (Access::Serialised, direct, false),
        (Access::Serialised, merging, false),
        (Access::Spin, Modes::default(), false),
        (Access::Mutex, Modes::default(), false),
    ] {
        let (queue, device) = queue_of(shape(1, 8), access, modes, |c| c);
        let mut sub = submitter(&queue);
        assert_eq!(queue.begin_run(HW).is_some(), kept, "{access:?} {modes:?}");
        // The run was dropped immediately, and left nothing behind.
        submit_each(&mut sub, T0, [write(0, 8)]);
        finish(&queue, &device, &mut [&mut sub]);
    }
}

thread_local! {
    static BUDGETS: RefCell<(Option<Queue<u32>>, Vec<u32>)> = const { RefCell::new((None, Vec::new())) };
}

/// Notes the number of budgets taken.
fn look() {
    BUDGETS.with_borrow_mut(|(queue, seen)| {
        seen.extend(queue.as_ref().map(Queue::budgets_in_use));
    });
}

const WATCHING: Factory = Factory {
    name: "watching",
    summary: "none, counting budgets",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, options| before_each_pick(shape, options, look),
};

fn push_all(sub: &mut Submitter<u32>, n: u64) {
    for i in 0..n {
        sub.push(T0, write(i * 100, 8)).expect("there is credit");
    }
    sub.flush(T0);
}

#[test]
fn s16_21_a_batch_is_one_hold_of_the_lock() {
    for (modes, batches, taken) in [(BATCH, 1, 14), (Modes::default(), 12, 25)] {
        let (queue, device) = queue_of(shape(1, 64), Access::Spin, modes, |c| c);
        let mut sub = submitter(&queue);
        push_all(&mut sub, 12);
        let stats = queue.stats();
        assert_eq!((stats.dispatched, stats.batches), (12, batches));
        // A merge attempt for each I/O, the insertion of the plug, and the holds that dispatch.
        assert_eq!(stats.locks.taken, taken, "{modes:?}");
        finish(&queue, &device, &mut [&mut sub]);
    }
}

#[test]
fn s16_21_a_batch_holds_eight_budgets_and_returns_what_it_did_not_need() {
    let device = DeviceShape { budget: Some(20), ..shape(1, 64) };
    let (queue, device) =
        queue_of(device, Access::Spin, BATCH, |config| config.scheduler(&WATCHING));
    let mut sub = submitter(&queue);
    BUDGETS.set((Some(queue.clone()), Vec::new()));
    push_all(&mut sub, 11);
    let (_, seen) = BUDGETS.take();
    assert_eq!(seen[..8], [8; 8], "the first hold has eight");
    assert!(seen[8..].iter().all(|out| *out == 16), "and the second eight more: {seen:?}");
    assert_eq!((queue.stats().dispatched, queue.stats().batches), (11, 2));
    assert_eq!(queue.budgets_in_use(), 11, "the rest went back");
    finish(&queue, &device, &mut [&mut sub]);
}

/// The average rises to 4 with three refusals, and falls to 3 when the device takes the refused request. Until it is 0
/// again, requests leave one at a time.
#[test]
fn s16_22_a_busy_device_is_given_one_at_a_time_by_a_batch_too() {
    let (queue, device) = queue_of(shape(1, 64), Access::Mutex, BATCH, |c| c);
    let mut sub = submitter(&queue);
    device.with(|c| c.script.extend([Some(Busy::DevResource); 3]));
    push_all(&mut sub, 1);
    let _ = (queue.pump(HW, T0), queue.pump(HW, T0));
    assert_eq!(queue.dispatch_busy(HW), 4);
    push_all(&mut sub, 10);
    assert_eq!((queue.stats().dispatched, queue.stats().batches), (1, 1), "the rest may merge");
    let _ = queue.pump(HW, T0);
    assert_eq!(queue.dispatch_busy(HW), 0);
    assert_eq!((queue.stats().dispatched, queue.stats().batches), (11, 1 + 3 + 1));
    finish(&queue, &device, &mut [&mut sub]);
}

/// The elevator of a single hardware queue is not worth a batch (`spec/framework.md` section 15).
#[test]
fn a_batch_is_for_elevators_of_the_whole_queue() {
    let (queue, _device) = queue_of(shape(2, 64), Access::Spin, BATCH, |config| Config {
        scope: Some(Scope::HwQueue),
        ..config
    });
    let mut sub = submitter(&queue);
    push_all(&mut sub, 5);
    assert_eq!((queue.stats().dispatched, queue.stats().batches), (5, 5));
}

thread_local! {
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static KEPT: Cell<Option<Run<u32>>> = const { Cell::new(None) };
}

/// A device that runs `MEANWHILE` in the middle of an `enqueue`.
struct Interrupted(Box<dyn DeviceQueue<u32>>);

impl DeviceQueue<u32> for Interrupted {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u32>, rq: Inflight) -> Enqueued {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile();
        }
        self.0.enqueue(now, bios, rq)
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u32>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.0.timed_out(now, tag)
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.next_event()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

/// Three kicks of one pump thread. The first is immediate, by a submission while the device is being fed. The second is
/// delayed, because the device then has no room. The third is immediate, by an elevator pass that filled the outbox
/// before that. Returns the calls to the thread for the last kick, and the sectors that have arrived at the device
/// immediately and 3 ms later.
fn now_later_now(kick: KickMode) -> (Vec<Call>, Vec<u64>, Vec<u64>) {
    let calls = Calls::default();
    let host = Box::new(calls.clone());
    let (base, device) = config(shape(1, 8));
    let queues = base.queues.into_iter().map(|queue| Box::new(Interrupted(queue)) as _).collect();
    let modes = Modes { kick: Some(kick), ..Modes::default() };
    let config = Config { modes, host, pump: PumpMode::Thread, ..Config::new(shape(1, 8), queues) };
    let queue = Queue::new(config.scheduler(deadline())).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    device.with(|c| {
        c.interrupts = true;
        c.script.push_back(Some(Busy::Resource));
    });
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(calls.take(), [Call::Pump(HW)]);
    let other = queue.clone();
    MEANWHILE.set(Some(Box::new(move || {
        submit_each(&mut sub, T0, [write(100, 8)]);
        let mut run = other.begin_run(HW).expect("it is free");
        submit_each(&mut sub, T0, [write(200, 8)]);
        run.step(T0);
        KEPT.set(Some(run));
        // Its submitter is dropped with I/Os in flight, so its number stays out of use.
    })));
    let again = queue.pump(HW, T0);
    calls.take();
    KEPT.take().expect("the device was fed").finish(T0);
    let woken = calls.take();
    if again.is_some_and(|at| at <= T0) || !woken.is_empty() {
        let _ = queue.pump(HW, T0);
    }
    // The pump thread may still respond to the first kick.
    let _ = queue.pump(HW, T0);
    let at_once = device.sectors();
    let _ = queue.pump(HW, ms(3));
    (woken, at_once, device.sectors())
}

/// Long Li's finding about the proposed flag (seed 002): with it the second *now* is dropped, and nothing happens until
/// the delay is over. A kick that is always sent cancels the delay; coalesced kicks are never delayed.
#[test]
fn seed_002_now_later_now_with_the_flag_waits_for_the_delay() {
    let all = vec![0, 100, 200];
    let (woken, at_once, at_last) = now_later_now(KickMode::Flag);
    assert_eq!((woken, at_once, at_last), (vec![], vec![], all.clone()), "late, but not lost");

    let (woken, at_once, _) = now_later_now(KickMode::Always);
    assert_eq!((woken, at_once), (vec![Call::Pump(HW)], all.clone()));

    let (_, at_once, _) = now_later_now(KickMode::Coalesced);
    assert_eq!(at_once, all);
}

/// A queue with a pump thread, and the calls to its host.
fn queue_that_kicks(
    shape: DeviceShape,
    access: Access,
    kick: KickMode,
) -> (Queue<u32>, Handle, Calls) {
    let calls = Calls::default();
    let host = Box::new(calls.clone());
    let modes = Modes { kick: Some(kick), ..Modes::default() };
    let adjust = |config| Config { host, pump: PumpMode::Thread, ..config };
    let (queue, device) = queue_of(shape, access, modes, adjust);
    (queue, device, calls)
}

/// The purpose of the flag, and of coalescing.
#[test]
fn only_always_calls_the_pump_again_before_it_has_come() {
    for (kick, expected) in [(KickMode::Always, 3), (KickMode::Flag, 1), (KickMode::Coalesced, 1)] {
        for access in [Access::Combining, Access::Mutex] {
            let (queue, device, calls) = queue_that_kicks(shape(1, 8), access, kick);
            let mut sub = submitter(&queue);
            // In the locked modes the thread is woken for the device's later completions.
            device.with(|c| c.service = Some(Nanos::from_millis(1)));
            submit_each(&mut sub, T0, [write(0, 8), write(100, 8), write(200, 8)]);
            assert_eq!(calls.take(), vec![Call::Pump(HW); expected], "{kick:?} {access:?}");
            let _ = queue.pump(HW, T0);
            assert_eq!(device.sectors(), [0, 100, 200]);
            submit_each(&mut sub, T0, [write(300, 8)]);
            assert_eq!(calls.take(), [Call::Pump(HW)], "{kick:?} {access:?}: it had come");
            let _ = queue.pump(HW, T0);
            device.finish(4);
            let _ = queue.pump(HW, T0);
            assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 4);
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn every_completion_asks_for_the_hardware_queue_where_kicks_are_the_kernels_and_something_waits() {
    for (kick, asked) in [(KickMode::Always, 2), (KickMode::Flag, 1), (KickMode::Coalesced, 0)] {
        for access in [Access::Combining, Access::Mutex] {
            let (queue, device, calls) = queue_that_kicks(shape(1, 2), access, kick);
            device.with(|c| c.interrupts = true);
            let mut sub = submitter(&queue);
            submit_each(&mut sub, T0, (0..4).map(|n| write(100 * n, 8)));
            let _ = queue.pump(HW, T0);
            calls.take();
            device.finish(2);
            let _ = queue.pump(HW, T0);
            // With combining, the runner wakes the thread for requests that go to the device.
            let issue = match (access, kick) {
                (Access::Combining, KickMode::Always | KickMode::Coalesced) => 1,
                _ => 0,
            };
            assert_eq!(calls.take(), vec![Call::Pump(HW); asked + issue], "{kick:?} {access:?}");
            let _ = queue.pump(HW, T0);
            device.finish(2);
            let _ = queue.pump(HW, T0);
            assert_eq!(calls.take(), [], "nothing waits any more: {kick:?} {access:?}");
            assert_eq!(drain(&mut sub, &mut { T0 }, 4).len(), 4);
            assert_at_rest(&queue, 1);
        }
    }
}

/// Completions under the earlier mode cause no kicks after the change.
#[test]
fn kicks_for_each_completion_begin_with_those_behind_the_change() {
    let (queue, device, calls) =
        queue_that_kicks(shape(1, 2), Access::Combining, KickMode::Coalesced);
    device.with(|c| c.interrupts = true);
    let mut sub = submitter(&queue);
    let round = |sub: &mut Submitter<u32>| {
        submit_each(sub, T0, (0..4).map(|n| write(100 * n, 8)));
        let _ = queue.pump(HW, T0);
        calls.take();
        device.finish(2);
        let _ = queue.pump(HW, T0);
        let called = calls.take().len();
        let _ = queue.pump(HW, T0);
        device.finish(2);
        let _ = queue.pump(HW, T0);
        assert_eq!(drain(sub, &mut { T0 }, 4).len(), 4);
        called
    };
    (0..20).for_each(|_| assert_eq!(round(&mut sub), 1));
    let edit = |plan: &mut Plan| {
        plan.modes.kick = Some(KickMode::Always);
        Ok::<(), Infallible>(())
    };
    let mut change = queue.edit(edit).expect("it goes with combining");
    assert!((0..10).any(|_| change.step(T0)), "nothing is in flight");
    drop(change);
    assert_eq!(round(&mut sub), 3, "two that completed, and what is issued");
}
