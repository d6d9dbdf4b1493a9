//! [`SlotTable`]: the slots of an elevator, which are its scheduler tags. It holds the requests with their bios, and
//! counts the slots in use. It decides nothing.
//!
//! The configuration of the elevator, which gives the number of slots, is here too, with the settings that may change
//! while requests are held.

use crate::shared::NoMerges;
use crate::shared::common::ElevatorEnv;
use crate::shared::inflight::Chain;
use crate::trace::Tap;
use crate::{StatsMode, WriteCache};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Limits, Op, RequestId};
use blkmq_sched::goals::Member;
use blkmq_sched::{Cx, GroupChange, Requests, Used};

/// The slots that requests of one hardware queue need to pass together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots {
    pub(crate) all: u32,
    /// Slots of requests other than sync reads.
    pub(super) limited: u32,
    /// Slots of requests without [`IoFlags::SYNC`].
    unsynced: u32,
}

impl Slots {
    #[inline]
    pub(super) fn add(&mut self, io: &IoMeta) {
        self.all += 1;
        self.limited += u32::from(!io.is_sync_read());
        self.unsynced += u32::from(!io.flags.contains(IoFlags::SYNC));
    }
}

pub(crate) struct SlotTable {
    /// The latest time that the elevator received.
    pub(super) now: Instant,
    pub(super) requests: Requests,
    /// By slot: the bios of a request that has not been issued; `None` for the others.
    pub(super) chains: Box<[Option<Chain>]>,
    used: Box<[Used]>,
    /// Requests that wait here to be issued.
    pub(super) held: u32,
    pub(super) first_hw: HwQueue,
    /// Scheduler tags of a hardware queue.
    nr_requests: u32,
}

impl SlotTable {
    pub(super) fn new(config: &Config) -> Self {
        let slots = config.slots();
        let nothing = Used { of: config.nr_requests, all: 0, limited: 0, unsynced: 0 };
        Self {
            now: Instant::ZERO,
            requests: Requests::new(slots),
            chains: (0..slots).map(|_| None).collect(),
            used: vec![nothing; config.hw_queues.into()].into_boxed_slice(),
            held: 0,
            first_hw: HwQueue(config.first_hw),
            nr_requests: config.nr_requests,
        }
    }

    /// The requests as a policy sees them.
    #[inline(always)]
    pub(super) fn cx<'a>(&'a self, env: &'a ElevatorEnv) -> Cx<'a> {
        Cx::new(self.now, &self.requests, env)
    }

    /// The slots of `hw` in use.
    #[inline]
    pub(super) fn used(&self, hw: HwQueue) -> &Used {
        &self.used[usize::from(hw.0 - self.first_hw.0)]
    }

    #[inline]
    fn used_mut(&mut self, hw: HwQueue) -> &mut Used {
        &mut self.used[usize::from(hw.0 - self.first_hw.0)]
    }

    /// The number of free slots of `hw`, without those only for bare flushes.
    #[cfg(feature = "compare")]
    pub(crate) fn free_of(&self, hw: HwQueue) -> u32 {
        self.nr_requests - self.used(hw).all
    }

    /// The number of free slots, for any request.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.requests.capacity() - self.requests.in_use()
    }

    /// Returns whether there are slots for `n` more requests of the first hardware queue, apart from the limits for
    /// some kinds of requests.
    #[inline]
    pub(crate) fn has(&self, n: u32) -> bool {
        self.room() >= n as usize && self.used[0].all + n <= self.nr_requests
    }

    /// Returns whether there is a slot that some I/O may have. Slots only for bare flushes count if such a flush waits.
    pub(super) fn has_any(&self, flush_waits: bool) -> bool {
        let of_queues = self.used.iter().any(|used| used.all < self.nr_requests);
        (of_queues || flush_waits) && self.room() > 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.requests.in_use() == 0
    }

    /// The number of requests that have left for the device and have not ended.
    pub(super) fn at_device(&self) -> u32 {
        (self.requests.in_use() as u32).saturating_sub(self.held)
    }

    /// The requests that have a slot, and whether each still waits here; the others have been issued. O(slots).
    pub(crate) fn live(&self) -> impl Iterator<Item = (RequestId, &IoMeta, bool)> {
        let one = |id: RequestId| (id, self.requests.get(id), self.chains[id.index()].is_some());
        // Usually the slots in use are the first ones.
        self.requests.live().take(self.requests.in_use()).map(one)
    }

    /// Takes a slot for a request with data. The caller has seen that one is free.
    #[inline(always)]
    pub(super) fn take(&mut self, meta: &IoMeta) -> RequestId {
        let id = self.fill(meta);
        let used = self.used_mut(meta.hw);
        used.all += 1;
        used.limited += u32::from(!meta.is_sync_read());
        used.unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        id
    }

    /// Puts a request into a free slot, which the caller has seen and counts.
    #[inline(always)]
    pub(super) fn fill(&mut self, meta: &IoMeta) -> RequestId {
        self.requests.alloc(*meta).expect("a free slot was seen")
    }

    /// Counts slots as taken by requests of `hw` that [fill](Self::fill) them.
    #[inline]
    pub(crate) fn count(&mut self, hw: HwQueue, slots: Slots) {
        let used = self.used_mut(hw);
        used.all += slots.all;
        used.limited += slots.limited;
        used.unsynced += slots.unsynced;
    }

    #[inline(always)]
    pub(super) fn free(&mut self, id: RequestId) {
        let meta = self.requests.free(id);
        if meta.op != Op::Flush {
            let (hw, limited, unsynced) =
                (meta.hw, !meta.is_sync_read(), !meta.flags.contains(IoFlags::SYNC));
            let used = self.used_mut(hw);
            used.all -= 1;
            used.limited -= u32::from(limited);
            used.unsynced -= u32::from(unsynced);
        }
    }

    /// Stores the bios of a slot that has none.
    #[inline]
    pub(super) fn put_chain(&mut self, id: RequestId, chain: Chain) {
        debug_assert!(self.chains[id.index()].is_none(), "a slot has one chain");
        self.chains[id.index()] = Some(chain);
    }

    /// Takes the bios of every request, for a queue that has failed. The elevator must not be used afterwards.
    pub(crate) fn take_chains(&mut self) -> impl Iterator<Item = Chain> + '_ {
        self.held = 0;
        self.chains.iter_mut().filter_map(Option::take)
    }
}

/// Slots only for bare flushes, which must pass a full scheduler (`spec/framework.md` section 6). A bare flush may also
/// take a slot of the other kind, so that one flush of the device serves as many as possible. When no slot is free, it
/// waits like any other I/O.
const FLUSH_SLOTS: u32 = 4;

/// The settings that an elevator is built with.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) cache: WriteCache,
    pub(crate) nomerges: NoMerges,
    /// Hardware queues that this elevator serves: `first_hw..first_hw + hw_queues`.
    pub(crate) first_hw: u16,
    pub(crate) hw_queues: u16,
    /// Scheduler tags per hardware queue.
    pub(crate) nr_requests: u32,
    /// Driver tags per hardware queue.
    pub(crate) hw_queue_depth: u32,
    /// The most scheduler tags that I/Os other than sync reads may have, if the policy does not allow fewer.
    pub(crate) async_depth: u32,
    /// An I/O that finds no slot does not merge either, because merging was tried earlier (`shared/modes.rs`).
    pub(crate) slots_first: bool,
    /// Requests may bypass a policy that allows it.
    pub(crate) bypass: bool,
    /// Submitters of the queue.
    pub(crate) submitters: u16,
    /// I/Os that all submitters together may have in flight.
    pub(crate) credit: usize,
    /// When requests need a budget.
    pub(crate) budgets: Budgets,
}

/// When the requests of an elevator need a budget to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budgets {
    /// Never: there is no limit.
    Never,
    /// While the controller of latency goals takes something. Otherwise its limit equals the number of driver tags, and
    /// each request has a driver tag anyway. Requests that left earlier have no budget, so the device may hold them
    /// beside those with a budget until they end.
    WhileTaken,
    /// Always: the device, or the operator, bounds the requests that the device holds.
    Always,
}

impl Config {
    /// All slots: the most requests that the policy can ever hold.
    pub(crate) fn slots(&self) -> u32 {
        self.nr_requests * u32::from(self.hw_queues) + FLUSH_SLOTS
    }

    /// Returns whether requests may take a short way to the device.
    pub(crate) fn has_short_ways(&self) -> bool {
        self.bypass && self.hw_queues == 1
    }
}

/// Settings that an elevator takes while requests are held.
pub(crate) struct Tuning {
    /// Attributes of the policy, with values within their ranges.
    pub(crate) options: Vec<(&'static str, i64)>,
    /// As in [`Config`].
    pub(crate) async_depth: u32,
    /// Changes to the tree of groups.
    pub(crate) regroup: Vec<GroupChange>,
    /// All groups, for the controller of latency goals and the account of floors.
    pub(crate) members: Vec<Member>,
    /// The statistics to keep about groups.
    pub(crate) stats: StatsMode,
    /// The fates of traces, one for each elevator, the last elevator first.
    pub(crate) tapping: Vec<Tapping>,
    /// The policies are to be released from their observers.
    pub(crate) unobserved: bool,
}

/// The fate of an elevator's trace when its settings change.
pub(crate) enum Tapping {
    /// The trace, if any, continues.
    Keep,
    /// The trace ends.
    End,
    /// Another trace begins.
    Begin(Tap),
}
