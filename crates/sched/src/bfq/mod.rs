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

use crate::index::{Lists, SectorIndex};
use crate::{Cx, Factory, Options, Scope, Shape};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::{Instant, IoFlags, IoMeta, RequestId};
use device::Device;
use groups::Groups;
use injection::Sampling;
use merging::Positions;
use procs::{Key, Procs};
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
/// The list of requeued requests and of requests that go ahead of everything. Lanes have the numbers above.
const HEAD: usize = 0;
/// The least number of processes that are remembered.
const PROCS: u32 = 1_024;

/// Returns whether a submitter waits for the I/O.
#[inline]
fn is_sync(io: &IoMeta) -> bool {
    io.flags.intersects(IoFlags::SYNC | IoFlags::FUA | IoFlags::PREFLUSH)
}

/// The place of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// None: its slot is free.
    Free,
    /// In the list of requests that go ahead of everything.
    Head,
    /// In the order of its queue.
    Queued,
    /// In the device.
    Issued,
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

/// The state of a slot's request beyond its metadata, from insertion to completion.
#[derive(Clone, Copy)]
struct Item {
    rq: RequestId,
    queue: u32,
    proc: u32,
    /// The process that it comes from, async or not.
    owner: Key,
    /// Its length, so that it need not be looked up.
    sectors: u32,
    state: State,
    /// The time of its insertion.
    since: Instant,
    /// The time from which it goes ahead of the order of its queue.
    due: Instant,
}

/// Invariant: a held request is in exactly one list of `lists`; if that is a lane, it is in the same lane of `order`,
/// and the lane belongs to its queue, which is busy. `queued` of each queue, and of the scheduler, count the
/// requests.
// Cache lines of its own: there may be one instance for each hardware queue, each written by another thread.
#[repr(align(128))]
struct Bfq {
    tunables: Tunables,
    /// Scheduler tags: no more requests are held or in the device, but flushes.
    tags: u32,
    /// The time of the current call.
    now: Instant,

    wf: Wf2q,
    queues: Queues,
    procs: Procs,
    groups: Groups,
    items: Box<[Item]>,
    /// A FIFO per lane, and [`HEAD`].
    lists: Lists,
    /// A sector order per lane.
    order: SectorIndex,
    /// Unassigned lanes.
    lanes: Vec<u32>,
    positions: Positions,

    slot: Turn,
    /// Requests in the orders of queues.
    queued: u32,
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
        let nothing = Item {
            rq: RequestId::new(0, 0),
            queue: NOBODY,
            proc: NOBODY,
            owner: Key::process(blkmq_core::Owner(0)),
            sectors: 0,
            state: State::Free,
            since: Instant::ZERO,
            due: Instant::ZERO,
        };
        let procs = PROCS.max(shape.slots.saturating_mul(2));
        // Each queue has a process or a request, or is in service.
        let queues = procs + shape.slots + 2;
        let lanes = shape.slots as usize + 1;
        Self {
            tunables: Tunables::new(options),
            tags: shape.nr_requests.saturating_mul(shape.hw_queues.into()),
            now: Instant::ZERO,
            wf: Wf2q::new(queues),
            queues: Queues::new(queues),
            procs: Procs::new(procs),
            groups: Groups::new(),
            items: vec![nothing; shape.slots as usize].into_boxed_slice(),
            lists: Lists::new(shape.slots, lanes),
            order: SectorIndex::new(shape.slots, lanes),
            lanes: (1..=shape.slots).rev().collect(),
            positions: Positions::new(if shape.rotational { shape.slots } else { 0 }),
            slot: Turn::NONE,
            queued: 0,
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
