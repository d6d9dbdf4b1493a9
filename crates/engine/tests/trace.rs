//! Traces through a whole queue, in virtual time: each event once, whatever the path to the elevator; no more memory
//! than requested; and one trace at a time.

use crate::common;

use blkmq_core::{GroupId, Instant, IoError, IoFlags, Nanos, Op, RequestId};
use blkmq_engine::{
    Change, ChangeError, Config, Io, MAX_TRACE_NOTES, Plan, PolicyObserver, Queue, StatsMode,
    Submitter, Trace, TraceError, TraceEvent, TraceWhat, WriteCache,
};
use blkmq_sched::{
    Admission, At, Cx, Factory, Fresh, Observed, Observer, Options, Scheduler, Shape, registry,
};
use common::{Handle, config, replan, shape, ways};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const SERVICE: Nanos = Nanos::from_micros(100);

fn queue(
    scheduler: &str,
    depth: u32,
    change: impl Fn(&mut Config<u32>),
) -> (Queue<u32>, Submitter<u32>, Handle) {
    let (config, device) = config(shape(1, depth));
    device.with(|c| c.service = Some(SERVICE));
    let policy = registry::find(scheduler).expect("registered");
    let stats = StatsMode { times: true, ..StatsMode::default() };
    let mut config = Config { depth: 256, stats, ..config }.scheduler(policy);
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("there is one");
    (queue, submitter, device)
}

fn begin(queue: &Queue<u32>, notes: u32) -> Trace {
    let (trace, mut change) = queue.begin_trace(notes).expect("there is none");
    while !change.step(Instant::ZERO) {}
    trace
}

fn end(queue: &Queue<u32>, trace: &Trace) {
    let mut change = queue.end_trace(trace).expect("no other change is under way");
    while !change.step(Instant::ZERO) {}
}

fn events(queue: &Queue<u32>, trace: &mut Trace) -> Vec<TraceEvent> {
    queue.settle_trace();
    let mut all = Vec::new();
    while trace.read(7, |event| all.push(event)) {}
    all
}

fn count(of: &[TraceEvent], what: fn(TraceWhat) -> bool) -> usize {
    of.iter().filter(|event| what(event.what)).count()
}

fn sectors(of: &[TraceEvent], what: fn(TraceWhat) -> bool) -> u64 {
    of.iter().filter(|event| what(event.what)).map(|event| u64::from(event.sectors)).sum()
}

fn is_queued(what: TraceWhat) -> bool {
    what == TraceWhat::Queued
}

fn is_issued(what: TraceWhat) -> bool {
    what == TraceWhat::Issued
}

fn is_completed(what: TraceWhat) -> bool {
    matches!(what, TraceWhat::Completed(_))
}

fn drain(submitter: &mut Submitter<u32>, now: &mut Instant) {
    submitter.flush(*now);
    while submitter.in_flight() > 0 {
        *now += Nanos::from_micros(10);
        submitter.poll(*now);
        submitter.reap(u32::MAX, |_| {});
    }
}

/// Plugs of four I/Os, two of which are adjacent; plugs with even numbers continue the ones before.
fn work(submitter: &mut Submitter<u32>, now: &mut Instant, plugs: u64) {
    for n in 0..plugs {
        let base = (n / 2) * 4096 + (n % 2) * 16;
        for (at, sector) in [base, base + 8, base + 1024, base + 2048].into_iter().enumerate() {
            let cookie = n * 4 + at as u64;
            let op = if at == 3 { Op::Write } else { Op::Read };
            let io = Io { group: GroupId::ROOT, ..Io::new(op, sector, 8, cookie, 0) };
            submitter.push(*now, io).expect("there is credit");
        }
        submitter.flush(*now);
        *now += Nanos::from_micros(20);
        if n % 8 == 7 {
            drain(submitter, now);
        }
    }
    drain(submitter, now);
}

#[test]
fn every_event_is_there_once_however_the_elevator_is_reached() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        for (access, modes) in ways() {
            let at = format!("{scheduler} {access} {modes:?}");
            let (queue, mut submitter, _) = queue(scheduler, 4, |c| {
                (c.access, c.modes) = (access, modes);
            });
            let mut trace = begin(&queue, 4096);
            let mut now = Instant::ZERO;
            work(&mut submitter, &mut now, 64);
            let times = queue.times();
            end(&queue, &trace);
            let all = events(&queue, &mut trace);
            let ended: u64 = times.all().iter().map(|of| of.ios).sum();
            let bytes: u64 = times.all().iter().map(|of| of.bytes).sum();
            assert_eq!(trace.lost(), 0, "{at}");
            assert_eq!(count(&all, is_queued), 256, "{at}");
            assert_eq!(count(&all, is_issued) as u64, ended, "{at}");
            assert_eq!(count(&all, is_completed) as u64, ended, "{at}");
            for kind in [is_queued, is_issued, is_completed] {
                assert_eq!(sectors(&all, kind) << 9, bytes, "{at}");
            }
            // An I/O became a request or joined one; a request that was merged into another is gone.
            let got = count(&all, |what| what == TraceWhat::Got);
            let back = count(&all, |what| what == TraceWhat::BackMerged);
            let front = count(&all, |what| what == TraceWhat::FrontMerged);
            let inserted = count(&all, |what| what == TraceWhat::Inserted);
            let fused = queue.stats().merges.request as usize;
            assert_eq!(got, inserted, "{at}");
            assert_eq!(got + back + front - fused, 256, "{at}");
            assert_eq!((got - fused) as u64, ended, "{at}");
            assert!(back > 0, "{at}: the neighbours have merged");
        }
    }
}

#[test]
fn times_are_those_of_the_counts() {
    let (queue, mut submitter, _) = queue("mq-deadline", 1, |c| c.nr_requests = Some(4));
    let mut trace = begin(&queue, 64);
    let begun = Instant::from_nanos(1_000_000);
    let mut now = begun;
    for n in 0..8 {
        submitter.push(now, Io::new(Op::Read, n * 1024, 8, n, 0)).expect("there is credit");
    }
    drain(&mut submitter, &mut now);
    let all = events(&queue, &mut trace);
    let time = |what: fn(TraceWhat) -> bool| -> u64 {
        let of = all.iter().filter(|event| what(event.what));
        of.map(|event| event.at.since(begun).0).sum()
    };
    let reads = &queue.times().all()[0];
    assert_eq!(time(is_queued), 0, "when they came, although four of them waited for a slot");
    assert_eq!(time(|what| what == TraceWhat::Got), reads.slot);
    assert_eq!(time(is_issued), reads.slot + reads.policy + reads.tag);
    assert_eq!(time(is_completed) - time(is_issued), reads.device);
}

#[test]
fn notes_without_room_are_dropped_and_counted_and_no_io_waits() {
    let (queue, mut submitter, _) = queue("none", 32, |_| {});
    let mut trace = begin(&queue, 5);
    let mut now = Instant::ZERO;
    let io = |n: u64| Io::new(Op::Read, n * 1024, 8, n, 0);
    for n in 0..20 {
        submitter.push(now, io(n)).expect("there is credit");
    }
    drain(&mut submitter, &mut now);
    let kept = events(&queue, &mut trace);
    // For each I/O a note for its arrival, its issue, and its end: 60 notes, and room for 8, a power of two.
    assert_eq!(trace.lost(), 52);
    assert!(kept[0].what == TraceWhat::Queued && kept[0].sector == 0, "the oldest are kept");
    assert_eq!(kept.len(), 8 * 3, "a plug of 20 came before any of them left");
    submitter.push(now, io(20)).expect("there is credit");
    drain(&mut submitter, &mut now);
    assert_eq!(events(&queue, &mut trace).len(), 5, "there is room again");
    assert_eq!(trace.lost(), 52);
    for notes in [0, MAX_TRACE_NOTES + 1] {
        assert_eq!(queue.begin_trace(notes).err(), Some(TraceError::Room(notes)));
    }
}

#[test]
fn a_trace_goes_on_under_the_next_scheduler_and_forgets_none_of_the_first() {
    let (queue, mut submitter, _) = queue("mq-deadline", 4, |_| {});
    let mut trace = begin(&queue, 1024);
    let mut now = Instant::ZERO;
    for name in ["bfq", "none", "kyber"] {
        work(&mut submitter, &mut now, 8);
        let policy = registry::find(name).expect("registered");
        let plan = Plan { nr_requests: Some(16), ..queue.plan() }.scheduler(policy);
        let mut change = replan(&queue, plan).expect("possible");
        while !change.step(now) {
            now += Nanos::from_micros(10);
        }
        work(&mut submitter, &mut now, 8);
    }
    let all = events(&queue, &mut trace);
    assert_eq!(count(&all, is_queued), 6 * 32);
    let ended: u64 = queue.times().all().iter().map(|of| of.ios).sum();
    assert_eq!(count(&all, is_completed) as u64, ended);
    assert_eq!(trace.lost(), 0);
    // Changes of other settings leave the trace as it is, until it is ended.
    let mut change =
        replan(&queue, Plan { async_depth: Some(3), ..queue.plan() }).expect("possible");
    while !change.step(now) {}
    work(&mut submitter, &mut now, 8);
    assert_eq!(count(&events(&queue, &mut trace), is_queued), 32);
    end(&queue, &trace);
    work(&mut submitter, &mut now, 8);
    assert_eq!(events(&queue, &mut trace).len(), 0, "it is over");
}

#[test]
fn one_trace_at_a_time() {
    let (queue, mut submitter, _) = queue("none", 4, |_| {});
    let first = begin(&queue, 64);
    assert_eq!(queue.begin_trace(64).err(), Some(TraceError::Busy));
    end(&queue, &first);
    let mut second = begin(&queue, 64);
    // Ending a trace that is over does not affect the other one.
    end(&queue, &first);
    let mut now = Instant::ZERO;
    work(&mut submitter, &mut now, 1);
    assert_eq!(count(&events(&queue, &mut second), is_queued), 4);
    let (_third, change) = {
        end(&queue, &second);
        queue.begin_trace(64).expect("there is none")
    };
    assert_eq!(queue.end_trace(&second).err(), Some(ChangeError::Busy));
    drop(change);
    let _fourth = begin(&queue, 64);
}

#[test]
fn flushes_of_the_device_are_events_and_not_the_io_that_asked() {
    let cache = WriteCache::Back { fua: false };
    let (queue, mut submitter, _) = queue("mq-deadline", 4, |c| c.device.cache = cache);
    let mut trace = begin(&queue, 256);
    let mut now = Instant::ZERO;
    let write = Io::new(Op::Write, 0, 8, 1, 0);
    for io in [Io { flags: IoFlags::FUA, ..write }, Io::new(Op::Flush, 0, 0, 2, 0)] {
        submitter.push(now, io).expect("there is credit");
        drain(&mut submitter, &mut now);
    }
    let all = events(&queue, &mut trace);
    let of = |op: Op, what: fn(TraceWhat) -> bool| {
        all.iter().filter(|event| event.op == op && what(event.what)).count() as u64
    };
    let flushes = queue.times().flushes;
    assert_eq!(flushes, 2, "one after the data, and the bare one");
    assert_eq!((of(Op::Flush, is_queued), of(Op::Write, is_queued)), (1, 1));
    assert_eq!((of(Op::Flush, is_issued), of(Op::Flush, is_completed)), (flushes, flushes));
    assert_eq!((of(Op::Write, is_issued), of(Op::Write, is_completed)), (1, 1));
}

#[test]
fn a_request_that_is_tried_again_is_issued_twice_and_its_error_is_told() {
    let (queue, mut submitter, device) = queue("mq-deadline", 4, |c| c.retries = 1);
    let mut trace = begin(&queue, 64);
    let mut now = Instant::ZERO;
    device.with(|c| c.result = Some(Err(IoError::IO)));
    submitter.push(now, Io::new(Op::Read, 0, 8, 1, 0)).expect("there is credit");
    drain(&mut submitter, &mut now);
    let what: Vec<TraceWhat> = events(&queue, &mut trace).iter().map(|event| event.what).collect();
    let all = [
        TraceWhat::Queued,
        TraceWhat::Got,
        TraceWhat::Inserted,
        TraceWhat::Issued,
        TraceWhat::Requeued,
        TraceWhat::Issued,
        TraceWhat::Completed(Err(IoError::IO)),
    ];
    assert_eq!(what, all);
}

/// Counts the policies that it wraps.
#[derive(Default)]
struct Around(AtomicU32);

/// Counts insertions, and may be removed.
struct Beside {
    inserted: Arc<AtomicU32>,
}

struct Counting {
    policies: Around,
    inserted: Arc<AtomicU32>,
}

impl PolicyObserver for Counting {
    fn around(
        &self,
        inner: Box<dyn Scheduler>,
        _: &'static Factory,
        _: &Shape,
        _: &Options,
    ) -> Box<dyn Scheduler> {
        self.policies.0.fetch_add(1, Relaxed);
        Box::new(Observed::new(inner, Beside { inserted: Arc::clone(&self.inserted) }))
    }
}

impl Observer for Beside {
    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.inserted.fetch_add(1, Relaxed);
        policy.insert(cx, rq, at);
    }

    fn admit(
        &mut self,
        _: &mut dyn Scheduler,
        _: &Cx<'_>,
        _: &Fresh<'_>,
        _: &mut [u8],
    ) -> Admission {
        // Each request is inserted.
        Admission::Refused
    }

    fn may_leave(&self) -> bool {
        true
    }
}

#[test]
fn an_observer_sees_policies_from_their_beginning_until_it_is_taken_away() {
    let (queue, mut submitter, device) = queue("mq-deadline", 1, |_| {});
    let inserted = Arc::new(AtomicU32::new(0));
    let observer = Counting { policies: Around::default(), inserted: Arc::clone(&inserted) };
    let observer = Arc::new(observer);
    let finish = |mut change: Change<u32>| while !change.step(Instant::ZERO) {};
    let observe = || queue.observe_policies(Arc::<Counting>::clone(&observer));
    let mut now = Instant::ZERO;
    let io = |n: u64| Io::new(Op::Read, n * 1024, 8, n, 0);
    finish(observe().expect("there is none"));
    assert_eq!(observe().err(), Some(TraceError::Busy));
    submitter.push(now, io(0)).expect("there is credit");
    drain(&mut submitter, &mut now);
    assert_eq!((observer.policies.0.load(Relaxed), inserted.load(Relaxed)), (1, 1));
    // The observer also wraps the policy of the next scheduler.
    let policy = registry::find("kyber").expect("registered");
    finish(replan(&queue, queue.plan().scheduler(policy).nr_requests(8)).expect("possible"));
    assert_eq!(observer.policies.0.load(Relaxed), 2);
    // The observer is removed while requests are held, and they stay with their policy.
    device.with(|c| c.service = None);
    (1..4).for_each(|n| submitter.push(now, io(n)).expect("there is credit"));
    submitter.flush(now);
    assert_eq!(inserted.load(Relaxed), 4);
    finish(queue.unobserve_policies().expect("no other change is under way"));
    submitter.push(now, io(4)).expect("there is credit");
    submitter.flush(now);
    assert_eq!(inserted.load(Relaxed), 4, "it is told no more");
    device.with(|c| (c.service, c.finish) = (Some(SERVICE), 1));
    for _ in 0..5 {
        device.finish(1);
        now += SERVICE;
        submitter.poll(now);
    }
    assert_eq!(device.sectors().len(), 5, "each was picked");
}
