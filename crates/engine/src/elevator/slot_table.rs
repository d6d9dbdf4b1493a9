//! [`SlotTable`]: the slots of an elevator, which are its scheduler tags: the requests in them with their bios, and how
//! many are in use. It decides nothing.

use super::Config;
use crate::shared::common::ElevatorEnv;
use crate::shared::inflight::Chain;
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Op, RequestId};
use blkmq_sched::{Cx, Requests, Used};

/// Slots for requests of one hardware queue that pass together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots {
    pub(crate) all: u32,
    /// Of those, slots of anything but sync reads.
    pub(super) limited: u32,
    /// Of those, slots of I/O without [`IoFlags::SYNC`].
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
    /// The bios of the requests that are here; those of the others have left for the device.
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
    pub(super) fn used_mut(&mut self, hw: HwQueue) -> &mut Used {
        &mut self.used[usize::from(hw.0 - self.first_hw.0)]
    }

    /// Free slots of `hw`, without those for bare flushes alone.
    #[cfg(feature = "compare")]
    pub(crate) fn free_of(&self, hw: HwQueue) -> u32 {
        self.nr_requests - self.used(hw).all
    }

    /// Slots that are free, for any request.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.requests.capacity() - self.requests.in_use()
    }

    /// Returns whether there are slots for `n` more requests of the first hardware queue, without the limits for some
    /// kinds of requests.
    #[inline]
    pub(crate) fn has(&self, n: u32) -> bool {
        self.room() >= n as usize && self.used[0].all + n <= self.nr_requests
    }

    /// Returns whether there is a slot that some I/O may have. If only slots for bare flushes are free, one such flush
    /// must wait.
    pub(super) fn has_any(&self, flush_waits: bool) -> bool {
        let of_queues = self.used.iter().any(|used| used.all < self.nr_requests);
        (of_queues || flush_waits) && self.room() > 0
    }

    /// True if no request has a slot.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.in_use() == 0
    }

    /// Requests that have left for the device and have not ended.
    pub(super) fn at_device(&self) -> u32 {
        (self.requests.in_use() as u32).saturating_sub(self.held)
    }

    /// The requests that have a slot, and whether each still waits here; the others have been issued. O(slots).
    pub(crate) fn live(&self) -> impl Iterator<Item = (RequestId, &IoMeta, bool)> {
        let one = |id: RequestId| (id, self.requests.get(id), self.chains[id.index()].is_some());
        // As a rule those in use are the first ones.
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
