//! `bfq`: budget fair queueing. The share of each process of the device is its weight divided by all weights.
//!
//! The behaviour is that of `spec/bfq.md`; `doc/bfq.md` lists the differences. This file is the [`Scheduler`], which
//! passes the calls of the engine to its parts. The policy decides in two places what happens to a request: `arrive.rs`
//! finds its queue, which may be merged with another one, and adds it; `serve.rs` selects and serves it, ends the slot,
//! and decides about idling. State and its rules are in the parts:
//!
//! - `queue.rs`: a queue, with its raising and bursts, injection and wakers in the files of these names; and the
//!   senders;
//! - `queues.rs`: all queues, with the engine of service ([`wf2q`]), their shares of the tags, and the groups with
//!   their notes and weights (`groups.rs`);
//! - `habits.rs`: the habits of a queue, the charge of its slot, and the length of its next budget;
//! - `held.rs`: requests in the orders of queues, and plugs that go through the queue in service in one step;
//! - `device.rs`: the device as observed, with its rate;
//! - `tunables.rs`: the attributes.

mod arrive;
mod device;
mod groups;
mod habits;
mod held;
mod injection;
mod queue;
mod queues;
mod raising;
mod serve;
mod tunables;
pub mod wf2q;

use crate::{
    Admission, At, Cx, Done, Event, Factory, Facts, Fresh, GroupChange, Grown, Options, Pick,
    Scheduler, Scope, Shape, Used,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrive::Positions;
use blkmq_core::{GroupIndex, HwQueue, Instant, IoFlags, IoMeta, Owner, RequestId, SECTOR_SIZE};
use device::Device;
use habits::Reason;
use held::{Held, State};
use injection::Sampling;
use queue::Procs;
use queues::Queues;
use serve::{Idling, Turn};
use tunables::{ATTRIBUTES, Tunables};
use wf2q::ROOT;

/// Values that a twin of this policy may share, since an attribute, a priority or an average of its own would test
/// nothing. Decisions are not among them.
#[cfg(feature = "testkit")]
pub mod values {
    pub use super::device::{Dispatch, PeakRate};
    pub use super::habits::{IoShare, Seeks, ThinkTime};
    pub use super::queue::Priority;
    pub use super::tunables::{Joining, Tunables};
}

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "bfq",
    summary: "a share of the device for each owner and group, by weight",
    scope: Scope::Queue,
    attributes: ATTRIBUTES,
    common: None,
    build: |shape, options| Box::new(Bfq::new(shape, options)),
};

/// The number of the queue in service if there is none.
const NOBODY: u32 = u32::MAX;
/// The least number of processes for which there are records.
const PROCS: u32 = 1_024;

/// Returns whether a submitter waits for the I/O.
#[inline]
fn is_sync(io: &IoMeta) -> bool {
    io.flags.intersects(IoFlags::SYNC | IoFlags::FUA | IoFlags::PREFLUSH)
}

/// A reference to a queue that may have been freed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct QueueRef {
    index: u32,
    generation: u32,
}

/// The senders of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Senders {
    /// A process, or async I/O of a group; the number of its record.
    One(u32),
    /// Several processes, after a merge.
    Many,
}

/// The policy.
// An instance has cache lines of its own, since another thread may write that of another hardware queue.
#[repr(align(128))]
struct Bfq {
    tunables: Tunables,
    /// The time of the current call.
    now: Instant,
    held: Held,
    procs: Procs,
    queues: Queues,
    positions: Positions,
    slot: Turn,
    device: Device,
    sampling: Sampling,
}

impl Bfq {
    fn new(shape: &Shape, options: &Options) -> Self {
        let procs = PROCS.max(shape.slots.saturating_mul(2));
        Self {
            tunables: Tunables::new(options),
            now: Instant::ZERO,
            held: Held::new(shape),
            procs: Procs::new(procs),
            // Each queue has a process or a request, or is in service.
            queues: Queues::new(procs + shape.slots + 2),
            positions: Positions::new(if shape.rotational { shape.slots } else { 0 }),
            slot: Turn::NONE,
            device: Device::new(shape.rotational),
            sampling: Sampling::new(),
        }
    }

    /// Begins every call: takes over the time, after it ends idling whose time is over.
    #[inline]
    fn enter(&mut self, cx: &Cx<'_>) {
        if let Some(until) = self.slot.idle
            && until <= cx.now
        {
            self.now = self.now.max(until);
            self.idled(cx);
        }
        self.now = self.now.max(cx.now);
    }

    /// The input for the decision whether to keep the device idle.
    #[inline]
    fn idling(&self) -> Idling<'_> {
        Idling { queues: &self.queues, device: &self.device, tunables: &self.tunables }
    }

    /// The charge of `q` for serving `rq`.
    #[inline]
    fn charge_of(&self, q: u32, rq: RequestId) -> u64 {
        self.queues.charge_of(q, self.held[rq].sectors)
    }

    /// Files a queue again in the order of positions, after a change of its next request or of whether it is busy.
    #[inline]
    fn refile(&mut self, q: u32) {
        if self.device.rotational {
            let level = self.queues.level(q);
            self.positions.refile(&mut self.queues[q], level, &self.held);
        }
    }

    /// Notes that `rq` has absorbed, or was absorbed by, other I/O.
    fn note_merged(&self, cx: &Cx<'_>, rq: RequestId) {
        let level = self.queues.level(self.held[rq].queue);
        self.queues.groups.note(cx, level, cx.requests.get(rq), Event::Merged);
    }

    /// Files `rq` again, whose start may have changed.
    fn moved(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let sector = cx.requests.get(rq).sector;
        if !self.held.refile(rq, sector) {
            return;
        }
        let q = self.held[rq].queue;
        let queue = &mut self.queues[q];
        if queue.filed == Some(rq) {
            self.positions.unfile(queue);
        }
        if queue.next != Some(rq) && self.compete(q, rq, sector) {
            self.next_changed(q);
        }
        self.refile(q);
    }

    /// Frees a queue without senders and without requests.
    fn free_if_unused(&mut self, cx: &Cx<'_>, q: u32) {
        if !self.slot.is_of(q) {
            self.queues.free_if_unused(cx, q, self.now);
        }
    }

    /// Follows a change of the tree of groups. O(queues) for a removal.
    fn change_groups(&mut self, cx: &Cx<'_>, change: GroupChange) {
        let Queues { wf, groups, .. } = &mut self.queues;
        match change {
            GroupChange::Added { group, parent, weight } => {
                let level = wf.add_level(groups.level(parent), weight.clamp(1, 1_000));
                groups.add(group, level);
                self.procs.forget_group(group);
            }
            GroupChange::Weight { group, weight } => {
                let level = groups.level(group);
                if level != ROOT {
                    wf.set_level_weight(level, weight.clamp(1, 1_000));
                }
            }
            GroupChange::Guarantee { .. } => {}
            GroupChange::Removed { group } => self.remove_group(cx, group),
        }
    }

    fn remove_group(&mut self, cx: &Cx<'_>, group: GroupIndex) {
        let level = self.queues.groups.level(group);
        let Some(parent) = self.queues.wf.parent(level) else { return };
        if self.queues.groups.of(level).id != group {
            return;
        }
        // From here on, no process sends to its async queues.
        let is_its = |p: &u32| self.procs.at(*p).key.shared_by() == Some(group);
        let its: Vec<u32> = self.procs.all().filter(is_its).collect();
        for p in its {
            if let Some(q) = self.procs.at_mut(p).queue.take() {
                self.queues[q].procs -= 1;
            }
            self.procs.forget(p);
        }
        // The queues that have been busy for longest come first; the order of the others does not matter.
        let busy: Vec<u32> = self.queues.busy().collect();
        for q in busy.into_iter().chain(0..self.queues.capacity()) {
            if self.queues[q].live && self.queues.level(q) == level {
                self.free_if_unused(cx, q);
                self.move_queue(cx, q, parent);
            }
        }
        debug_assert!(self.queues.groups.of(level).waiting == 0);
        self.queues.wf.remove_level(level);
        self.queues.groups.remove(level, parent);
    }

    /// Moves a queue to another level.
    fn move_queue(&mut self, cx: &Cx<'_>, q: u32, level: u32) {
        if self.slot.is_of(q) {
            self.expire(cx, Reason::Preempted);
        }
        if !self.queues[q].live {
            return;
        }
        let old = self.queues.level(q);
        debug_assert!(old != level);
        self.positions.unfile(&mut self.queues[q]);
        self.queues.move_to(q, level, self.now);
        for rq in self.held.waiting(q, self.queues[q].lane) {
            let meta = cx.requests.get(rq);
            self.queues.groups.unqueued(cx, old, meta, self.now);
            self.queues.groups.queued(cx, level, meta, self.now);
        }
        self.refile(q);
    }
}

impl Scheduler for Bfq {
    fn facts(&self) -> Facts {
        Facts {
            limits_slots: true,
            shares_by_group: true,
            notes_groups: true,
            takes_plugs: true,
            ..Facts::default()
        }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.enter(cx);
        let item = &self.held[rq];
        if item.state == State::Issued {
            assert!(item.rq == rq, "{rq:?} took the slot of {:?}, still issued", item.rq);
            self.back(cx, rq, cx.now);
            self.push_head(cx, rq);
            return;
        }
        match at {
            At::Tail => self.arrive(cx, rq),
            At::Head => self.arrive_at_head(cx, rq),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.enter(cx);
        self.choose(cx)
    }

    fn admit(&mut self, cx: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        Admission::of_all(self.issue_plug(cx, fresh.rqs, fresh.used, order))
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.enter(cx);
        let item = &self.held[done.rq];
        let issued = (item.state, item.rq) == (State::Issued, done.rq);
        assert!(issued, "{:?} completed without being issued", done.rq);
        let completed = done.completed.min(self.now);
        let meta = cx.requests.get(done.rq);
        let what = Event::Completed {
            bytes: meta.sectors.saturating_mul(SECTOR_SIZE),
            wait: done.issued.since(item.since),
            service: completed.since(done.issued),
        };
        self.queues.groups.note(cx, self.queues.level(item.queue), meta, what);
        self.back(cx, done.rq, completed);
        self.release(cx, done.rq);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.enter(cx);
        self.remove_held(cx, rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.enter(cx);
        self.held[into].sectors = cx.requests.get(into).sectors;
        self.held.inherit(into, gone);
        self.note_merged(cx, gone);
        self.remove_held(cx, gone);
        self.moved(cx, into);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let serving = (self.slot.queue != NOBODY).then_some(self.slot.queue);
        let of_serving = |value: &dyn Fn(u32) -> u64| serving.map_or(0, value);
        out("queued", self.held.queued.into());
        out("dispatch", self.held.heads() as u64);
        out("in_driver", self.device.in_driver.into());
        let names = ["rt_busy", "be_busy", "idle_busy"];
        names.into_iter().zip(self.queues.by_class).for_each(|(name, busy)| out(name, busy.into()));
        out("queues", self.queues.len().into());
        out("raised_busy", self.queues.raised_busy.into());
        out("groups_pending", self.queues.groups.pending().into());
        out("max_budget", self.device.max_budget(&self.tunables));
        out("peak_rate", self.device.rate.peak());
        out("serving", serving.is_some().into());
        out("serving_budget", of_serving(&|q| self.queues.wf.budget(q)));
        out("serving_service", of_serving(&|q| self.queues.wf.service(q)));
        out("serving_weight", of_serving(&|q| self.queues.wf.weight(q).into()));
        out("serving_raised", of_serving(&|q| self.queues[q].raising.factor.into()));
        out("serving_in_burst", of_serving(&|q| self.queues[q].in_burst.into()));
        out("serving_shared", of_serving(&|q| self.queues[q].shared.into()));
        out("idling", self.slot.idle.is_some().into());
        out("vtime", self.queues.wf.vtime(ROOT, wf2q::Class::BestEffort));
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        let item = &self.held[into];
        // A request at the head is in no order, and the process may have another queue since.
        item.state == State::Queued
            && self.queues[item.queue].sync == is_sync(io)
            && self.queue_for(io) == Some(item.queue)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.enter(cx);
        self.held[rq].sectors = cx.requests.get(rq).sectors;
        self.note_merged(cx, rq);
        match edge {
            Grown::Back => {}
            Grown::Front { .. } | Grown::Discard => self.moved(cx, rq),
        }
    }

    fn admits(&self, _: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.queues
            .cap_of(io, used, 0)
            .is_some_and(|cap| self.queue_for(io).is_none_or(|q| self.queues.has_room(q, 0, cap)))
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.enter(cx);
        self.change_groups(cx, change);
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.enter(cx);
        self.owner_left(cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let Tunables { timeout, max_budget, low_latency, slice_idle, .. } = self.tunables;
        let known = self.tunables.set(name, value);
        let Tunables { timeout: new_timeout, max_budget: new_max, .. } = self.tunables;
        if new_timeout != timeout || (new_max == 0 && max_budget != 0) {
            self.device.adapt_budget(new_timeout);
        }
        if low_latency && !self.tunables.low_latency {
            self.queues.end_all_raising(self.now);
        }
        let q = self.slot.queue;
        if q != NOBODY && self.tunables.slice_idle < slice_idle {
            self.slot.shorten_idling(self.idling().span(q));
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Driver;
    use queue::Priority;

    pub(super) fn at(ns: u64) -> Instant {
        Instant::ZERO + blkmq_core::Nanos(ns)
    }

    /// A scheduler at time zero with a sync queue of the default priority, on a disk, for tests of a single rule.
    pub(super) fn with_a_queue(options: &str) -> (Bfq, u32) {
        let options = Options::parse(FACTORY.attributes, options).expect("they are options");
        let shape = Shape { rotational: true, ..Driver::shape(16) };
        let mut bfq = Bfq::new(&shape, &options);
        let q = add_queue(&mut bfq);
        (bfq, q)
    }

    /// Adds one more such queue.
    pub(super) fn add_queue(bfq: &mut Bfq) -> u32 {
        let q = bfq.queues.add(bfq.now);
        bfq.queues.wf.attach(q, ROOT, Priority::DEFAULT.class, Priority::DEFAULT.weight());
        bfq.queues[q].sync = true;
        q
    }
}
