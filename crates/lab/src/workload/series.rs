//! The course of a quantity over time, in a bounded number of bins for any length of a run.
//!
//! It begins with bins of a microsecond. When time passes the last bin, neighbouring bins are added up and all become
//! twice as long; so a run of any length ends with between half and all of them in use. Integers only, and nothing is
//! allocated after the first value.

use blkmq_core::{Instant, Nanos};

/// The most bins of a series.
pub const BINS: usize = 512;
/// The first bins are 2^10 ns.
const FIRST_SHIFT: u32 = 10;

/// One bin: the number of its values, their sum and the largest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bin {
    /// The number of values in it.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The largest of them.
    pub max: u64,
}

impl Bin {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// Values over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Series {
    bins: Vec<Bin>,
    /// Length of a bin beyond the first length, as a shift.
    doubled: u32,
    /// Bins in use.
    used: usize,
}

impl Series {
    /// A series without values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn shift(&self) -> u32 {
        FIRST_SHIFT + self.doubled
    }

    /// The length of a bin.
    #[must_use]
    pub fn length(&self) -> Nanos {
        Nanos(1 << self.shift())
    }

    /// The bins in use, from time zero on.
    #[must_use]
    pub fn bins(&self) -> &[Bin] {
        &self.bins[..self.used]
    }

    /// Records `value` at `at`. O(1), except for a merge of all bins whenever the run has become twice as long.
    #[inline]
    pub fn record(&mut self, at: Instant, value: u64) {
        let index = self.reach(at);
        let bin = &mut self.bins[index];
        bin.count += 1;
        bin.sum += value;
        bin.max = bin.max.max(value);
    }

    /// The bin of `at`, after bins have been made long enough for it.
    #[inline]
    fn reach(&mut self, at: Instant) -> usize {
        if self.bins.is_empty() {
            self.bins = vec![Bin::default(); BINS];
        }
        while at.as_nanos() >> self.shift() >= BINS as u64 {
            self.double();
        }
        let index = (at.as_nanos() >> self.shift()) as usize;
        self.used = self.used.max(index + 1);
        index
    }

    #[cold]
    fn double(&mut self) {
        for at in 0..BINS / 2 {
            let mut sum = self.bins[2 * at];
            sum.add(&self.bins[2 * at + 1]);
            self.bins[at] = sum;
        }
        self.bins[BINS / 2..].fill(Bin::default());
        self.used = self.used.div_ceil(2);
        self.doubled += 1;
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.used == 0 {
            return;
        }
        let mut other = other.clone();
        if self.bins.is_empty() {
            self.bins = vec![Bin::default(); BINS];
        }
        while self.doubled < other.doubled {
            self.double();
        }
        while other.doubled < self.doubled {
            other.double();
        }
        self.bins.iter_mut().zip(&other.bins).for_each(|(bin, more)| bin.add(more));
        self.used = self.used.max(other.used);
    }
}

/// A level over time, such as the number of requests in a queue, each valid until the next change.
///
/// In its bins, `count` is the time in nanoseconds and `sum` the level times that, so that `sum / count` is the
/// mean.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Course {
    series: Series,
    level: u64,
    since: Instant,
}

impl Course {
    /// A course with level zero, from time zero on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The present level.
    #[must_use]
    pub fn level(&self) -> u64 {
        self.level
    }

    /// Sets the level to `level` from `at` on; a time in the past counts as the latest one.
    pub fn change(&mut self, at: Instant, level: u64) {
        self.last_until(at);
        self.level = level;
        // The maximum includes peaks of any length.
        let index = self.series.reach(self.since);
        let bin = &mut self.series.bins[index];
        bin.max = bin.max.max(level);
    }

    /// Counts the present level up to `until`. O(bins between).
    fn last_until(&mut self, until: Instant) {
        if until <= self.since {
            return;
        }
        self.series.reach(until);
        let shift = self.series.shift();
        while self.since < until {
            let index = self.since.as_nanos() >> shift;
            // The last bin ends at the last representable time.
            let end = (index + 1).saturating_mul(1 << shift);
            let end = Instant::from_nanos(end).min(until);
            let time = (end - self.since).0;
            let bin = &mut self.series.bins[index as usize];
            bin.count += time;
            bin.sum = bin.sum.saturating_add(self.level.saturating_mul(time));
            bin.max = bin.max.max(self.level);
            self.since = end;
        }
    }

    /// The course up to `until`.
    #[must_use]
    pub fn into_series(mut self, until: Instant) -> Series {
        self.last_until(until);
        self.series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us << FIRST_SHIFT)
    }

    /// The end of the last possible bin, and a level times its length, do not fit a word.
    #[test]
    fn a_course_reaches_the_end_of_time() {
        let mut course = Course::new();
        course.change(Instant::from_nanos(1 << 54), 1000);
        let series = course.into_series(Instant::MAX);
        let all: u64 = series.bins().iter().map(|bin| bin.count).sum();
        assert_eq!(all, u64::MAX);
        assert!(series.bins().iter().rev().take(9).all(|bin| bin.max == 1000));
    }

    #[test]
    fn bins_double_and_lose_nothing() {
        let mut series = Series::new();
        for us in 0..4_000 {
            series.record(at(us), us);
        }
        assert_eq!(series.length(), Nanos(8 << FIRST_SHIFT));
        assert_eq!(series.bins().len(), 500);
        let sum = |pick: fn(&Bin) -> u64| series.bins().iter().map(pick).sum::<u64>();
        assert_eq!((sum(|bin| bin.count), sum(|bin| bin.sum)), (4_000, 3_999 * 2_000));
        assert_eq!(series.bins()[1], Bin { count: 8, sum: (8..16).sum(), max: 15 });
    }

    #[test]
    fn series_of_different_lengths_add_up() {
        let (mut short, mut long) = (Series::new(), Series::new());
        short.record(at(3), 7);
        long.record(at(1_000), 9);
        let mut other = long.clone();
        short.merge(&long);
        let mut again = Series::new();
        again.record(at(3), 7);
        other.merge(&again);
        assert_eq!(short, other);
        assert_eq!(short.bins().iter().map(|bin| bin.count).sum::<u64>(), 2);
        assert_eq!(short.length(), long.length());
    }

    #[test]
    fn a_level_counts_for_as_long_as_it_lasts() {
        let mut course = Course::new();
        course.change(at(1), 4);
        course.change(at(3), 2);
        course.change(at(2), 6);
        assert_eq!(course.level(), 6);
        let series = course.into_series(at(4));
        let one = 1 << FIRST_SHIFT;
        let bins: Vec<_> = series.bins().iter().map(|bin| (bin.sum / one, bin.max)).collect();
        assert_eq!(bins[..4], [(0, 0), (4, 4), (4, 4), (6, 6)]);
    }
}
