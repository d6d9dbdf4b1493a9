//! `bfq`: budget fair queueing. Each process gets the share of the device that its weight is of all weights.
//!
//! The behaviour is that of `spec/bfq.md`; `doc/bfq.md` lists the differences. This file defines the
//! [`Scheduler`](crate::Scheduler) and its parts; `scheduler.rs` implements the trait. The policy decides in two places what
//! happens to a request: `arrive.rs` finds its queue and adds it, `serve.rs` selects and serves it, and ends the slot.
//! State and its rules are in the parts:
//!
//! - `procs.rs`: the senders; `queues.rs`: their queues, with the engine of service ([`wf2q`]), the groups and their
//!   notes (`groups.rs`, `notes.rs`), bursts (`burst.rs`) and shares of the tags (`depth.rs`);
//! - `queue.rs`: a queue, with its habits, raising, injection and waker in the files of these names;
//! - `held.rs`: requests in the orders of queues; `merging.rs`: neighbours and series of queues, which are merged;
//! - `turn.rs`: the slot of the queue in service; `budget.rs`: its charge, and the length of the next one;
//! - `device.rs`: the device as observed, with its rate (`rate.rs`); `idling.rs`: whether it is kept idle;
//! - `plug.rs`: a plug that goes through the queue in service in one step.

mod arrive;
mod budget;
mod burst;
mod depth;
mod device;
mod groups;
mod habits;
mod held;
mod idling;
mod injection;
mod merging;
mod notes;
mod plug;
mod procs;
mod queue;
mod queues;
mod raising;
mod rate;
mod scheduler;
mod serve;
mod tunables;
mod turn;
mod waker;
mod weights;
pub mod wf2q;

/// Values that a twin of this policy may share: it would gain nothing from an attribute, a priority or an average of
/// its own. Decisions are not among them.
#[cfg(feature = "testkit")]
pub mod values {
    pub use super::habits::{IoShare, Seeks, ThinkTime};
    pub use super::queue::Priority;
    pub use super::rate::{Dispatch, PeakRate};
    pub use super::tunables::{Joining, Tunables};
}

use crate::{Cx, Event, Factory, GroupChange, Options, Scope, Shape};
use alloc::boxed::Box;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoFlags, IoMeta, RequestId};
use budget::Reason;
use device::Device;
use held::Held;
use idling::Idling;
use injection::Sampling;
use merging::Positions;
use procs::Procs;
use queues::Queues;
use tunables::{ATTRIBUTES, Tunables};
use turn::Turn;
use wf2q::ROOT;

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "bfq",
    summary: "a share of the device for each owner and group, by weight",
    scope: Scope::Queue,
    attributes: ATTRIBUTES,
    common: None,
    build: |shape, options| Box::new(Bfq::new(shape, options)),
};

/// The number of the queue in service when there is none.
const NOBODY: u32 = u32::MAX;
/// The least number of processes that are remembered.
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
// Cache lines of its own: there may be one instance for each hardware queue, each written by another thread.
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

    /// Every call begins here: takes over the time, and if the idle time has passed, ends the idling first.
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

    /// The decision whether to keep the device idle.
    #[inline]
    fn idling(&self) -> Idling<'_> {
        Idling { queues: &self.queues, device: &self.device, tunables: &self.tunables }
    }

    /// The charge of `q` for serving `rq`.
    #[inline]
    fn charge_of(&self, q: u32, rq: RequestId) -> u64 {
        self.queues.charge_of(q, self.held[rq].sectors)
    }

    /// The next request of a queue, or whether the queue is busy, has changed.
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

    /// The start of `rq` may have changed: files it again.
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

    /// The tree of groups has changed. O(queues) for a removal.
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
        // No process sends to its async queues any more.
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

    /// One more such queue.
    pub(super) fn add_queue(bfq: &mut Bfq) -> u32 {
        let q = bfq.queues.add(bfq.now);
        bfq.queues.wf.attach(q, ROOT, Priority::DEFAULT.class, Priority::DEFAULT.weight());
        bfq.queues[q].sync = true;
        q
    }
}
