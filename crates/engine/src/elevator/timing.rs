//! Where the time of requests goes: stamps of the requests that have slots, and the counts of those that have ended.
//!
//! There is one for each elevator, only while [`StatsMode::times`](crate::StatsMode::times) is on (`watch.rs`). All of it
//! is touched by the runner alone.
//!
//! Tags are taken before the policy is asked, so no single request waits for one. While a pass finds no tag, budget or
//! room at the device, the elevator is *short*, and the requests that it holds then wait for that.

use super::Done;
use super::waits::Waits;
use crate::groups::{Counted, Spent, WaitSums};
use blkmq_core::{Instant, IoMeta, Nanos, RequestId, SECTOR_SIZE};

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
    waits: Waits,
    counted: Counted,
}

impl Timing {
    pub(super) fn new(slots: u32, slow: Nanos) -> Self {
        Self {
            stamps: vec![UNKNOWN; slots as usize].into_boxed_slice(),
            short: 0,
            short_since: None,
            slow,
            busy_since: None,
            last: Instant::ZERO,
            waits: Waits::default(),
            counted: Counted::default(),
        }
    }

    fn short_until(&self, now: Instant) -> u64 {
        self.short + self.short_since.map_or(0, |since| now.since(since).0)
    }

    /// The request `id`, which has this many bios, has a slot. All but one of them have joined it in a plug, which counts
    /// nothing: there, no elevator knows of them.
    #[inline]
    pub(super) fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta, bios: u32) {
        let short = self.short_until(now);
        self.stamps[id.index()] = Stamp { inserted: now, short, tag: 0 };
        if bios > 1 {
            self.counted.merged(io, bios - 1);
        }
    }

    #[inline]
    pub(super) fn issued(&mut self, now: Instant, id: RequestId) {
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
    pub(super) fn completed(&mut self, io: &IoMeta, done: &Done) {
        let spent = self.spent(done.rq, io.arrived, done.issued, done.completed);
        let bytes = u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        self.last = self.last.max(done.completed);
        self.counted.completed(io, bytes, done.result.is_err(), spent);
        if self.slow > Nanos::ZERO && done.completed.since(io.arrived) > self.slow {
            self.counted.slow(io, done.completed, spent);
        }
    }

    /// Requests are in flight at `now`, or none.
    pub(super) fn look(&mut self, now: Instant, busy: bool) {
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

    /// The counts, with the busy time up to `now`, for a reader.
    pub(super) fn settled(&mut self, now: Instant) -> &mut Counted {
        if let Some(since) = &mut self.busy_since {
            self.counted.busy += now.since(*since).0;
            *since = now.max(*since);
        }
        &mut self.counted
    }

    /// The account of the groups that wait, and its sums.
    pub(super) fn waits(&mut self) -> (&mut Waits, &mut WaitSums) {
        (&mut self.waits, &mut self.counted.waits)
    }

    /// Lists the requests that take longer from now on.
    pub(super) fn set_slow(&mut self, slow: Nanos) {
        self.slow = slow;
    }

    /// I/Os have joined a request: `bios` of them, which were one request like `io` before.
    #[inline]
    pub(super) fn merged(&mut self, io: &IoMeta, bios: u32) {
        self.counted.merged(io, bios);
    }

    /// A flush of the device has ended.
    pub(super) fn flushed(&mut self, done: &Done) {
        self.last = self.last.max(done.completed);
        self.counted.flushes.0 += 1;
        self.counted.flushes.1 += done.completed.since(done.issued).0;
    }

    /// A tag, a budget or room at the device is missing.
    #[inline]
    pub(super) fn is_short(&mut self, now: Instant) {
        self.short_since.get_or_insert(now);
    }

    /// There is one again.
    #[inline]
    pub(super) fn is_supplied(&mut self, now: Instant) {
        if let Some(since) = self.short_since.take() {
            self.short += now.since(since).0;
        }
    }
}
