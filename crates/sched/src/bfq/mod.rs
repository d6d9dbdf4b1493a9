//! `bfq`: budget fair queueing. Each process gets the share of the device that its weight is of all weights.
//!
//! The behaviour is that of `spec/bfq.md`; `doc/bfq.md` lists the differences. This file defines the
//! [`Scheduler`](crate::Scheduler) and its parts. In the order of a request's life:
//!
//! - `senders.rs` finds the request's queue, `arrive.rs` adds it;
//! - [`wf2q`] selects the next queue, `select.rs` serves it, `expire.rs` ends its slot, `budget.rs` sets the length
//!   of the next one;
//! - `plug.rs` takes plugs for the queue in service through both in one step;
//! - `finish.rs` handles requests that the device returns, `idling.rs` decides whether to wait for more;
//! - heuristics: `raising.rs`, `merging.rs`, `injection.rs`, bursts in `senders.rs` and wakers in `queue.rs`, fed by
//!   `habits.rs` and `rate.rs`;
//! - `groups.rs`, `depth.rs` and `notes.rs` handle groups, tags and statistics.

mod arrive;
mod budget;
mod depth;
mod device;
mod expire;
mod finish;
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
mod raising;
mod rate;
mod scheduler;
mod select;
mod senders;
mod tunables;
mod turn;
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

use crate::{Cx, Factory, Options, Scope, Shape};
use alloc::boxed::Box;
use blkmq_core::{Instant, IoFlags, IoMeta};
use device::Device;
use groups::Groups;
use held::Held;
use injection::Sampling;
use merging::Positions;
use procs::Procs;
use queue::Queues;
use senders::Burst;
use tunables::ATTRIBUTES;
use tunables::Tunables;
use turn::Turn;
use weights::Weights;
use wf2q::Wf2q;

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

    wf: Wf2q,
    queues: Queues,
    procs: Procs,
    groups: Groups,
    held: Held,
    positions: Positions,

    slot: Turn,
    /// Busy queues by class, and the raised ones among them.
    busy: [u32; 3],
    raised_busy: u32,
    weights: Weights,

    last_created: Option<QueueRef>,

    device: Device,
    burst: Burst,
    sampling: Sampling,
}

impl Bfq {
    fn new(shape: &Shape, options: &Options) -> Self {
        let procs = PROCS.max(shape.slots.saturating_mul(2));
        // Each queue has a process or a request, or is in service.
        let queues = procs + shape.slots + 2;
        Self {
            tunables: Tunables::new(options),
            now: Instant::ZERO,
            wf: Wf2q::new(queues),
            queues: Queues::new(queues),
            procs: Procs::new(procs),
            groups: Groups::new(),
            held: Held::new(shape),
            positions: Positions::new(if shape.rotational { shape.slots } else { 0 }),
            slot: Turn::NONE,
            busy: [0; 3],
            raised_busy: 0,
            weights: Weights::NEW,
            last_created: None,
            device: Device::new(shape.rotational),
            burst: Burst::new(),
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
        bfq.wf.attach(q, wf2q::ROOT, Priority::DEFAULT.class, Priority::DEFAULT.weight());
        bfq.queues[q].sync = true;
        q
    }
}
