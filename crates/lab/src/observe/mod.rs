//! Observers of a queue's policies and devices: a trace, depths over time, a log of the policies' calls.
//!
//! They are inserted between the engine and its plug-ins when a queue is built, see the calls of a policy or the
//! requests that a device gets and returns, and change nothing. Without observers no wrapper is inserted, so an
//! unobserved queue costs nothing.
//!
//! A [`Factory`] builds policies with a plain function, which cannot capture state. So the wrapper of a policy is kept
//! in a thread-local while a queue is being built, and only then: `build_with` sets and clears it.

mod watches;
pub(crate) use blkmq_trace::watched::{PolicyWatch, watched};
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
pub use watches::{Depths, Inversions};

use crate::trace::Tracer;
use blkmq_core::{Instant, IoResult, Tag};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, DeviceQueues, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use blkmq_sched::{Factory, Options, Scheduler, Shape};
use blkmq_trace::elevator_log::ElevatorLog;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};
use watches::{TracedDevice, TracedPolicy};

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
    pub(crate) id: blkmq_core::RequestId,
    pub(crate) op: blkmq_core::Op,
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
