//! Where the time of requests goes: stamps of the requests that have slots, and the counts of those that have ended.
//!
//! There is one for each elevator, only while [`StatsMode::times`](crate::StatsMode::times) is on; otherwise each call
//! here is a branch. All of it is touched by the runner alone.
//!
//! Tags are taken before the policy is asked, so no single request waits for one. While a pass finds no tag, budget or
//! room at the device, the elevator is *short*, and the requests that it holds then wait for that.

use super::{Done, Elevator};
use crate::StatsMode;
use crate::groups::{Counted, Spent};
use blkmq_core::{Instant, IoMeta, Nanos, Op, RequestId, SECTOR_SIZE};
use blkmq_sched::Bypass;

/// The stamps of a request that has a slot.
#[derive(Clone, Copy)]
struct Stamp {
    /// When it got the slot; the end of time if counting began later.
    inserted: Instant,
    /// How long the elevator had been short by then.
    short: u64,
    /// How long it was short while it held the request.
    tag: u64,
}

const UNKNOWN: Stamp = Stamp { inserted: Instant::MAX, short: 0, tag: 0 };

/// The times of an elevator's requests.
pub(crate) struct Timing {
    stamps: Box<[Stamp]>,
    /// How long the elevator has been short before `short_since`.
    short: u64,
    short_since: Option<Instant>,
    /// Requests that take longer are listed; zero for none.
    slow: Nanos,
    /// Since when a request has been in flight.
    busy_since: Option<Instant>,
    /// The latest completion.
    last: Instant,
    counted: Counted,
}

impl Timing {
    fn new(slots: u32, slow: Nanos) -> Self {
        Self {
            stamps: vec![UNKNOWN; slots as usize].into_boxed_slice(),
            short: 0,
            short_since: None,
            slow,
            busy_since: None,
            last: Instant::ZERO,
            counted: Counted::default(),
        }
    }

    fn short_until(&self, now: Instant) -> u64 {
        self.short + self.short_since.map_or(0, |since| now.since(since).0)
    }

    /// The request `id`, which has this many bios, has a slot. All but one of them have joined it in a plug, which counts
    /// nothing: there, no elevator knows of them.
    #[inline]
    fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta, bios: u32) {
        let short = self.short_until(now);
        self.stamps[id.index()] = Stamp { inserted: now, short, tag: 0 };
        if bios > 1 {
            self.counted.merged(io, bios - 1);
        }
    }

    /// There is again what was missing.
    #[inline]
    fn supplied(&mut self, now: Instant) {
        if let Some(since) = self.short_since.take() {
            self.short += now.since(since).0;
        }
    }

    #[inline]
    fn issued(&mut self, now: Instant, id: RequestId) {
        let short = self.short_until(now);
        let stamp = &mut self.stamps[id.index()];
        stamp.tag = short - stamp.short.min(short);
    }

    #[inline]
    fn spent(&self, id: RequestId, arrived: Instant, issued: Instant, ended: Instant) -> Spent {
        let Stamp { inserted, tag, .. } = self.stamps[id.index()];
        let queue = issued.since(arrived).0;
        let slot = if inserted == Instant::MAX { 0 } else { inserted.since(arrived).0.min(queue) };
        let tag = if inserted == Instant::MAX { 0 } else { tag.min(queue - slot) };
        Spent { slot, policy: queue - slot - tag, tag, device: ended.since(issued).0 }
    }

    #[inline]
    fn completed(&mut self, io: &IoMeta, done: &Done) {
        let spent = self.spent(done.rq, io.arrived, done.issued, done.completed);
        let bytes = u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        self.last = self.last.max(done.completed);
        self.counted.completed(io, bytes, done.result.is_err(), spent);
        if self.slow > Nanos::ZERO && done.completed.since(io.arrived) > self.slow {
            self.counted.slow(io, done.completed, spent);
        }
    }

    /// Requests are in flight at `now`, or none.
    fn look(&mut self, now: Instant, busy: bool) {
        match (self.busy_since, busy) {
            (None, true) => self.busy_since = Some(now),
            (Some(since), false) => {
                // The last one ended before the runner learnt of it.
                self.counted.busy += self.last.since(since).0;
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// Counts the busy time up to `now`, for a reader.
    fn settle(&mut self, now: Instant) {
        if let Some(since) = &mut self.busy_since {
            self.counted.busy += now.since(*since).0;
            *since = now.max(*since);
        }
    }
}

/// For an elevator with this many slots; `None` if times are not counted.
pub(super) fn wanted(mode: StatsMode, slots: u32) -> Option<Box<Timing>> {
    mode.times.then(|| Box::new(Timing::new(slots, mode.slow)))
}

/// Is anything to be done for a request that passes, beyond giving it a slot?
pub(super) fn notes_passing(bypass: Bypass, timing: Option<&Timing>) -> bool {
    bypass == Bypass::Told || timing.is_some()
}

impl Elevator {
    /// Counts from now on, or no longer.
    pub(super) fn tune_timing(&mut self, mode: StatsMode) {
        match &mut self.timing {
            Some(timing) if mode.times => timing.slow = mode.slow,
            timing => *timing = wanted(mode, self.config.slots()),
        }
        self.notes_passing = notes_passing(self.bypass, self.timing.as_deref());
    }

    /// Moves the counts to the ledger, after waiting for another thread that counts.
    pub(crate) fn count_times(&mut self) {
        if let Some(timing) = &mut self.timing {
            timing.settle(self.now);
            self.env.count_times(&mut timing.counted);
        }
    }

    /// The request, which has this many bios, has a slot.
    #[inline]
    pub(super) fn time_inserted(&mut self, id: RequestId, bios: u32) {
        if self.timing.is_some() {
            self.stamp(id, bios);
        }
    }

    /// The request has a slot and a tag, and leaves at once.
    #[inline]
    pub(super) fn time_passed(&mut self, id: RequestId, bios: u32) {
        if self.timing.is_some() {
            self.is_supplied();
            self.stamp(id, bios);
        }
    }

    /// Out of line: inlined where requests are inserted, it costs instructions there while nothing is counted.
    #[inline(never)]
    fn stamp(&mut self, id: RequestId, bios: u32) {
        if let Some(timing) = &mut self.timing {
            timing.inserted(self.now, id, self.requests.get(id), bios);
        }
    }

    /// The request leaves for the device.
    #[inline]
    pub(super) fn time_issued(&mut self, id: RequestId) {
        if let Some(timing) = &mut self.timing {
            timing.issued(self.now, id);
        }
    }

    /// I/Os have joined a request: `bios` of them, which were one request like `io` before.
    #[inline]
    pub(super) fn time_merged(&mut self, io: &IoMeta, bios: u32) {
        if let Some(timing) = &mut self.timing {
            timing.counted.merged(io, bios);
        }
    }

    /// The request has ended at the device.
    #[inline]
    pub(super) fn time_completed(&mut self, done: &Done) {
        if let Some(timing) = &mut self.timing {
            timing.completed(self.requests.get(done.rq), done);
        }
    }

    /// A flush of the device has ended.
    pub(super) fn time_flushed(&mut self, done: &Done) {
        if let Some(timing) = &mut self.timing {
            timing.last = timing.last.max(done.completed);
            timing.counted.flushes.0 += 1;
            timing.counted.flushes.1 += done.completed.since(done.issued).0;
        }
    }

    /// The request `id` ends at the flush `by`. If it is a bare flush, it is counted; data was counted by itself.
    pub(super) fn time_served(&mut self, id: RequestId, by: &Done) {
        let io = self.requests.get(id);
        if let Some(timing) = &mut self.timing
            && io.op == Op::Flush
        {
            timing.completed(io, &Done { rq: id, ..*by });
        }
    }

    /// A tag, a budget or room at the device is missing.
    #[inline]
    pub(super) fn is_short(&mut self) {
        if let Some(timing) = &mut self.timing {
            timing.short_since.get_or_insert(self.now);
        }
    }

    /// There is one again.
    #[inline]
    pub(super) fn is_supplied(&mut self) {
        if let Some(timing) = &mut self.timing {
            timing.supplied(self.now);
        }
    }

    /// Requests have come back, or a pass has ended.
    #[inline]
    pub(super) fn time_busy(&mut self) {
        if let Some(timing) = &mut self.timing {
            timing.look(self.now, self.requests.in_use() > self.held as usize);
        }
    }
}
