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
    /// The part of a request that had been at the device all the time, when it left for the device.
    part: u64,
}

const UNKNOWN: Stamp = Stamp { inserted: Instant::MAX, short: 0, tag: 0, part: 0 };

/// The time of the device, divided at each moment between the requests there: the part of one that is there all the time.
#[derive(Default)]
struct Divided {
    part: u64,
    upto: Instant,
    at_device: u32,
}

impl Divided {
    /// From `now` on, `at_device` requests are there. O(1).
    #[inline]
    fn pass(&mut self, now: Instant, at_device: u32) -> u64 {
        // Completions may be found later than they were.
        self.part += now.since(self.upto).0 / u64::from(self.at_device.max(1));
        (self.upto, self.at_device) = (self.upto.max(now), at_device);
        self.part
    }
}

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
    divided: Divided,
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
            divided: Divided::default(),
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
        self.stamps[id.index()] = Stamp { inserted: now, short, tag: 0, part: 0 };
        if bios > 1 {
            self.counted.merged(io, bios - 1);
        }
    }

    /// The request takes a slot and leaves for the device in one step. As [`inserted`](Self::inserted) and
    /// [`issued`](Self::issued).
    #[inline]
    pub(super) fn passed(
        &mut self,
        now: Instant,
        id: RequestId,
        (io, bios): (&IoMeta, u32),
        at_device: u32,
    ) {
        let short = self.short_until(now);
        let part = self.divided.pass(now, at_device);
        self.stamps[id.index()] = Stamp { inserted: now, short, tag: 0, part };
        if bios > 1 {
            self.counted.merged(io, bios - 1);
        }
    }

    /// The request leaves for the device, where `at_device` are with it.
    #[inline]
    pub(super) fn issued(&mut self, now: Instant, id: RequestId, at_device: u32) {
        let short = self.short_until(now);
        let stamp = &mut self.stamps[id.index()];
        stamp.tag = short - stamp.short.min(short);
        stamp.part = self.divided.pass(now, at_device);
    }

    #[inline]
    fn spent(&self, arrived: Instant, done: &Done, charged: u64) -> Spent {
        let &Done { rq: id, issued, completed: ended, .. } = done;
        let Stamp { inserted, tag, .. } = self.stamps[id.index()];
        let queue = issued.since(arrived).0;
        let slot = if inserted == Instant::MAX { 0 } else { inserted.since(arrived).0.min(queue) };
        let tag = if inserted == Instant::MAX { 0 } else { tag.min(queue - slot) };
        Spent { slot, policy: queue - slot - tag, tag, device: ended.since(issued).0, charged }
    }

    /// The request has ended. The policy has charged `cost` for it, if it charges; `at_device` others are still there.
    #[inline]
    pub(super) fn completed(
        &mut self,
        io: &IoMeta,
        done: &Done,
        (cost, at_device): (Option<Nanos>, u32),
    ) {
        let part = self.divided.pass(done.completed, at_device);
        // A device that answers within the call takes no time: its requests count alike.
        let divided = (part - self.stamps[done.rq.index()].part.min(part)).max(1);
        let spent = self.spent(io.arrived, done, cost.map_or(divided, |cost| cost.0));
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_device_is_divided_between_the_requests_there() {
        let mut divided = Divided::default();
        let mut pass = |ns, at_device| divided.pass(Instant::from_nanos(ns), at_device);
        let alone = pass(100, 1);
        let joined = pass(110, 2);
        assert_eq!(joined - alone, 10);
        let left = pass(130, 1);
        assert_eq!((left - joined, left - alone), (10, 20), "of 20 that both were there");
        // The completion was at 120, and is found late.
        assert_eq!(pass(120, 0), left);
        assert_eq!(pass(150, 1) - left, 20, "no request was there");
    }
}
