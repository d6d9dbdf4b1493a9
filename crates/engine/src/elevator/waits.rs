//! Which groups wait, and for which: the account that is evidence when a tenant complains.
//!
//! A group waits while an I/O of it is here and not at the device: held by the policy, between two steps of a flush
//! sequence, or waiting for a slot. It waits behind the groups that have requests at the device, its own among them, and
//! the time is divided between these in proportion to their requests there. If none is there, it waits behind nothing:
//! the policy keeps the device idle, or holds the I/O back for a limit.
//!
//! All that only changes in passes, so the time from one pass to the next is a *stretch* in which it does not, and
//! nothing is noted down for each request. A pass that comes after a stretch looks at the requests that have slots. Where
//! passes follow each other quickly, a look after each would cost too much: then the times of stretches are summed up,
//! and the sum goes to the groups of the stretch in which it reaches a bound. So the time in which I/Os wait is exact, and
//! its parts are a sample in which each stretch counts by its length. Long stretches are looked at each.
//!
//! There is one account for each elevator, a part of its times (`timing.rs`).

use crate::groups::WaitSums;
use blkmq_core::{GroupIndex, Nanos, Rng};

/// A stretch as long as this is looked at in any case.
const LONG: Nanos = Nanos::from_millis(1);
/// The most time that is summed up between two looks, as a mean.
const MOST: Nanos = Nanos::from_millis(10);
/// The fewest stretches between two looks where they are short, as a mean.
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
    /// How many of them wait.
    waiting: u64,
    /// All requests that were seen, and those at the device.
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

    /// Adds the time to the sums, and forgets the groups. Returns how much there was to do.
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

/// The account of an elevator.
pub(crate) struct Waits {
    /// Stretches that have not been looked at, and the nanoseconds in them.
    stretches: u64,
    pending: u64,
    /// The next look is due when there are as many nanoseconds.
    bound: u64,
    /// Keeps the looks out of step with I/Os that come at regular times. Evenly spread numbers do not.
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
    /// A stretch has passed in which an I/O waited. The nanoseconds that go to its groups, if it is to be looked at.
    #[inline]
    pub(super) fn passed(&mut self, stretch: u64) -> Option<u64> {
        if stretch >= self.bound.min(LONG.0) {
            // A long stretch has its own time, and the sum stays for a short one.
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

    /// A look took work for so many requests and pairs of groups. Four times as many passes are made before the next one:
    /// a pass with an I/O costs a hundred times as much as a request costs here, and many passes have none.
    pub(super) fn worked(&mut self, work: u64) {
        let mean = self.bound.saturating_mul((4 * work).max(FEWEST)).min(MOST.0);
        // Half of the mean to one and a half.
        self.bound = mean / 2 + self.rng.below(mean.max(1));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::groups::Wait;

    fn all(sums: &WaitSums) -> Vec<(u16, Option<u16>, u64)> {
        let one = |wait: Wait| (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0);
        sums.all().map(one).collect()
    }

    fn charge(time: u64, waiting: &[u16], at_device: &[u16]) -> Vec<(u16, Option<u16>, u64)> {
        let (mut crowd, mut sums) = (Crowd::default(), WaitSums::default());
        // The second time shows that nothing is left of the first.
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
