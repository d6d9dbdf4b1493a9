//! The short paths of a plug (decision 0017): around a policy that only keeps the order, and directly through for a
//! request that comes alone.

use crate::common::{
    Handle, assert_at_rest, config, deadline, drain, read, replan, shape, submit_each, write,
};
use blkmq_core::{GroupId, HwQueue, Instant, Nanos, Op, RequestId};
use blkmq_engine::{
    Busy, Config, GroupSpec, GroupTree, Io, IoTimes, Plan, Promise, Queue, StatsMode, Submitter,
};
use blkmq_sched::{
    At, Bypass, Cx, Done, Factory, Facts, Observed, Observer, Options, Pick, Scheduler, Scope,
    registry,
};
use std::cell::{Cell, RefCell};

const T0: Instant = Instant::ZERO;

thread_local! {
    /// How many requests were inserted at the tail, inserted at the head, picked, passed, completed.
    static SEEN: RefCell<[u32; 5]> = const { RefCell::new([0; 5]) };
    /// Until this time, no request passes or is picked.
    static KEPT_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Counts the calls of `none`.
struct Counted;

const FACTORY: Factory = Factory {
    name: "counted",
    summary: "none, counting calls",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape, _| {
        let factory = registry::find("none").expect("registered");
        let none = (factory.build)(shape, &Options::defaults(factory.attributes));
        Box::new(Observed::new(none, Counted))
    },
};

fn note(what: usize) {
    SEEN.with_borrow_mut(|seen| seen[what] += 1);
}

fn seen() -> [u32; 5] {
    SEEN.with_borrow(|seen| *seen)
}

impl Observer for Counted {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        let facts = policy.facts();
        assert_eq!(facts.bypass, Bypass::Untold, "none has nothing to be told");
        let bypass = if KEPT_UNTIL.get().is_some() { Bypass::Never } else { Bypass::Told };
        Facts { bypass, ..facts }
    }

    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        note(usize::from(at == At::Head));
        policy.insert(cx, rq, at);
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        if let Some(until) = KEPT_UNTIL.get().filter(|until| cx.now < *until) {
            note(2);
            return Pick::WaitUntil(until);
        }
        let pick = policy.pick(cx, hw);
        if matches!(pick, Pick::Issue(_)) {
            note(2);
        }
        pick
    }

    fn passed(&mut self, _: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, _: HwQueue) {
        assert!(cx.requests.get(rq).sectors >= 8, "it has a slot");
        note(3);
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        note(4);
        policy.completed(cx, done);
    }
}

#[test]
fn a_plug_passes_as_far_as_there_are_tags_and_the_rest_waits() {
    let (config, device) = config(shape(1, 4));
    let config = config.scheduler(&FACTORY);
    let queue = Queue::new(Config { nr_requests: Some(4), ..config }).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    for at in [500, 100, 300] {
        sub.push(T0, write(at, 8)).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!((device.sectors(), seen()), (vec![500, 100, 300], [0, 0, 0, 3, 0]));
    for at in [700, 900] {
        sub.push(T0, write(at, 8)).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!(device.sectors(), [500, 100, 300, 700], "four tags, and four slots");
    assert_eq!(seen(), [0, 0, 0, 4, 0], "the last one has no slot");
    // Slots of all passed requests return, and none overtakes the waiting request.
    device.finish(1);
    sub.poll(T0);
    for at in [908, 1100] {
        sub.push(T0, write(at, 8)).expect("there is credit");
    }
    sub.flush(T0);
    device.finish(100);
    drain(&mut sub, &mut { T0 }, 100);
    assert_eq!(&device.sectors()[..5], [500, 100, 300, 700, 900]);
    let [tail, head, picked, passed, completed] = seen();
    let no_other_way = [tail, head, picked];
    assert_eq!((no_other_way, passed), ([0; 3], 7), "a request that waited passes like any other");
    // The policy learns of the last ones in the next pass.
    assert!((5..=7).contains(&completed), "{completed} completions");
    assert_at_rest(&queue, 1);
}

#[test]
fn only_as_many_writes_pass_as_async_depth_allows() {
    let (config, device) = config(shape(1, 16));
    let queue = Queue::new(config.scheduler(&FACTORY)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let plan = Plan { async_depth: Some(3), ..queue.plan() };
    let mut change = replan(&queue, plan).expect("possible");
    while !change.step(T0) {}
    SEEN.set([0; 5]);
    for io in [write(100, 8), read(200, 8), write(300, 8), read(400, 8), write(500, 8)] {
        sub.push(T0, io).expect("there is credit");
    }
    for io in [read(600, 8), write(700, 8), read(800, 8)] {
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
    let sent = [100, 200, 300, 400, 500, 600];
    assert_eq!(
        (device.sectors(), seen()[3]),
        (sent.to_vec(), 6),
        "three writes, and the reads ahead"
    );
    device.finish(100);
    drain(&mut sub, &mut { T0 }, 100);
    assert_eq!(device.sectors()[6..], [700, 800], "and then the rest");
    assert_at_rest(&queue, 1);
}

#[test]
fn nothing_passes_what_the_device_has_refused_or_sent_back() {
    let (config, device) = config(shape(1, 8));
    let queue = Queue::new(config.scheduler(&FACTORY)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    for at in [100, 300] {
        sub.push(T0, write(at, 8)).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!(seen(), [0, 0, 0, 2, 0]);
    sub.push(T0, write(500, 8)).expect("there is credit");
    sub.flush(T0);
    assert_eq!(seen(), [1, 0, 0, 2, 0], "it waits behind those that the device refused");
    let mut now = T0;
    // One request is requeued by the device and inserted at the head, like any other.
    device.with(|c| (c.requeue, c.finish) = (1, 10));
    drain(&mut sub, &mut now, 100);
    let [tail, head, picked, passed, _] = seen();
    assert_eq!((tail, head, picked, passed), (1, 1, 2, 2));
    assert!(device.sectors().starts_with(&[100, 300]), "{:?}", device.sectors());
    assert_at_rest(&queue, 1);
}

#[test]
fn a_request_that_comes_alone_is_asked_for_at_once_and_held_if_the_policy_keeps_it() {
    let (config, device) = config(shape(1, 8));
    let at = T0 + Nanos::from_millis(1);
    KEPT_UNTIL.set(Some(at));
    let queue = Queue::new(config.scheduler(&FACTORY)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    sub.push(T0, write(100, 8)).expect("there is credit");
    sub.flush(T0);
    assert_eq!(seen(), [1, 0, 1, 0, 0], "it is asked for once in a pass");
    assert_eq!((device.sectors(), sub.next_deadline()), (vec![], Some(at)));
    assert_eq!(queue.tags_in_use(HwQueue(0)), 0);
    // It is held like any other request: another I/O joins it.
    sub.push(T0, write(108, 8)).expect("there is credit");
    sub.flush(T0);
    assert_eq!((seen()[0], queue.stats().merges.total()), (1, 1));
    device.with(|c| c.inline = true);
    sub.poll(at);
    assert_eq!(device.sectors(), [100]);
    sub.push(at, write(900, 8)).expect("there is credit");
    sub.flush(at);
    assert_eq!(device.sectors(), [100, 900], "the policy gives it at once");
    drain(&mut sub, &mut { at }, 10);
    assert_at_rest(&queue, 1);
    KEPT_UNTIL.set(None);
}

const MS: Nanos = Nanos::from_millis(1);
const SERVICE: Nanos = Nanos::from_millis(2);

/// A queue with that policy, which counts times, in front of a device with `depth` tags that takes [`SERVICE`] per
/// request.
fn timed(depth: u32) -> Queue<u32> {
    let (config, device) = config(shape(1, depth));
    device.with(|c| c.service = Some(SERVICE));
    let stats = StatsMode { times: true, ..StatsMode::default() };
    Queue::new(Config { stats, ..config }.scheduler(&FACTORY)).expect("valid")
}

/// The cookies of all I/Os in flight, after they have completed.
fn ends(sub: &mut Submitter<u32>, now: &mut Instant) -> Vec<u64> {
    let mut all = Vec::new();
    while sub.in_flight() > 0 {
        sub.poll(*now);
        sub.reap(u32::MAX, |done| all.push(done.cookie));
        *now = sub.next_deadline().map_or(*now, |at| at.max(*now));
    }
    all.sort_unstable();
    all
}

/// Milliseconds waiting for a slot, in the policy, waiting for a tag, and at the device.
fn stages(of: &IoTimes) -> [u64; 4] {
    [of.slot, of.policy, of.tag, of.device].map(|ns| ns / MS.0)
}

#[test]
fn the_times_of_requests_that_pass_are_counted() {
    let queue = timed(8);
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    let mut now = T0 + MS;
    for at in [100, 300, 308] {
        sub.push(now, write(at, 8)).expect("there is credit");
    }
    now += MS;
    sub.flush(now);
    assert_eq!(seen(), [0, 0, 0, 2, 0], "they pass although they are counted");
    ends(&mut sub, &mut now);
    let writes = &queue.times().all()[1];
    assert_eq!((writes.ios, writes.merged, writes.bytes), (2, 1, 3 * 4096));
    assert_eq!(stages(writes), [2, 0, 0, 4], "two of them, a millisecond each in the plug");
    assert_eq!(queue.times().busy, SERVICE.0);
    assert_at_rest(&queue, 1);
}

/// The elevator counts that a tag is missing even after the only I/O that waited for one was cancelled, until a request
/// takes a tag, by either path.
#[test]
fn a_request_that_comes_alone_waits_for_no_tag_that_an_earlier_one_missed() {
    KEPT_UNTIL.set(Some(T0));
    let queue = timed(1);
    let mut sub = queue.submitter().expect("one is free");
    for at in [100, 300] {
        sub.push(T0, write(at, 8)).expect("there is credit");
        sub.flush(T0);
    }
    // It waits for a tag.
    sub.cancel(T0, 300);
    let mut now = T0;
    assert_eq!(ends(&mut sub, &mut now), [100, 300]);
    now += SERVICE;
    KEPT_UNTIL.set(Some(now + MS));
    sub.push(now, write(900, 8)).expect("there is credit");
    sub.flush(now);
    assert_eq!(ends(&mut sub, &mut now), [900]);
    assert_eq!(stages(&queue.times().all()[1]), [0, 1, 0, 4], "the policy kept the last one");
    KEPT_UNTIL.set(None);
}

/// A queue with that policy and a device with eight tags. The first group has a goal of a millisecond for reads, the
/// second has none.
fn with_goal() -> (Queue<u32>, Handle, [GroupId; 2]) {
    let (config, device) = config(shape(1, 8));
    let goal = Promise::default().set("p99_read=1000").expect("right");
    let spec =
        |name: &str, promise| GroupSpec { name: name.into(), promise, ..GroupSpec::default() };
    let groups = vec![spec("victim", goal), spec("flood", Promise::default())];
    let groups = GroupTree::of(groups).expect("a tree");
    let ids = ["victim", "flood"].map(|name| groups.find(name).expect("there"));
    let queue = Queue::new(Config { groups, ..config.scheduler(&FACTORY) }).expect("valid");
    (queue, device, ids)
}

/// The controller of latency goals sees requests as they complete. Until it restricts a group, they pass as without it,
/// without a budget; afterwards each needs one.
#[test]
fn with_a_latency_goal_requests_pass_until_something_is_taken() {
    let (queue, device, [victim, flood]) = with_goal();
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    let mut now = T0;
    let io = |group, op, at| Io { group, ..Io::new(op, at, 8, at, at as u32) };
    sub.push(now, io(victim, Op::Read, 100)).expect("there is credit");
    sub.flush(now);
    assert_eq!((seen(), queue.budgets_in_use()), ([0, 0, 0, 1, 0], 0), "one that comes alone");
    for at in [500, 300] {
        sub.push(now, io(flood, Op::Write, at)).expect("there is credit");
    }
    sub.flush(now);
    assert_eq!((seen(), queue.budgets_in_use()), ([0, 0, 0, 3, 0], 0), "a plug");
    for at in (1000..1600).step_by(100) {
        sub.push(now, io(flood, Op::Write, at)).expect("there is credit");
    }
    sub.flush(now);
    let [tail, _, picked, passed, _] = seen();
    assert_eq!(
        (tail, picked, passed),
        (1, 0, 8),
        "as many as there are tags, and one waits in line"
    );
    assert_eq!(queue.budgets_in_use(), 0);
    for _ in 0..3 {
        now += Nanos::from_millis(100);
        device.finish(100);
        sub.poll(now);
        sub.reap(u32::MAX, |_| {});
        sub.push(now, io(victim, Op::Read, now.as_nanos() / 1_000_000)).expect("there is credit");
        sub.push(now, io(flood, Op::Write, now.as_nanos() / 100_000)).expect("there is credit");
        sub.flush(now);
    }
    assert_ne!(queue.goals().expect("there is one").taken, Default::default(), "reads were late");
    let (_, [tail, .., passed, _]) = (device.finish(100), seen());
    sub.poll(now);
    device.finish(0);
    sub.push(now, io(victim, Op::Read, 7000)).expect("there is credit");
    sub.flush(now);
    assert_eq!((seen()[0], seen()[3]), (tail + 1, passed), "the long way");
    assert_eq!(queue.budgets_in_use(), 1, "and those that left before have none");
    device.finish(100);
    drain(&mut sub, &mut now, 100);
    assert_at_rest(&queue, 1);
}

/// A policy may keep a request that came alone if groups have goals.
#[test]
fn a_request_that_is_kept_has_no_budget() {
    let at = T0 + MS;
    KEPT_UNTIL.set(Some(at));
    let (queue, device, [victim, _]) = with_goal();
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    sub.push(T0, Io { group: victim, ..write(100, 8) }).expect("there is credit");
    sub.flush(T0);
    assert_eq!((seen(), queue.budgets_in_use()), ([1, 0, 1, 0, 0], 0));
    device.with(|c| c.inline = true);
    drain(&mut sub, &mut { at }, 10);
    assert_eq!(device.sectors(), [100]);
    assert_at_rest(&queue, 1);
    KEPT_UNTIL.set(None);
}

/// I/Os that a runner finds in staging, where the submitter left them because the elevator was taken.
#[test]
fn what_was_staged_passes_unless_it_could_merge() {
    let (config, device) = config(shape(1, 16));
    let queue = Queue::new(config.scheduler(&FACTORY)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    SEEN.set([0; 5]);
    let mut stage = |ios: &[u64]| {
        let runner = queue.begin_run(HwQueue(0)).expect("no thread has it");
        submit_each(&mut sub, T0, ios.iter().map(|at| write(*at, 8)));
        runner.finish(T0);
    };
    stage(&[500, 100, 300]);
    assert_eq!((device.sectors(), seen()), (vec![500, 100, 300], [0, 0, 0, 3, 0]));
    // More than a portion.
    stage(&[1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800]);
    assert_eq!(seen(), [0, 0, 0, 12, 0]);
    // Two plugs, whose I/Os could not merge.
    stage(&[2008, 2000]);
    assert_eq!(device.sectors()[12..], [2000]);
    assert_eq!(seen()[..4], [1, 0, 1, 12], "they have merged");
    device.finish(100);
    drain(&mut sub, &mut { T0 }, 100);
    assert_at_rest(&queue, 1);
}

/// Under a policy that sorts a plug, a staged portion is sorted, and the next one follows it.
#[test]
fn what_was_staged_passes_in_the_order_of_the_policy() {
    let (config, device) = config(shape(1, 32));
    let queue = Queue::new(config.scheduler(deadline())).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let runner = queue.begin_run(HwQueue(0)).expect("no thread has it");
    let staged = [900, 500, 100, 300, 700, 1100, 1500, 1300, 200, 400];
    submit_each(&mut sub, T0, staged.map(|at| write(at, 8)));
    runner.finish(T0);
    let stats = queue.stats();
    assert_eq!((stats.staged, stats.inserted, stats.batches), (10, 10, 2));
    assert_eq!(device.sectors(), [100, 300, 500, 700, 900, 1100, 1300, 1500, 200, 400]);
    device.finish(100);
    drain(&mut sub, &mut { T0 }, 100);
    assert_at_rest(&queue, 1);
}
