//! The times that requests spend in each stage: stamps of the requests that have slots, and the counts of those that
//! have ended.
//!
//! Each elevator has a [`Timing`] while [`StatsMode::times`](crate::StatsMode::times) is on (`watch.rs`). Only the
//! runner uses it.
//!
//! Tags are taken before the policy is asked, so no single request waits for one. While a pass finds no tag, budget or
//! room at the device, the elevator is *short*, and the requests that it holds wait for that.
//!
//! [`Waits`] accounts for the groups that wait, and for the groups behind which they wait.

use super::Done;
use crate::groups::{Counted, Spent, WaitSums};
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, RequestId, Rng};

/// The stamps of a request that has a slot.
#[derive(Clone, Copy)]
struct Stamp {
    /// The time at which it got the slot; [`Instant::MAX`] if counting began later.
    inserted: Instant,
    /// Nanoseconds for which the elevator had been short by then.
    short: u64,
    /// Nanoseconds for which it was short while it held the request.
    tag: u64,
    /// [`Divided::part`] when the request left for the device.
    part: u64,
}

const UNKNOWN: Stamp = Stamp { inserted: Instant::MAX, short: 0, tag: 0, part: 0 };

/// The time of the device, divided at each moment between the requests there. `part` is the sum for a request that is
/// always there, in nanoseconds.
#[derive(Default)]
struct Divided {
    part: u64,
    upto: Instant,
    at_device: u32,
}

impl Divided {
    /// Sets the number of requests at the device from `now` on. Returns the part up to `now`. O(1).
    #[inline]
    fn pass(&mut self, now: Instant, at_device: u32) -> u64 {
        // A completion may be found late, so `now` may precede `upto`.
        self.part += now.since(self.upto).0 / u64::from(self.at_device.max(1));
        (self.upto, self.at_device) = (self.upto.max(now), at_device);
        self.part
    }
}

/// The times of an elevator's requests.
pub(crate) struct Timing {
    stamps: Box<[Stamp]>,
    /// Nanoseconds for which the elevator was short before `short_since`.
    short: u64,
    short_since: Option<Instant>,
    /// Requests that take longer than this are listed; zero for none.
    slow: Nanos,
    /// The time since which requests have been in flight; `None` if none is.
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

    /// Notes that the request `id`, with this many bios, has a slot. All but one of the bios joined it in a plug, which
    /// does not count merges.
    #[inline]
    pub(super) fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta, bios: u32) {
        let short = self.short_until(now);
        self.stamps[id.index()] = Stamp { inserted: now, short, tag: 0, part: 0 };
        if bios > 1 {
            self.counted.merged(io, bios - 1);
        }
    }

    /// Notes a request that takes a slot and leaves for the device in one step. Like [`inserted`](Self::inserted) and
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

    /// Notes that the request leaves for the device, where there are `at_device` requests including it.
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

    /// Notes that the request has ended. `cost` is the policy's charge for it, if it charges. `at_device` other
    /// requests are still at the device.
    #[inline]
    pub(super) fn completed(
        &mut self,
        io: &IoMeta,
        done: &Done,
        (cost, at_device): (Option<Nanos>, u32),
    ) {
        let part = self.divided.pass(done.completed, at_device);
        // A device that answers within the call takes no time: each of its requests counts as one nanosecond.
        let divided = (part - self.stamps[done.rq.index()].part.min(part)).max(1);
        let spent = self.spent(io.arrived, done, cost.map_or(divided, |cost| cost.0));
        self.last = self.last.max(done.completed);
        self.counted.completed(io, done.completed, done.result.is_err(), spent);
        if self.slow > Nanos::ZERO && done.completed.since(io.arrived) > self.slow {
            self.counted.slow(io, done.completed, spent);
        }
    }

    /// Notes whether requests are in flight at `now`.
    pub(super) fn look(&mut self, now: Instant, busy: bool) {
        match (self.busy_since, busy) {
            (None, true) => self.busy_since = Some(now),
            (Some(since), false) => {
                // The last request ended before the runner took it back.
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

    /// Counts `bios` I/Os, in one request like `io`, that have joined another request.
    #[inline]
    pub(super) fn merged(&mut self, io: &IoMeta, bios: u32) {
        self.counted.merged(io, bios);
    }

    /// Notes that a flush of the device has ended.
    pub(super) fn flushed(&mut self, done: &Done) {
        self.last = self.last.max(done.completed);
        self.counted.flushes.0 += 1;
        self.counted.flushes.1 += done.completed.since(done.issued).0;
    }

    /// Notes that a tag, a budget or room at the device is missing.
    #[inline]
    pub(super) fn is_short(&mut self, now: Instant) {
        self.short_since.get_or_insert(now);
    }

    /// Notes that the shortage is over.
    #[inline]
    pub(super) fn is_supplied(&mut self, now: Instant) {
        if let Some(since) = self.short_since.take() {
            self.short += now.since(since).0;
        }
    }
}

/// A stretch of at least this length is always looked at.
const LONG: Nanos = Nanos::from_millis(1);

/// The largest mean of the time that is summed up between two looks.
const MOST: Nanos = Nanos::from_millis(10);

/// The smallest mean of the number of short stretches between two looks.
const FEWEST: u64 = 32;

/// The presence of a group in a stretch.
#[derive(Clone, Copy, Default)]
struct Present {
    /// At least one I/O of it waits.
    waits: bool,
    /// Its requests at the device.
    at_device: u32,
    /// Its part of the time, in nanoseconds.
    part: u64,
}

/// The groups that wait or have requests at the device in a stretch.
#[derive(Default)]
pub(super) struct Crowd {
    /// By group.
    by_group: Vec<Present>,
    /// The groups that are there.
    groups: Vec<GroupIndex>,
    /// The number of them that wait.
    waiting: u64,
    /// The number of requests seen, and of requests at the device among them.
    seen: u64,
    at_device: u64,
}

impl Crowd {
    fn of(&mut self, group: GroupIndex) -> &mut Present {
        let at = usize::from(group.0);
        if self.by_group.len() <= at {
            self.grow(at + 1);
        }
        let present = &mut self.by_group[at];
        if !present.waits && present.at_device == 0 {
            self.groups.push(group);
        }
        self.seen += 1;
        present
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, groups: usize) {
        self.by_group.resize(groups, Present::default());
        self.groups.reserve(groups);
    }

    /// An I/O of the group waits.
    #[inline]
    pub(super) fn waits(&mut self, group: GroupIndex) {
        let present = self.of(group);
        let is_first = !std::mem::replace(&mut present.waits, true);
        self.waiting += u64::from(is_first);
    }

    /// A request of the group is at the device.
    #[inline]
    pub(super) fn is_at_device(&mut self, group: GroupIndex) {
        self.of(group).at_device += 1;
        self.at_device += 1;
    }

    /// Divides the time between the groups at the device, to the nanosecond.
    fn divide(&mut self, time: u64) {
        let (whole, rest) = (time / self.at_device, time % self.at_device);
        let (mut upto, mut given) = (0, 0);
        for group in &self.groups {
            let present = &mut self.by_group[usize::from(group.0)];
            upto += u64::from(present.at_device);
            // There are fewer than 2^24 requests, so the product of two numbers of them fits.
            let end = whole * upto + rest * upto / self.at_device;
            (present.part, given) = (end - given, end);
        }
    }

    /// Adds the time to the sums, and removes the groups. Returns the work done, in requests and pairs of groups.
    pub(super) fn charge(&mut self, time: u64, sums: &mut WaitSums) -> u64 {
        if self.at_device > 0 {
            self.divide(time);
        }
        let Self { by_group, groups, .. } = &*self;
        let of = |group: &GroupIndex| by_group[usize::from(group.0)];
        for waiting in groups.iter().filter(|group| of(group).waits) {
            if self.at_device == 0 {
                sums.add(*waiting, None, time);
            }
            for behind in groups.iter().filter(|group| of(group).at_device > 0) {
                sums.add(*waiting, Some(*behind), of(behind).part);
            }
        }
        let work = self.seen + self.waiting * self.groups.len() as u64;
        for group in self.groups.drain(..) {
            self.by_group[usize::from(group.0)] = Present::default();
        }
        (self.waiting, self.seen, self.at_device) = (0, 0, 0);
        work
    }
}

/// The account of an elevator: which groups wait, and behind which. It is evidence when a tenant complains.
///
/// A group waits while an I/O of it is here and not at the device: held by the policy, between two steps of a flush
/// sequence, or waiting for a slot. It waits behind the groups that have requests at the device, its own among them,
/// and the time is divided between these in proportion to their requests there. If none is there, it waits behind
/// nothing: the policy keeps the device idle, or holds the I/O back for a limit.
///
/// Waiting begins and ends only in passes. So the time from one pass to the next is a *stretch* without a change, and
/// no request needs a note. The pass after a stretch looks at the requests that have slots. When passes follow each
/// other quickly, a look after each would cost too much. The times of stretches are then summed up, and the sum goes to
/// the groups of the stretch in which it reaches a bound. So the time in which I/Os wait is exact, and its parts are a
/// sample in which each stretch counts by its length. Every long stretch is looked at.
pub(crate) struct Waits {
    /// The number of stretches that have not been looked at, and the nanoseconds in them.
    stretches: u64,
    pending: u64,
    /// The next look is due when `pending` reaches this.
    bound: u64,
    /// Keeps the looks out of step with I/Os that come at regular times, which evenly spaced bounds would not.
    rng: Rng,
    pub(super) crowd: Crowd,
}

impl Default for Waits {
    fn default() -> Self {
        let crowd = Crowd::default();
        Self { stretches: 0, pending: 0, bound: 0, rng: Rng::new(1), crowd }
    }
}

impl Waits {
    /// Notes a stretch in which an I/O waited. Returns the nanoseconds that go to its groups, or `None` if it is not
    /// looked at.
    #[inline]
    pub(super) fn passed(&mut self, stretch: u64) -> Option<u64> {
        if stretch >= self.bound.min(LONG.0) {
            // A long stretch is charged with its own time, and the sum is left for a short one.
            self.aim(stretch);
            return Some(stretch);
        }
        self.stretches += 1;
        self.pending += stretch;
        if self.pending < self.bound {
            return None;
        }
        self.aim(self.pending / self.stretches);
        self.stretches = 0;
        Some(std::mem::take(&mut self.pending))
    }

    /// Sets the bound for stretches of this length, until the work of a look is known.
    fn aim(&mut self, stretch: u64) {
        self.bound = stretch;
    }

    /// Notes the work of a look, in requests and pairs of groups. Four times as many passes are made before the next
    /// look: a pass with an I/O costs a hundred times as much as a request costs here, and many passes have no I/O.
    pub(super) fn worked(&mut self, work: u64) {
        let mean = self.bound.saturating_mul((4 * work).max(FEWEST)).min(MOST.0);
        // From half of the mean to one and a half times the mean.
        self.bound = mean / 2 + self.rng.below(mean.max(1));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::groups::Wait;

    #[test]
    fn the_time_of_a_device_is_divided_between_the_requests_there() {
        let mut divided = Divided::default();
        let mut pass = |ns, at_device| divided.pass(Instant::from_nanos(ns), at_device);
        let alone = pass(100, 1);
        let joined = pass(110, 2);
        assert_eq!(joined - alone, 10);
        let left = pass(130, 1);
        assert_eq!((left - joined, left - alone), (10, 20), "of 20 that both were there");
        // The completion at 120 is found late.
        assert_eq!(pass(120, 0), left);
        assert_eq!(pass(150, 1) - left, 20, "no request was there");
    }

    fn all(sums: &WaitSums) -> Vec<(u16, Option<u16>, u64)> {
        let one = |wait: Wait| (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0);
        sums.all().map(one).collect()
    }

    fn charge(time: u64, waiting: &[u16], at_device: &[u16]) -> Vec<(u16, Option<u16>, u64)> {
        let (mut crowd, mut sums) = (Crowd::default(), WaitSums::default());
        // The second round shows that the first one leaves nothing behind.
        for _ in 0..2 {
            sums = WaitSums::default();
            waiting.iter().for_each(|group| crowd.waits(GroupIndex(*group)));
            at_device.iter().for_each(|group| crowd.is_at_device(GroupIndex(*group)));
            crowd.charge(time, &mut sums);
        }
        all(&sums)
    }

    #[test]
    fn time_is_divided_by_the_requests_at_the_device() {
        let alike = charge(90, &[1], &[2, 3, 2]);
        assert_eq!(alike, [(1, Some(2), 60), (1, Some(3), 30)]);
        // Each group waits for all of the time, however many I/Os of it do, and may wait for itself.
        let both = charge(40, &[1, 2, 2], &[1, 2, 2, 2]);
        let expected = [(1, Some(1), 10), (1, Some(2), 30), (2, Some(1), 10), (2, Some(2), 30)];
        assert_eq!(both, expected);
        assert_eq!(charge(40, &[3], &[]), [(3, None, 40)]);
        assert_eq!(charge(40, &[], &[3]), []);
    }

    #[test]
    fn no_nanosecond_is_lost_in_a_division() {
        for time in [1, 7, 100, 1_000_003, u64::MAX / 7, u64::MAX] {
            let parts = charge(time, &[1], &[1, 2, 2, 3, 3, 3, 4]);
            let sum: u64 = parts.iter().map(|(_, _, time)| time).sum();
            assert_eq!(sum, time, "{parts:?}");
            let three = parts.iter().find(|part| part.1 == Some(3)).map_or(0, |part| part.2);
            assert!(three.abs_diff(time / 7 * 3) <= 4, "{parts:?}");
        }
    }

    #[test]
    fn a_long_stretch_is_looked_at_and_has_its_own_time() {
        let mut waits = Waits::default();
        assert_eq!(waits.passed(10), Some(10), "the first one");
        waits.worked(1_000_000);
        assert!((MOST.0 / 2..MOST.0 * 3 / 2).contains(&waits.bound));
        assert_eq!(waits.passed(10), None);
        for stretch in [LONG.0, LONG.0 * 500] {
            assert_eq!(waits.passed(stretch), Some(stretch));
            waits.worked(1_000_000);
        }
        assert_eq!(waits.pending, 10, "it waits for a look at one of its kind");
    }

    #[test]
    fn short_stretches_are_a_sample_in_which_each_counts_by_its_length() {
        // In turns: one group waits for 3 us, the other for 1 us. Each pass looks at 100 requests.
        let (mut waits, mut times, mut looks) = (Waits::default(), [0, 0], 0);
        let stretches = 1_600_000;
        for n in 0..stretches {
            let at = n % 2;
            if let Some(time) = waits.passed([3_000, 1_000][at]) {
                times[at] += time;
                looks += 1;
                waits.worked(100);
            }
        }
        let all = times[0] + times[1];
        assert_eq!(all + waits.pending, stretches as u64 / 2 * 4_000, "all of it is somewhere");
        assert!((730..=770).contains(&(times[0] * 1000 / all)), "{times:?}");
        assert!((stretches / 440..stretches / 360).contains(&looks), "{looks} looks");
    }
}
