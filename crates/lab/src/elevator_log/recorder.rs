//! Recording: an observer beside each policy writes down every call.

use super::wire::{Call, Entry, put_instance, put_log};
use crate::observe::env::Heard;
use crate::observe::policy::PolicyWatch;
use blkmq_core::{HwQueue, Instant, IoMeta, Owner, RequestId};
use blkmq_sched::{At, Cx, DepthLimits, Done, GroupChange, Grown, Options, Pick, Shape, Used};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The calls of the policies of one queue; clones are the same log. Each policy has a bounded part of its own.
#[derive(Clone)]
pub struct ElevatorLog(Arc<Inner>);

struct Inner {
    capacity: usize,
    instances: Mutex<Vec<Arc<Mutex<Part>>>>,
}

impl fmt::Debug for ElevatorLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElevatorLog").finish_non_exhaustive()
    }
}

struct Part {
    policy: &'static str,
    shape: Shape,
    options: Vec<(&'static str, i64)>,
    calls: Vec<u8>,
    missed: u64,
    latest: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ElevatorLog {
    /// An empty log that keeps `capacity` bytes of each policy's calls. Allocates as it fills.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Inner { capacity, instances: Mutex::default() }))
    }

    /// The number of calls that are missing from the log.
    #[must_use]
    pub fn missed(&self) -> u64 {
        lock(&self.0.instances).iter().map(|part| lock(part).missed).sum()
    }

    /// The present contents of the log as bytes; `command` is the command that it comes from.
    #[must_use]
    pub fn bytes(&self, command: &str) -> Vec<u8> {
        let instances = lock(&self.0.instances);
        let parts = instances.iter().map(|part| {
            let Part { policy, shape, options, calls, missed, .. } = &*lock(part);
            put_instance(policy, shape, options, *missed, calls)
        });
        put_log(command, &parts.collect::<Vec<_>>())
    }

    /// A recorder for the calls of a policy named `policy`.
    pub(crate) fn beside(
        &self,
        policy: &'static blkmq_sched::Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn PolicyWatch> {
        let names = policy.attributes.iter().map(|attribute| attribute.name);
        let given = names.filter_map(|name| Some((name, options.given(name)?)));
        let part = Part {
            policy: policy.name,
            shape: *shape,
            options: given.collect(),
            calls: Vec::new(),
            missed: 0,
            latest: Instant::ZERO,
        };
        let part = Arc::new(Mutex::new(part));
        lock(&self.0.instances).push(Arc::clone(&part));
        Box::new(Recorder { part, capacity: self.0.capacity })
    }
}

struct Recorder {
    part: Arc<Mutex<Part>>,
    capacity: usize,
}

impl Recorder {
    /// A call without a time has that of the call before.
    fn note(&self, now: Option<Instant>, entry: Entry<'_>) {
        let part = &mut *lock(&self.part);
        // Calls behind a missing one could be about requests that the log does not know.
        if part.missed > 0 || part.calls.len() >= self.capacity {
            part.missed += 1;
            return;
        }
        let now = now.unwrap_or(part.latest);
        Call { now, entry }.put(part.latest, &mut part.calls);
        part.latest = now;
    }
}

impl PolicyWatch for Recorder {
    fn inserted(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.note(Some(cx.now), Entry::Insert { rq, at, meta: *cx.requests.get(rq) });
    }

    fn asked(&mut self, cx: &Cx<'_>, hw: HwQueue, answer: Pick) {
        self.note(Some(cx.now), Entry::Pick { hw, answer });
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.note(Some(cx.now), Entry::Completed { done: *done });
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.note(Some(cx.now), Entry::Withdraw { rq });
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.note(Some(cx.now), Entry::Absorbed { into, gone, meta: *cx.requests.get(into) });
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.note(Some(cx.now), Entry::Grown { rq, edge, meta: *cx.requests.get(rq) });
    }

    fn may_merge(&mut self, cx: &Cx<'_>, into: RequestId, io: &IoMeta, answer: bool) {
        self.note(Some(cx.now), Entry::MayMerge { into, io: *io, answer });
    }

    fn heard(&mut self, now: Instant, what: Heard) {
        self.note(Some(now), Entry::Heard(what));
    }

    fn admits(&mut self, cx: &Cx<'_>, io: &IoMeta, used: Used, answer: bool) {
        self.note(Some(cx.now), Entry::Admits { io: *io, used, answer });
    }

    fn regrouped(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.note(Some(cx.now), Entry::Regroup(change));
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.note(Some(cx.now), Entry::Left(owner));
    }

    fn front_merges(&mut self, answer: bool) {
        self.note(None, Entry::FrontMerges { answer });
    }

    fn depth_limits(&mut self, answer: DepthLimits) {
        self.note(None, Entry::DepthLimits { answer });
    }

    fn attribute_set(&mut self, name: &str, value: i64, answer: bool) {
        self.note(None, Entry::Set { name, value, answer });
    }
}
