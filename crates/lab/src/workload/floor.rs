//! The minimum rate of a thread: fio's `rate_min` and `rate_iops_min`. A thread that falls below it ends with an error.

use super::{Counts, Direction, Job, PerDirection};
use blkmq_core::{Instant, Nanos};

/// fio's error for a rate that is too low: EIO.
pub const TOO_SLOW: u16 = 5;
/// As in fio, a thread has this time to begin.
const SETTLING: Nanos = Nanos::from_secs(2);

/// Watches over the rates of one thread.
#[derive(Clone, Debug)]
pub(super) struct Floor {
    least: PerDirection<[u64; 2]>,
    cycle: Nanos,
    /// The time and the counts of the last check.
    last: Option<(Instant, [[u64; 2]; 3])>,
}

impl Floor {
    /// For a thread of `job`; `None` if it may be as slow as it likes.
    pub(super) fn new(job: &Job) -> Option<Self> {
        let least = |d| [job.rate_min[d].unwrap_or(0), job.rate_iops_min[d].unwrap_or(0)];
        let mut all = PerDirection::all([0, 0]);
        for &direction in job.rw.directions() {
            all[direction] = least(direction);
        }
        let any = all.iter().any(|(_, least)| *least != [0, 0]);
        any.then_some(Self { least: all, cycle: job.rate_cycle, last: None })
    }

    /// Returns whether a rate is too low at `now`. The rate is that over the last cycle of the thread that began at
    /// `started`.
    pub(super) fn is_missed(
        &mut self,
        now: Instant,
        started: Instant,
        counts: &[Counts; 3],
    ) -> bool {
        let seen = counts.each_ref().map(|counts| [counts.bytes, counts.ios]);
        let Some((since, before)) = self.last else {
            if now >= started + SETTLING {
                self.last = Some((now, seen));
            }
            return false;
        };
        let spent = now - since;
        if spent < self.cycle {
            return false;
        }
        self.last = Some((now, seen));
        let too_low = |direction: Direction, unit: usize| {
            let at = direction as usize;
            let done = u128::from(seen[at][unit].saturating_sub(before[at][unit]));
            let least = u128::from(self.least[direction][unit]);
            done * 1_000_000_000 < least * u128::from(spent.0)
        };
        Direction::ALL.into_iter().any(|direction| (0..2).any(|unit| too_low(direction, unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn counts(ios: u64) -> [Counts; 3] {
        let mut counts: [Counts; 3] = Default::default();
        (counts[0].ios, counts[0].bytes) = (ios, ios * 4096);
        counts
    }

    #[test]
    fn a_rate_is_too_low_when_it_was_so_for_a_cycle_behind_the_first_two_seconds() {
        let job = Job { rate_iops_min: PerDirection::all(Some(100)), ..Job::default() };
        let mut floor = Floor::new(&job).expect("a least rate");
        for (ms, ios, missed) in [
            (1_999, 0, false),
            (2_000, 0, false),
            (2_999, 0, false),
            (3_000, 100, false),
            (4_500, 250, false),
            (5_500, 349, true),
        ] {
            assert_eq!(floor.is_missed(at(ms), Instant::ZERO, &counts(ios)), missed, "{ms} ms");
        }
        assert!(Floor::new(&Job::default()).is_none());
        let rate_min = PerDirection::new(None, Some(1), None);
        assert!(Floor::new(&Job { rate_min, ..Job::default() }).is_none(), "it does not write");
    }
}
