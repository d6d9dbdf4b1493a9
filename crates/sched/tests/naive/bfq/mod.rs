//! `bfq`, written from its page and `spec/bfq.md`: vectors and scans. All counts are computed anew each time.
//!
//! It covers the order of a queue, activation, selection, budgets, expiry, idling, raising, bursts, groups, depth
//! limits, the merging of queues, injection and wakers. Statistics have tests of their own.
//!
//! It shares the `values` of the policy: the habits of a queue, the estimate of the rate, and the meaning of attributes
//! and priorities. It shares no table, tree, count or decision.

mod arrival;
mod turns;
pub mod wf2q;

use arrival::{Filed, Injection, Sampling, Waker};
use blkmq_core::{GroupIndex, HwQueue, Instant, IoFlags, IoMeta, IoPrio, Nanos, Owner, RequestId};
use blkmq_sched::bfq::values::{IoShare, PeakRate, Priority, Seeks, ThinkTime, Tunables};
use blkmq_sched::bfq::wf2q::{Class, ROOT};
use blkmq_sched::{At, Cx, Done, Facts, GroupChange, Grown, Options, Pick, Scheduler, Shape, Used};
use std::collections::BTreeMap;
use wf2q::{Bug, Naive};

/// The number of queues that the twin can have, since scripts have few owners.
const QUEUES: u32 = 160;

pub(super) fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    Box::new(Twin {
        tunables: Tunables::new(options),
        rotational: shape.rotational,
        tags: shape.nr_requests * u32::from(shape.hw_queues),
        now: Instant::ZERO,
        engine: Naive::new(QUEUES, Bug::None),
        queues: vec![None; QUEUES as usize],
        senders: BTreeMap::new(),
        levels: BTreeMap::from([(GroupIndex::ROOT, ROOT)]),
        requests: Vec::new(),
        filings: 0,
        serving: None,
        slot_began: Instant::ZERO,
        slot_ends: Instant::ZERO,
        idle_until: None,
        idle_began: Instant::ZERO,
        last_position: 0,
        serving_position: 0,
        last_completed: None,
        last_created: None,
        sampling: Sampling::NONE,
        last_completion: Instant::ZERO,
        device_queues: None,
        device_samples: 0,
        device_most: 0,
        rate: PeakRate::new(shape.rotational),
        assigned: 0,
        auto_budget: 16_384,
        burst: Vec::new(),
        burst_large: false,
        burst_last: Instant::ZERO,
        burst_level: ROOT,
    })
}

fn is_sync(io: &IoMeta) -> bool {
    let waited_for = [IoFlags::SYNC, IoFlags::FUA, IoFlags::PREFLUSH];
    waited_for.into_iter().any(|flag| io.flags.contains(flag))
}

/// A sender: an owner, or the async I/O of a level at a priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    Owner(u32),
    Async(u32, u8),
}

/// The queue of a sender, and the sender's own state.
#[derive(Clone)]
struct Proc {
    queue: Option<usize>,
    ioprio: IoPrio,
    /// The group of its last I/O; `None` if the name of that group was reused.
    group: Option<GroupIndex>,
    /// The state of its own queue before sharing.
    saved: Option<Box<Queue>>,
    /// The number of the queue that it is to share permanently.
    twin: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Waiting,
    Device,
}

#[derive(Clone, Copy)]
struct Request {
    rq: RequestId,
    queue: usize,
    owner: u32,
    place: Place,
    sector: u64,
    sectors: u32,
    /// Rises with every filing.
    filing: u64,
    due: Instant,
}

#[derive(Clone)]
struct Queue {
    /// A number that no other queue has.
    born: u64,
    created: Instant,
    sync: bool,
    is_of_threads: bool,
    priority: Priority,
    busy: bool,
    /// Rises with each queue that becomes busy.
    busy_number: u64,
    next: Option<RequestId>,
    max_budget: u64,
    back_soon: bool,
    fifo_looked_at: bool,
    next_is_due: bool,
    just_created: bool,
    idle_since: Option<Instant>,
    waiting_since: Instant,
    backlogged: Instant,
    served: u64,
    think: ThinkTime,
    short_think: bool,
    share: IoShare,
    seeks: Seeks,
    last_end: u64,
    in_burst: bool,
    factor: u32,
    raised_for: Nanos,
    raised_at: Instant,
    interrupted: Option<Instant>,
    raised_service: u64,
    soft_rt_after: Instant,
    soft_rt_due: bool,
    first_io: Instant,
    shared: bool,
    stable: bool,
    to_split: bool,
    split: Option<Instant>,
    filed: Option<Filed>,
    injection: Injection,
    waker: Waker,
}

impl Queue {
    fn inherit_raising(&mut self, from: &Self) {
        (self.factor, self.raised_for, self.raised_at) =
            (from.factor, from.raised_for, from.raised_at);
        (self.interrupted, self.raised_service) = (from.interrupted, from.raised_service);
        (self.soft_rt_after, self.soft_rt_due) = (from.soft_rt_after, from.soft_rt_due);
    }

    /// Returns whether it became a queue of its own again in the last 2 s.
    fn just_split(&self, now: Instant) -> bool {
        self.split.is_some_and(|at| now <= at + Nanos::from_secs(2))
    }
}

struct Twin {
    tunables: Tunables,
    rotational: bool,
    tags: u32,
    now: Instant,
    engine: Naive,
    queues: Vec<Option<Queue>>,
    senders: BTreeMap<Sender, Proc>,
    /// The level of each group.
    levels: BTreeMap<GroupIndex, u32>,
    /// All held and issued requests: those at the head first, then in FIFO order.
    requests: Vec<Request>,
    filings: u64,
    serving: Option<usize>,
    slot_began: Instant,
    slot_ends: Instant,
    idle_until: Option<Instant>,
    idle_began: Instant,
    last_position: u64,
    /// The end of the last request of a queue in service.
    serving_position: u64,
    /// The queues of the last completion and of the last creation, by the numbers of their births.
    last_completed: Option<u64>,
    last_created: Option<u64>,
    sampling: Sampling,
    last_completion: Instant,
    device_queues: Option<bool>,
    device_samples: u32,
    device_most: u32,
    rate: PeakRate,
    assigned: u32,
    auto_budget: u64,
    /// Members of the burst, by number of the queue. A freed queue leaves it.
    burst: Vec<usize>,
    burst_large: bool,
    burst_last: Instant,
    burst_level: u32,
}

/// Counts and look-ups.
impl Twin {
    fn q(&self, queue: usize) -> &Queue {
        self.queues[queue].as_ref().expect("it exists")
    }

    fn q_mut(&mut self, queue: usize) -> &mut Queue {
        self.queues[queue].as_mut().expect("it exists")
    }

    fn existing(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.queues.len()).filter(|q| self.queues[*q].is_some())
    }

    fn at(&self, rq: RequestId) -> usize {
        self.requests.iter().position(|r| r.rq == rq).expect("it is known")
    }

    fn request(&self, rq: RequestId) -> Request {
        self.requests[self.at(rq)]
    }

    fn count(&self, queue: usize, place: Place) -> u32 {
        self.requests.iter().filter(|r| r.queue == queue && r.place == place).count() as u32
    }

    fn waiting(&self, queue: usize) -> u32 {
        self.count(queue, Place::Waiting)
    }

    fn in_flight(&self, queue: usize) -> u32 {
        self.count(queue, Place::Device)
    }

    fn in_driver(&self) -> u32 {
        self.requests.iter().filter(|r| r.place == Place::Device).count() as u32
    }

    fn all_waiting(&self) -> u32 {
        self.requests.iter().filter(|r| r.place == Place::Waiting).count() as u32
    }

    fn has_sender(&self, queue: usize) -> bool {
        self.senders.values().any(|proc| proc.queue == Some(queue))
    }

    fn sender_mut(&mut self, sender: Sender) -> &mut Proc {
        self.senders.get_mut(&sender).expect("it is known")
    }

    /// The next number, above all earlier ones.
    fn number(&mut self) -> u64 {
        self.filings += 1;
        self.filings
    }

    fn busy(&self) -> Vec<usize> {
        self.existing().filter(|q| self.q(*q).busy).collect()
    }

    fn raised_busy(&self) -> usize {
        self.busy().into_iter().filter(|q| self.q(*q).factor > 1).count()
    }

    /// Queues that are busy or have requests in the device.
    fn pending(&self) -> Vec<usize> {
        self.existing().filter(|q| self.q(*q).busy || self.in_flight(*q) > 0).collect()
    }

    fn groups_pending(&self) -> usize {
        let mut levels: Vec<u32> =
            self.pending().into_iter().map(|q| self.engine.level(q as u32)).collect();
        levels.sort_unstable();
        levels.dedup();
        levels.len()
    }

    fn class(&self, queue: usize) -> Class {
        self.engine.class(queue as u32)
    }

    /// The queue to which an I/O would go, if there is one.
    fn known_queue(&self, io: &IoMeta) -> Option<usize> {
        self.senders.get(&self.sender_of(io))?.queue
    }

    fn budget(&self, queue: usize) -> u64 {
        self.engine.view(queue as u32).budget
    }

    fn service(&self, queue: usize) -> u64 {
        self.engine.view(queue as u32).service
    }

    fn weight(&self, queue: usize) -> u64 {
        self.engine.view(queue as u32).weight.into()
    }

    fn budget_left(&self, queue: usize) -> u64 {
        self.budget(queue).saturating_sub(self.service(queue))
    }

    fn max_budget(&self) -> u64 {
        match self.tunables.max_budget {
            0 if self.assigned < 194 => 16_384,
            0 => self.auto_budget,
            fixed => fixed,
        }
    }

    fn adapt_budget(&mut self) {
        let budget = self.rate.sectors_in(self.tunables.timeout);
        self.auto_budget = budget.clamp(1, 2_147_483_647);
    }

    fn charge(&self, rq: RequestId) -> u64 {
        let Request { queue, sectors, .. } = self.request(rq);
        let q = self.q(queue);
        let plain = q.sync || q.factor > 1 || self.asymmetric(queue);
        u64::from(sectors) * if plain { 1 } else { 3 }
    }

    fn far(&self, last_end: u64, meta: &IoMeta) -> bool {
        let distance = if last_end == 0 { 0 } else { last_end.abs_diff(meta.sector) };
        distance > 800 && (self.rotational || meta.sectors < 64)
    }
}

impl Scheduler for Twin {
    fn facts(&self) -> Facts {
        Facts { limits_slots: true, shares_by_group: true, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.enter(cx);
        if self.requests.iter().any(|r| r.rq == rq) {
            self.back(rq, cx.now);
            let at = self.at(rq);
            let request = self.requests.remove(at);
            self.requests.insert(0, Request { place: Place::Head, ..request });
            return;
        }
        let meta = *cx.requests.get(rq);
        match at {
            At::Tail => self.arrive(rq, &meta),
            At::Head => {
                let queue = self.queue_of(&meta);
                let request = self.new_request(rq, queue, Place::Head, &meta);
                self.requests.insert(0, request);
            }
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.enter(cx);
        if let Some(at) = self.requests.iter().position(|r| r.place == Place::Head) {
            self.requests[at].place = Place::Device;
            return Pick::Issue(self.requests[at].rq);
        }
        if self.all_waiting() == 0 {
            return Pick::Empty;
        }
        if self.tunables.strict && self.in_driver() > 0 {
            return Pick::WaitCompletion;
        }
        match self.select(cx.env.is_draining()) {
            Some(rq) => Pick::Issue(self.dispatch(cx, rq)),
            None => self.idle_until.map_or(Pick::WaitCompletion, Pick::WaitUntil),
        }
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.enter(cx);
        self.back(done.rq, done.completed.min(self.now));
        self.discard(done.rq);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.enter(cx);
        self.take_back(rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.enter(cx);
        let (kept, lost) = (self.at(into), self.at(gone));
        self.requests[kept].sectors = cx.requests.get(into).sectors;
        let (a, b) = (self.requests[kept], self.requests[lost]);
        if b.due < a.due && a.queue == b.queue && a.place == b.place {
            self.requests.remove(kept);
            let place = self.at(gone);
            self.requests.insert(place, Request { due: b.due, ..a });
        }
        self.take_back(gone);
        self.moved(into, cx.requests.get(into).sector);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let place = |place| self.requests.iter().filter(|r| r.place == place).count() as u64;
        let busy = |class| self.busy().into_iter().filter(|q| self.class(*q) == class).count();
        let of = |value: &dyn Fn(usize) -> u64| self.serving.map_or(0, value);
        out("queued", place(Place::Waiting));
        out("dispatch", place(Place::Head));
        out("in_driver", place(Place::Device));
        out("rt_busy", busy(Class::Realtime) as u64);
        out("be_busy", busy(Class::BestEffort) as u64);
        out("idle_busy", busy(Class::Idle) as u64);
        out("queues", self.existing().count() as u64);
        out("raised_busy", self.raised_busy() as u64);
        out("groups_pending", self.groups_pending() as u64);
        out("max_budget", self.max_budget());
        out("peak_rate", self.rate.peak());
        out("serving", self.serving.is_some().into());
        out("serving_budget", of(&|q| self.budget(q)));
        out("serving_service", of(&|q| self.service(q)));
        out("serving_weight", of(&|q| self.weight(q)));
        out("serving_raised", of(&|q| self.q(q).factor.into()));
        out("serving_in_burst", of(&|q| self.q(q).in_burst.into()));
        out("serving_shared", of(&|q| self.q(q).shared.into()));
        out("idling", self.idle_until.is_some().into());
        out("vtime", self.engine.vtime(ROOT, Class::BestEffort));
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let Request { queue, place, .. } = self.request(into);
        place == Place::Waiting && self.known_queue(io) == Some(queue)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, _: Grown) {
        self.enter(cx);
        let at = self.at(rq);
        self.requests[at].sectors = cx.requests.get(rq).sectors;
        self.moved(rq, cx.requests.get(rq).sector);
    }

    fn admits(&self, _: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.admitted(io, used)
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.enter(cx);
        match change {
            GroupChange::Added { group, parent, weight } => {
                let level = self.engine.add_level(self.level_of(parent), weight);
                self.levels.insert(group, level);
                let its = self.senders.values_mut().filter(|proc| proc.group == Some(group));
                its.for_each(|proc| proc.group = None);
            }
            GroupChange::Weight { group, weight } => {
                let level = self.level_of(group);
                if level != ROOT {
                    self.engine.set_level_weight(level, weight);
                }
            }
            GroupChange::Guarantee { .. } => {}
            GroupChange::Removed { group } => self.remove_group(group),
        }
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.enter(cx);
        if let Some(proc) = self.senders.remove(&Sender::Owner(owner.0)) {
            self.free_if_unused(proc.queue.expect("it has one between calls"));
        }
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let before = self.tunables.clone();
        let known = self.tunables.set(name, value);
        let automatic = before.max_budget != 0 && self.tunables.max_budget == 0;
        if before.timeout != self.tunables.timeout || automatic {
            self.adapt_budget();
        }
        if before.low_latency && !self.tunables.low_latency {
            let all: Vec<usize> = self.existing().filter(|q| self.q(*q).factor > 1).collect();
            all.into_iter().for_each(|q| self.end_raising(q));
        }
        if self.tunables.slice_idle < before.slice_idle
            && let (Some(until), Some(queue)) = (self.idle_until, self.serving)
        {
            self.idle_until = Some(until.min(self.idle_began + self.idle_span(queue)));
        }
        known
    }
}
