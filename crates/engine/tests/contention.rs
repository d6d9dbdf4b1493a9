//! Several threads that want the same elevator: staging, kicks and hand-overs (`spec/framework.md` section 9, lines
//! 9, 10 and 21 of section 16; lines 11 and 12 of `spec/mq-deadline.md` section 8).
//!
//! Mostly with one thread: a [`Run`] that is kept stands for a thread inside a pass, and a policy or a device that
//! submits while it is being called stands for another thread that does so. The model checkers explore schedules
//! between single instructions.

use crate::common;

use blkmq_core::{Class, HwQueue, Instant, IoPrio, Nanos, RequestId, Tag};
use blkmq_engine::{
    BioTable, Busy, Config, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Io, Queue, Run,
    Submitter,
};
use blkmq_sched::{
    Admission, At, Cx, Done, Factory, Fresh, Observed, Observer, Options, Pick, Scheduler, Scope,
    registry,
};
use common::{
    Handle, accesses, assert_at_rest, before_each_pick, config, deadline, drain, shape,
    submit_each, write,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

const T0: Instant = Instant::ZERO;
const HW: HwQueue = HwQueue(0);

/// A queue around one deep hardware queue, and `N` submitters.
fn queue_for<const N: usize>(
    scheduler: &'static Factory,
) -> (Queue<u32>, Handle, [Submitter<u32>; N]) {
    let (config, device) = config(shape(1, 64));
    let config = Config { submitters: N as u16, ..config.scheduler(scheduler) };
    let queue = Queue::new(config).expect("valid");
    let subs = [(); N].map(|()| queue.submitter().expect("so many were asked for"));
    (queue, device, subs)
}

/// Polls until the submitter may park, which means that it has done all due work.
fn settle(sub: &mut Submitter<u32>, now: Instant) {
    for _ in 0..100 {
        sub.poll(now);
        if sub.prepare_park(now).is_some() {
            return sub.unpark();
        }
    }
    panic!("something is always due");
}

/// A submission that finds the elevator taken. In the kernel, the losing thread tries again within 3 ms; here the
/// winner serves it immediately.
#[test]
fn s8_11_the_loser_of_the_race_is_served_when_the_winner_lets_go() {
    let (queue, device, [mut loser]) = queue_for(deadline());
    let mut winner = queue.begin_run(HW).expect("it is free");
    winner.step(T0);
    submit_each(&mut loser, T0, [write(0, 8), write(100, 8)]);
    assert!(queue.begin_run(HW).is_none());
    assert_eq!((queue.stats().staged, queue.stats().inserted), (2, 0));
    assert_eq!(device.sectors(), []);
    winner.finish(T0);
    assert_eq!(device.sectors(), [0, 100], "without a call of the loser, and without a timer");
    device.finish(2);
    drain(&mut loser, &mut { T0 }, 3);
    assert_at_rest(&queue, 1);
}

/// A device that finishes I/Os of more submitters in turn than a pump has batches for: each gets its own, in order.
#[test]
fn completions_of_submitters_that_take_turns_come_in_order() {
    let (_queue, device, mut subs) = queue_for::<20>(deadline());
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    submit_each(&mut subs[0], T0, [write(1, 1)]);
    // A plug behind the refused request takes no short path, so the policy sorts it.
    for (at, sub) in subs.iter_mut().enumerate() {
        let sectors = (0..10).map(|n| (n * 20 + at as u64 + 1) * 100);
        submit_each(sub, T0, sectors.map(|sector| write(sector, 8)));
    }
    let mut now = T0 + Nanos::from_millis(3);
    let mut got = vec![Vec::new(); subs.len()];
    for _ in 0..100 {
        device.finish(1000);
        for (sub, got) in subs.iter_mut().zip(&mut got) {
            sub.poll(now);
            sub.reap(u32::MAX, |done| got.push(done.cookie));
        }
        now += Nanos::from_micros(10);
    }
    let order = device.sectors();
    let turns = order.windows(2).filter(|pair| pair[1] == pair[0] + 100).count();
    assert!(turns > 150, "they do not take turns: {order:?}");
    // The device finishes them in the order in which it got them.
    for (at, got) in got.iter().enumerate() {
        let own = |sector: &u64| (sector / 100).checked_sub(1).map_or(0, |n| n % 20) == at as u64;
        assert_eq!(*got, Vec::from_iter(order.iter().copied().filter(own)));
    }
}

/// Regression test: a runner that had lost its CPU looked like an active one, and a thread on the same CPU kept it from
/// continuing for as long as the kernel let it (decision 0025).
#[test]
fn a_submitter_learns_that_the_runner_it_depends_on_gets_no_further() {
    let (queue, device, [mut sub]) = queue_for(deadline());
    let at = |us: u64| T0 + Nanos::from_micros(us);
    let mut runner = queue.begin_run(HW).expect("it is free");
    assert!(!sub.is_held_up(at(0)) && !sub.is_held_up(at(60)), "it waits for nothing");
    submit_each(&mut sub, at(60), [write(0, 8)]);
    sub.poll(at(60));
    let told = [60, 109, 110, 111, 160].map(|us| sub.is_held_up(at(us)));
    assert_eq!(told, [false, false, true, false, true]);
    runner.step(at(170));
    assert!(!sub.is_held_up(at(210)), "it has made a pass");
    runner.finish(at(220));
    assert_eq!(device.sectors(), [0]);
    let told = [300, 400].map(|us| sub.is_held_up(at(us)));
    assert_eq!(told, [false; 2], "the device has it, and no thread runs");
    device.finish(1);
    drain(&mut sub, &mut { at(400) }, 1);
    assert_at_rest(&queue, 1);
}

/// mq-deadline that detects two threads inside it.
struct Exclusive {
    inside: AtomicBool,
}

const EXCLUSIVE: Factory = Factory {
    name: "exclusive",
    summary: "mq-deadline, for one thread at a time",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, _| {
        let factory = deadline();
        let policy = (factory.build)(shape, &Options::defaults(factory.attributes));
        Box::new(Observed::new(policy, Exclusive { inside: AtomicBool::new(false) }))
    },
};

impl Exclusive {
    fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        let other = self.inside.swap(true, Ordering::SeqCst);
        assert!(!other, "two threads are in one policy");
        std::thread::yield_now();
        let result = f();
        self.inside.store(false, Ordering::SeqCst);
        result
    }
}

impl Observer for Exclusive {
    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.alone(|| policy.insert(cx, rq, at));
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        self.alone(|| policy.pick(cx, hw))
    }

    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        self.alone(|| policy.admit(cx, fresh, order))
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        self.alone(|| policy.completed(cx, done));
    }

    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        self.alone(|| policy.withdraw(cx, rq));
    }

    fn absorbed(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        into: RequestId,
        gone: RequestId,
    ) {
        self.alone(|| policy.absorbed(cx, into, gone));
    }
}

/// Polls and reaps until no more than `most` are in flight.
fn wait_until_at_most(most: u32, sub: &mut Submitter<u32>) {
    for _ in 0..5_000_000 {
        sub.poll(T0);
        sub.reap(u32::MAX, |done| assert!(done.result.is_ok()));
        if sub.in_flight() <= most {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} I/Os do not come back", sub.in_flight());
}

#[test]
fn s8_11_one_thread_at_a_time_is_in_the_policy_and_everything_completes() {
    const THREADS: u16 = 4;
    const IOS: u64 = 400;
    for access in accesses() {
        let (config, device) = config(shape(1, 2));
        let config = Config { access, submitters: THREADS, ..config.scheduler(&EXCLUSIVE) };
        let queue = Queue::new(config).expect("valid");
        device.finish(usize::MAX / 2);
        std::thread::scope(|scope| {
            for who in 0..u64::from(THREADS) {
                let mut sub = queue.submitter().expect("one for each thread");
                scope.spawn(move || {
                    for i in 0..IOS {
                        sub.push(T0, write((who * IOS + i) * 16, 8)).expect("there is credit");
                        if i % 4 == 3 {
                            sub.flush(T0);
                            wait_until_at_most(8, &mut sub);
                        }
                    }
                    wait_until_at_most(0, &mut sub);
                });
            }
        });
        assert_eq!(queue.stats().completed, IOS * u64::from(THREADS), "{access:?}");
        assert_at_rest(&queue, 1);
    }
}

/// The next step of one of three threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Submit(usize),
    Begin,
    Pass,
    Finish,
}

/// All interleavings of the steps of three threads.
fn interleavings(left: [&[Step]; 3]) -> Vec<Vec<Step>> {
    let mut all = Vec::new();
    for who in 0..3 {
        if let Some((first, rest)) = left[who].split_first() {
            let mut left = left;
            left[who] = rest;
            all.extend(interleavings(left).into_iter().map(|mut order| {
                order.insert(0, *first);
                order
            }));
        }
    }
    if all.is_empty() { vec![Vec::new()] } else { all }
}

/// Two inserters and a dispatcher in every order of their calls: staging takes the place of the kernel series' buckets,
/// and must be empty when all three are done, although no thread checks it explicitly. The models in `sync` cover the
/// orders of single instructions.
#[test]
fn s8_12_nothing_stays_staged_whatever_the_order_of_two_inserters_and_a_dispatcher() {
    use Step::{Begin, Finish, Pass, Submit};
    let orders = interleavings([&[Submit(0); 2], &[Submit(1); 2], &[Begin, Pass, Finish]]);
    assert_eq!(orders.len(), 210);
    let (mut staged, mut direct) = (0, 0);
    for order in orders {
        let (queue, device, mut subs) = queue_for::<2>(deadline());
        device.with(|c| c.interrupts = true);
        let mut run: Option<Run<u32>> = None;
        for (at, step) in (0..).zip(&order) {
            match step {
                Submit(who) => submit_each(&mut subs[*who], T0, [write(at * 100, 8)]),
                Begin => run = Some(queue.begin_run(HW).expect("no run has begun")),
                Pass => run.as_mut().expect("it has begun").step(T0),
                Finish => run.take().expect("it has begun").finish(T0),
            }
        }
        subs.iter_mut().for_each(|sub| settle(sub, T0));
        assert_eq!(queue.stats().inserted, 4, "{order:?}");
        assert_eq!(device.with(|c| c.inside), 4, "{order:?}");
        staged += queue.stats().staged;
        direct += queue.stats().direct;
        device.finish(4);
        let _ = queue.pump(HW, T0);
        subs.iter_mut().for_each(|sub| drop(drain(sub, &mut { T0 }, 20)));
        assert_at_rest(&queue, 1);
    }
    assert!(staged > 300 && direct > 100, "both ways were gone: {staged} {direct}");
}

/// A submitter, and the I/Os that it is to submit.
type Intruder = (Submitter<u32>, Vec<Io<u32>>);

thread_local! {
    /// The submission to be made as soon as another thread's call is in progress.
    static MEANWHILE: RefCell<Option<Intruder>> = const { RefCell::new(None) };
}

/// Takes the other thread's turn. Its submitter is dropped with I/Os in flight, so its number stays out of use.
fn meanwhile() {
    if let Some((mut sub, ios)) = MEANWHILE.take() {
        submit_each(&mut sub, T0, ios);
    }
}

/// `none`, with a submission before a pick.
const INTERRUPTED: Factory = Factory {
    name: "interrupted",
    summary: "none, with another thread submitting",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape, options| before_each_pick(shape, options, meanwhile),
};

#[test]
fn s16_10_a_submission_during_a_pass_makes_another_pass() {
    let (queue, device, [mut sub, other]) = queue_for(&INTERRUPTED);
    MEANWHILE.set(Some((other, vec![write(1000, 8)])));
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(device.sectors(), [0, 1000], "by the one call");
    let stats = queue.stats();
    assert_eq!((stats.staged, stats.kicks_coalesced, stats.passes), (1, 1, 2));
}

/// A device with a submission in the middle of an `enqueue`.
struct InterruptedDevice(Box<dyn DeviceQueue<u32>>);

impl DeviceQueue<u32> for InterruptedDevice {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u32>, rq: Inflight) -> Enqueued {
        meanwhile();
        self.0.enqueue(now, bios, rq)
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u32>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.0.timed_out(now, tag)
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

/// Enough plugs for a submitter to notice that no other thread runs the elevator, and to run it itself. Their sectors
/// are below those that the tests submit first.
fn until_it_runs_the_elevator() -> Vec<Io<u32>> {
    (0..9).map(|i| write(i * 100, 8)).collect()
}

/// A queue with such a device, the device's handle, and a submitter; another submitter will submit
/// [`until_it_runs_the_elevator`] when the device is first called.
fn interrupted_device(scheduler: &'static Factory) -> (Queue<u32>, Handle, Submitter<u32>) {
    let (config, device) = config(shape(1, 64));
    let queues = config.queues.into_iter().map(|queue| Box::new(InterruptedDevice(queue)) as _);
    let config = Config::new(shape(1, 64), queues.collect()).scheduler(scheduler);
    let queue = Queue::new(Config { submitters: 2, ..config }).expect("valid");
    let sub = queue.submitter().expect("two were asked for");
    let other = queue.submitter().expect("two were asked for");
    MEANWHILE.set(Some((other, until_it_runs_the_elevator())));
    (queue, device, sub)
}

/// One level below: the elevator is free, so the other thread picks requests, but the pump of the hardware queue is
/// taken.
#[test]
fn s16_10_requests_chosen_while_the_device_is_being_fed_make_another_turn() {
    let (queue, device, mut sub) = interrupted_device(deadline());
    submit_each(&mut sub, T0, [write(5000, 8)]);
    let sectors: Vec<u64> =
        [5000].into_iter().chain(until_it_runs_the_elevator().iter().map(|io| io.sector)).collect();
    assert_eq!(device.sectors(), sectors, "by the one call");
    let stats = queue.stats();
    // The first one sends its plug, the other one what it had staged, and then its plug.
    assert_eq!((stats.direct, stats.batches), (2, 3), "both ran the elevator");
}

/// Two dispatchers, the second of which picks its batch while the first one's batch is on its way to the device. In
/// the kernel the batches could mix; here the device sees the order in which requests were picked.
#[test]
fn s16_21_a_batch_stays_together_if_another_thread_chooses_in_between() {
    for scheduler in registry::ALL {
        let (queue, device, mut sub) = interrupted_device(scheduler);
        let first = [5000, 5100, 5200, 5300];
        for sector in first {
            sub.push(T0, write(sector, 8)).expect("there is credit");
        }
        sub.flush(T0);
        let second = until_it_runs_the_elevator();
        // The policy decides the order within the second batch.
        let mut sectors = device.sectors();
        sectors[first.len()..].sort_unstable();
        let both: Vec<u64> = first.into_iter().chain(second.iter().map(|io| io.sector)).collect();
        assert_eq!(sectors, both, "{}", scheduler.name);
        let stats = queue.stats();
        assert_eq!(stats.direct, 2, "both ran the elevator");
        // Staged requests may have left ahead of the plug.
        assert!((2..=3).contains(&stats.batches), "{}: {stats:?}", scheduler.name);
    }
}

/// Line 9 for a whole queue. A real-time request is at the device, so a best-effort request makes the policy ask for a
/// pass in 10 s (the delay); real-time submissions request passes immediately. All of that happens while the runner is
/// stalled.
#[test]
fn s16_09_calls_for_a_pass_now_and_later_in_any_order_while_the_runner_is_stalled() {
    const AGE: Instant = Instant::from_nanos(10_000_000_000);
    let ioprio = |class| IoPrio::new(class, 0).expect("0 is a level");
    for now_at in [[0, 1], [0, 2], [1, 2]] {
        let (queue, device, [mut sub]) = queue_for(deadline());
        device.with(|c| c.interrupts = true);
        let rt = |sector| Io { ioprio: ioprio(Class::Realtime), ..write(sector, 8) };
        submit_each(&mut sub, T0, [rt(0)]);
        let mut stalled = queue.begin_run(HW).expect("it is free");
        for call in 0..3 {
            if now_at.contains(&call) {
                submit_each(&mut sub, T0, [rt(1000 * (call + 1))]);
            } else {
                submit_each(&mut sub, T0, [write(500, 8)]);
                stalled.step(T0);
            }
        }
        stalled.finish(T0);
        let expected: Vec<u64> =
            [0].into_iter().chain(now_at.map(|call| 1000 * (call + 1))).collect();
        assert_eq!(device.sectors(), expected, "at once");
        assert_eq!(sub.next_deadline(), Some(AGE), "and the delay stands");
        sub.poll(AGE.saturating_sub(Nanos(1)));
        assert_eq!(device.sectors().len(), 3);
        sub.poll(AGE);
        assert_eq!(device.sectors()[3..], [500]);
        device.finish(4);
        let _ = queue.pump(HW, AGE);
        drain(&mut sub, &mut { AGE }, 2);
        assert_at_rest(&queue, 1);
    }
}

/// A delay alone: the pass comes no earlier than requested, and is dropped when the awaited event comes first.
#[test]
fn s16_09_a_pass_now_does_what_a_later_one_was_asked_for() {
    for access in accesses() {
        let (config, device) = config(shape(1, 8));
        let queue = Queue::new(Config { access, ..config.scheduler(deadline()) }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.interrupts = true);
        let ioprio = IoPrio::new(Class::Realtime, 0).expect("0 is a level");
        submit_each(&mut sub, T0, [Io { ioprio, ..write(0, 8) }, write(500, 8)]);
        let ms = |ms| T0 + Nanos::from_millis(ms);
        assert_eq!(sub.next_deadline(), Some(ms(10_000)), "{access:?}");
        sub.poll(ms(9_999));
        assert_eq!(device.sectors(), [0]);
        // The real-time request completes long before.
        device.finish(1);
        let _ = queue.pump(HW, ms(9_999));
        assert_eq!(device.sectors(), [0, 500], "{access:?}");
        device.finish(1);
        let _ = queue.pump(HW, ms(9_999));
        drain(&mut sub, &mut ms(9_999), 2);
        assert_at_rest(&queue, 1);
    }
}
