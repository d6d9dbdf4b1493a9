//! Observers of a queue's policies and devices: a trace, the number of requests in the elevators and at the device over
//! time, inversions, a log of the policies' calls.
//!
//! They are inserted between the engine and its plug-ins when a queue is built, see the calls of a policy or the
//! requests that a device gets and returns, and change nothing. Without observers no wrapper is inserted, so an
//! unobserved queue costs nothing.
//!
//! A [`Factory`] builds policies with a plain function, which cannot capture state. So the wrapper of a policy is kept
//! in a thread-local while a queue is being built, and only then: `build_with` sets and clears it.
//!
//! An inversion is a request that reaches a hardware queue before another one that the policy picked earlier for that
//! queue. Picks are numbered, and each arrival is compared with the highest number that has arrived there. A request
//! that the device requeues is picked again and gets a new number; flushes have none, and are not counted.

use crate::trace::record::Act;
use crate::trace::{Event, Tracer};
use crate::workload::{Course, Series};
use blkmq_core::{Instant, IoMeta, IoResult, Op, RequestId, Tag};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, DeviceQueues, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use blkmq_sched::{At, Cx, Factory, Grown, Options, Pick, Scheduler, Shape};
use blkmq_trace::elevator_log::ElevatorLog;
pub(crate) use blkmq_trace::watched::{Entry, PolicyWatch, watched};
use std::cell::RefCell;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The observers of a queue.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// A trace of events, except those of clients ([`Traced`](crate::trace::Traced)).
    pub tracer: Option<Tracer>,
    /// Depths over time.
    pub depths: Option<Depths>,
    /// A log of the policies' calls and answers.
    pub log: Option<ElevatorLog>,
    /// Counts the requests that reach the device in another order than the policy's.
    pub inversions: Option<Inversions>,
}

impl Observation {
    /// Returns whether there is no observer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { tracer, depths, log, inversions } = self;
        tracer.is_none() && depths.is_none() && log.is_none() && inversions.is_none()
    }

    /// Passes `config`, with observers in it, to `build`, which builds the queue before it returns.
    ///
    /// # Panics
    /// If there is an observer and the scheduler is neither in the registry nor one of the laboratory's own.
    pub fn of<P: Send + 'static, R>(
        &self,
        config: Config<P>,
        build: impl FnOnce(Config<P>) -> R,
    ) -> R {
        if self.is_empty() {
            return build(config);
        }
        let inner = config.scheduler;
        let queues = watched_device(config.queues, config.retries, || self.beside_device());
        let config = Config { queues, scheduler: factory(inner), ..config };
        let this = self.clone();
        let wrap = move |policy, shape: &Shape, options: &Options| {
            watched(policy, this.beside_policy(inner, shape, options))
        };
        build_with(inner, wrap, || build(config))
    }

    fn beside_device(&self) -> Vec<Box<dyn DeviceWatch>> {
        let mut watches: Vec<Box<dyn DeviceWatch>> = Vec::new();
        if let Some(tracer) = &self.tracer {
            watches.push(Box::new(TracedDevice(tracer.clone())));
        }
        if let Some(depths) = &self.depths {
            watches.push(Box::new(depths.clone()));
        }
        if let Some(inversions) = &self.inversions {
            watches.push(Box::new(inversions.beside_device()));
        }
        watches
    }

    fn beside_policy(
        &self,
        inner: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Vec<Box<dyn PolicyWatch>> {
        let mut watches: Vec<Box<dyn PolicyWatch>> = Vec::new();
        if let Some(tracer) = &self.tracer {
            watches.push(Box::new(TracedPolicy::new(tracer.clone(), shape)));
        }
        if let Some(depths) = &self.depths {
            watches.push(Box::new(depths.clone()));
        }
        if let Some(log) = &self.log {
            watches.push(log.beside(inner, shape, options));
        }
        if let Some(inversions) = &self.inversions {
            watches.push(Box::new(inversions.clone()));
        }
        watches
    }
}

/// Makes the wrapper of a policy.
type Wrap = Box<dyn Fn(Box<dyn Scheduler>, &Shape, &Options) -> Box<dyn Scheduler>>;

/// The factory and the wrapper of the next policies built on this thread.
struct Plan {
    /// The real factory.
    factory: &'static Factory,
    wrap: Wrap,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `build`, which builds a queue with the watched [`factory`] of `inner`. Its policies are those of `inner`,
/// wrapped by `wrap`.
pub(crate) fn build_with<R>(
    inner: &'static Factory,
    wrap: impl Fn(Box<dyn Scheduler>, &Shape, &Options) -> Box<dyn Scheduler> + 'static,
    build: impl FnOnce() -> R,
) -> R {
    PLAN.set(Some(Plan { factory: inner, wrap: Box::new(wrap) }));
    let built = build();
    PLAN.take();
    built
}

/// The factory of a wrapped policy of `inner`; it announces the same properties as `inner`. To be used within
/// [`build_with`]. It is never freed, and exists once for each `inner`.
pub(crate) fn factory(inner: &'static Factory) -> &'static Factory {
    static WATCHED: Mutex<Vec<(&Factory, &Factory)>> = Mutex::new(Vec::new());
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, factory)) = watched.iter().find(|(known, _)| std::ptr::eq(*known, inner)) {
        return factory;
    }
    let factory = Box::leak(Box::new(Factory {
        name: inner.name,
        summary: inner.summary,
        scope: inner.scope,
        attributes: inner.attributes,
        common: inner.common,
        build,
    }));
    watched.push((inner, factory));
    factory
}

fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    PLAN.with_borrow(|plan| {
        let plan = plan.as_ref().expect("a watched policy is built within `build_with`");
        (plan.wrap)((plan.factory.build)(shape, options), shape, options)
    })
}

/// The fate of a request at its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// The request has ended with the given result.
    Ended(IoResult),
    /// The request will be issued again.
    Again,
}

/// An observer of a device.
trait DeviceWatch: Send {
    /// The device has taken a request.
    fn issued(&mut self, now: Instant, rq: &Seen);
    /// The device has returned a request.
    fn returned(&mut self, now: Instant, rq: &Seen, fate: Fate);
}

/// A request as observers see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) id: RequestId,
    pub(crate) op: Op,
    pub(crate) flags: blkmq_core::IoFlags,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
}

impl From<&Inflight> for Seen {
    fn from(rq: &Inflight) -> Self {
        Self {
            id: rq.id(),
            op: rq.op(),
            flags: rq.flags(),
            sector: rq.sector(),
            sectors: rq.sectors(),
        }
    }
}

/// Attaches the observers that `watches` makes to each of `queues`. The engine retries a failed request `retries`
/// times.
fn watched_device<P: Send + 'static>(
    queues: DeviceQueues<P>,
    retries: u8,
    watches: impl Fn() -> Vec<Box<dyn DeviceWatch>>,
) -> DeviceQueues<P> {
    let watch =
        |inner| Box::new(Watched { inner, retries, watches: watches() }) as Box<dyn DeviceQueue<P>>;
    queues.into_iter().map(watch).collect()
}

struct Watched<P> {
    inner: Box<dyn DeviceQueue<P>>,
    retries: u8,
    watches: Vec<Box<dyn DeviceWatch>>,
}

impl<P> Watched<P> {
    fn issued(&mut self, now: Instant, rq: &Seen) {
        self.watches.iter_mut().for_each(|watch| watch.issued(now, rq));
    }

    fn returned(&mut self, now: Instant, rq: &Inflight, verdict: Verdict) {
        let fate = match verdict {
            Verdict::Done(Err(error)) if error.is_retryable() && rq.retries() < self.retries => {
                Fate::Again
            }
            Verdict::Done(result) => Fate::Ended(result),
            Verdict::Requeue | Verdict::RequeueTail => Fate::Again,
        };
        let seen = Seen::from(rq);
        self.watches.iter_mut().for_each(|watch| watch.returned(now, &seen, fate));
    }
}

impl<P: Send> DeviceQueue<P> for Watched<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let seen = Seen::from(&rq);
        let answer = self.inner.enqueue(now, bios, rq);
        match &answer {
            Enqueued::Accepted => self.issued(now, &seen),
            Enqueued::Done(rq, result) => {
                self.issued(now, &seen);
                self.returned(now, rq, Verdict::Done(*result));
            }
            Enqueued::Busy(..) => {}
        }
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, bios, out);
        for Finished { rq, verdict } in &out[before..] {
            self.returned(now, rq, *verdict);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        let answer = self.inner.timed_out(now, tag);
        if let Expiry::Done(rq, result) = &answer {
            self.returned(now, rq, Verdict::Done(*result));
        }
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        self.inner.next_event()
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn has_own_work(&self) -> bool {
        self.inner.has_own_work()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

/// Both depths of one queue; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    elevator: SharedDepths,
    device: SharedDepths,
}

#[derive(Clone, Debug, Default)]
struct SharedDepths(Arc<Mutex<Course>>);

impl SharedDepths {
    fn change(&self, at: Instant, by: i64) {
        let mut course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let level = course.level().saturating_add_signed(by);
        course.change(at, level);
    }

    fn until(&self, until: Instant) -> Series {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into_series(until)
    }
}

impl Depths {
    /// Requests held by policies, up to `until`.
    #[must_use]
    pub fn elevator(&self, until: Instant) -> Series {
        self.elevator.until(until)
    }

    /// Requests at the device, up to `until`.
    #[must_use]
    pub fn device(&self, until: Instant) -> Series {
        self.device.until(until)
    }
}

impl PolicyWatch for Depths {
    fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>) {
        let by = match entry {
            Entry::Insert { .. } => 1,
            Entry::Pick { answer: Pick::Issue(_), .. }
            | Entry::Withdraw { .. }
            | Entry::Absorbed { .. } => -1,
            _ => return,
        };
        self.elevator.change(cx.now, by);
    }
}

impl DeviceWatch for Depths {
    fn issued(&mut self, now: Instant, _: &Seen) {
        self.device.change(now, 1);
    }

    fn returned(&mut self, now: Instant, _: &Seen, _: Fate) {
        self.device.change(now, -1);
    }
}

/// The count for one queue with one elevator; clones share it.
#[derive(Clone, Debug)]
pub struct Inversions(Arc<SharedInversions>);

#[derive(Debug)]
struct SharedInversions {
    /// The number of the latest pick. One elevator at a time adds to it.
    picks: AtomicU64,
    /// The number of each request's pick, by request.
    numbers: Box<[AtomicU64]>,
    arrived: AtomicU64,
    inverted: AtomicU64,
}

impl Inversions {
    /// A counter for queues with up to `requests` requests.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        Self(Arc::new(SharedInversions {
            picks: AtomicU64::new(0),
            numbers: (0..requests).map(|_| AtomicU64::new(0)).collect(),
            arrived: AtomicU64::new(0),
            inverted: AtomicU64::new(0),
        }))
    }

    /// (requests that have arrived at the device, those of them that arrived after a request that was picked later for
    /// the same hardware queue).
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.0.arrived.load(Ordering::Relaxed), self.0.inverted.load(Ordering::Relaxed))
    }

    fn beside_device(&self) -> impl DeviceWatch + use<> {
        Arrivals { shared: Arc::clone(&self.0), latest: 0 }
    }
}

// Orderings: the thread that hands a request to the device got it from the thread that picked it, and so sees its
// number.
impl PolicyWatch for Inversions {
    fn called(&mut self, _: &Cx<'_>, entry: &Entry<'_>) {
        if let Entry::Pick { answer: Pick::Issue(rq), .. } = entry {
            let number = self.0.picks.fetch_add(1, Ordering::Relaxed) + 1;
            let place = self.0.numbers.get(rq.index());
            let place = place.expect("a queue has no more requests than it was said to have");
            place.store(number, Ordering::Relaxed);
        }
    }
}

/// The observer of one hardware queue.
struct Arrivals {
    shared: Arc<SharedInversions>,
    /// The highest number so far.
    latest: u64,
}

impl DeviceWatch for Arrivals {
    fn issued(&mut self, _: Instant, rq: &Seen) {
        if rq.op == Op::Flush {
            return;
        }
        let number = self.shared.numbers[rq.id.index()].load(Ordering::Relaxed);
        self.shared.arrived.fetch_add(1, Ordering::Relaxed);
        if number < self.latest {
            self.shared.inverted.fetch_add(1, Ordering::Relaxed);
        }
        self.latest = self.latest.max(number);
    }

    fn returned(&mut self, _: Instant, _: &Seen, _: Fate) {}
}

struct TracedPolicy {
    tracer: Tracer,
    /// Start and length of each held request, by slot, to compute by how much it grows.
    extents: Box<[(u64, u32)]>,
}

impl TracedPolicy {
    fn new(tracer: Tracer, shape: &Shape) -> Self {
        Self { tracer, extents: vec![(0, 0); shape.slots as usize].into_boxed_slice() }
    }
}

fn event(act: Act, meta: &IoMeta) -> Event {
    let IoMeta { op, flags, sector, sectors, .. } = *meta;
    Event { act, op, flags, sector, sectors }
}

impl TracedPolicy {
    /// Returns the I/O by which `rq`, now `meta`, has grown.
    fn joined(&self, rq: RequestId, edge: Grown, meta: &IoMeta) -> Event {
        let (sector, sectors) = self.extents[rq.index()];
        let act = if let Grown::Front { .. } = edge { Act::FrontMerge } else { Act::BackMerge };
        let io = Event { sectors: meta.sectors - sectors, ..event(act, meta) };
        match edge {
            Grown::Back => Event { sector: sector + u64::from(sectors), ..io },
            // The call does not include the position of a joined range of a discard.
            Grown::Front { .. } | Grown::Discard => io,
        }
    }
}

impl PolicyWatch for TracedPolicy {
    fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>) {
        let (rq, meta, io) = match entry {
            Entry::Insert { rq, at, meta } => {
                if *at == At::Tail {
                    self.tracer.note(cx.now, event(Act::GetRequest, meta));
                }
                (rq, meta, event(Act::Insert, meta))
            }
            Entry::Grown { rq, edge, meta } => (rq, meta, self.joined(*rq, *edge, meta)),
            Entry::Absorbed { into, gone, meta } => {
                (into, meta, event(Act::BackMerge, cx.requests.get(*gone)))
            }
            _ => return,
        };
        self.extents[rq.index()] = (meta.sector, meta.sectors);
        self.tracer.note(cx.now, io);
    }
}

struct TracedDevice(Tracer);

fn request(act: Act, rq: &Seen) -> Event {
    let Seen { op, flags, sector, sectors, .. } = *rq;
    Event { act, op, flags, sector, sectors }
}

impl DeviceWatch for TracedDevice {
    fn issued(&mut self, now: Instant, rq: &Seen) {
        self.0.note(now, request(Act::Issue, rq));
    }

    fn returned(&mut self, now: Instant, rq: &Seen, fate: Fate) {
        match fate {
            Fate::Ended(result) => self.0.ended(now, request(Act::Complete, rq), result),
            Fate::Again => self.0.note(now, request(Act::Requeue, rq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;

    fn seen(id: usize) -> Seen {
        let id = RequestId::new(id as u32, 0);
        Seen { id, op: Op::Read, flags: IoFlags::NONE, sector: 0, sectors: 8 }
    }

    #[test]
    fn a_request_is_inverted_if_a_later_one_came_first() {
        let all = Inversions::new(8);
        for (number, rq) in [4, 2, 0, 1].into_iter().enumerate() {
            all.0.numbers[seen(rq).id.index()].store(number as u64 + 1, Ordering::Relaxed);
        }
        let mut here = all.beside_device();
        // Picked as 4 2 0 1, arrived as 4 0 2 1: one inversion. Each hardware queue counts separately.
        for rq in [4, 0, 2, 1] {
            here.issued(Instant::ZERO, &seen(rq));
        }
        assert_eq!(all.counts(), (4, 1));
        let mut there = all.beside_device();
        there.issued(Instant::ZERO, &seen(4));
        assert_eq!(all.counts(), (5, 1));
        there.issued(Instant::ZERO, &Seen { op: Op::Flush, ..seen(7) });
        assert_eq!(all.counts(), (5, 1));
    }
}
