//! The measurements of one thread of a job: its counts, with its depths and batch sizes in fio's classes, and the
//! course of a quantity over time.
//!
//! The counts must reach a minimum rate, fio's `rate_min` and `rate_iops_min`: a thread that falls below it ends with
//! an error. They are plain counts and times, in integers; the report interprets them.
//!
//! A [`Series`] has a bounded number of bins for any length of a run. It begins with bins of a microsecond. When time
//! passes the last bin, neighbouring bins are added up and all become twice as long; so a run of any length ends with
//! between half and all of them in use. Integers only, and nothing is allocated after the first value.

use super::verify::Findings;
use super::{Direction, Failures, Job, Late, PerDirection, Unfinished};
use blkmq_core::{Histogram, Instant, IoPrio, Nanos};

/// fio samples rates over windows of this length.
const WINDOW: Nanos = Nanos::from_millis(500);
/// Samples that are kept; a longer run keeps its beginning.
const SAMPLES: usize = 4096;

/// Times of one kind of I/O in nanoseconds; a time that is not measured is `None`.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// From the decision to issue until the I/O was pushed.
    pub slat: Option<Histogram>,
    /// From the push to the completion: the plug and the scheduler included.
    pub clat: Option<Histogram>,
    /// The sum of both.
    pub lat: Option<Histogram>,
}

/// The I/O of one window of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Length of the window.
    pub length: Nanos,
}

/// One kind of I/O.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// The times that they took.
    pub times: Times,
    /// Completion latencies by priority, in ascending order; empty if all I/Os have the same, or none is measured.
    pub prios: Vec<(IoPrio, Histogram)>,
    /// Samples, window by window.
    pub samples: Vec<Sample>,
    sampled: (u64, u64),
}

/// Reads that only checked written blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checks {
    /// Reads completed.
    pub ios: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Of these, the reads that came after all other work.
    pub at_end: u64,
    /// Time spent only on them, at the end of the thread.
    pub time: Nanos,
}

/// One thread's counts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The counts, by direction.
    pub counts: [Counts; 3],
    /// Flushes completed, without that of `end_fsync`.
    pub flushes: u64,
    /// The times that they took, from the decision to issue to the completion, if latencies are measured at all.
    pub sync: Option<Histogram>,
    /// The time that the flush of `end_fsync` took. As in fio, the other times do not include it.
    pub end_fsync: Option<Nanos>,
    /// Reads that checked written blocks. They are also among the counts of reads.
    pub checks: Checks,
    /// I/Os in flight when each was submitted.
    pub levels: Levels,
    /// The depth that a latency target allowed at the end, if there was one.
    pub latency_depth: Option<u32>,
    /// I/Os in a submission.
    pub submits: Batches,
    /// Completions reaped together.
    pub completes: Batches,
    /// Completions over time, with their latencies in nanoseconds, if the course was requested.
    pub course: Option<Series>,
    /// The first error, as an errno.
    pub error: u16,
    /// I/Os that failed.
    pub failures: Failures,
    /// The I/O that took longer than it may.
    pub late: Option<Late>,
    /// I/Os that did not end with the runtime.
    pub unfinished: Unfinished,
    /// The results of verification, if there was any.
    pub verify: Option<Findings>,
    /// The state of each block at the end, if the job wants it (`verify_state_save`).
    pub verify_state: Option<Vec<u8>>,
    /// How late the I/Os of a recording were issued, in nanoseconds, if the job has one.
    pub lateness: Option<Histogram>,
    /// The longest time of a call into the engine, among the calls that were timed.
    pub longest_call: Nanos,
    /// The time at which counting began.
    pub started: Instant,
    /// The time at which counting ended.
    pub ended: Instant,
    /// The beginning of the window that is being sampled.
    window: Instant,
}

impl Tally {
    /// An empty tally for a thread of `job` that counts from `now` on.
    #[must_use]
    pub fn new(job: &Job, now: Instant) -> Self {
        let histogram = |wanted: bool| wanted.then(Histogram::new);
        let latencies = job.latencies;
        let counts = |direction: Direction| Counts {
            prios: match job.prios(direction) {
                several if several.len() > 1 && latencies.clat => {
                    several.into_iter().map(|prio| (prio, Histogram::new())).collect()
                }
                _ => Vec::new(),
            },
            times: Times {
                slat: histogram(latencies.slat),
                clat: histogram(latencies.clat),
                lat: histogram(latencies.lat),
            },
            ..Counts::default()
        };
        Self {
            counts: Direction::ALL.map(counts),
            sync: histogram(job.flushes() && (latencies.clat || latencies.lat)),
            started: now,
            ended: now,
            window: now,
            ..Self::default()
        }
    }

    /// An empty tally from `now` on, which keeps the errors and failures so far.
    pub(super) fn anew(&self, job: &Job, now: Instant) -> Self {
        let course = self.course.as_ref().map(|_| Series::new());
        Self { error: self.error, failures: self.failures, course, ..Self::new(job, now) }
    }

    /// Takes a sample of the rates if a window is full.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant) {
        let length = now - self.window;
        if length >= WINDOW {
            self.take_sample(now, length);
        }
    }

    fn take_sample(&mut self, now: Instant, length: Nanos) {
        self.window = now;
        for counts in &mut self.counts {
            let (ios, bytes) = (counts.ios - counts.sampled.0, counts.bytes - counts.sampled.1);
            counts.sampled = (counts.ios, counts.bytes);
            if counts.samples.len() < SAMPLES && counts.ios > 0 {
                counts.samples.push(Sample { ios, bytes, length });
            }
        }
    }

    /// The time of counting.
    #[must_use]
    pub fn runtime(&self) -> Nanos {
        self.ended - self.started
    }

    /// I/Os of the workload completed, all kinds, without flushes and checks.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.counts.iter().map(|counts| counts.ios).sum::<u64>() - self.checks.ios
    }

    /// Bytes moved by them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.counts.iter().map(|counts| counts.bytes).sum::<u64>() - self.checks.bytes
    }

    /// The time in which I/Os of `direction` were done: the time of the workload, unless it had none of them, and for
    /// reads also the time of checks.
    #[must_use]
    pub fn runtime_of(&self, direction: Direction) -> Nanos {
        let ios = self.counts[direction as usize].ios;
        if direction != Direction::Read {
            return if ios > 0 { self.runtime() } else { Nanos::ZERO };
        }
        let among_work = ios > self.checks.at_end;
        let work = if among_work { self.runtime() } else { Nanos::ZERO };
        Nanos(work.0 + self.checks.time.0)
    }
}

/// Counts of numbers in flight; each class reaches up to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Levels(pub [u64; 7]);

/// Counts of batch sizes; each class reaches down to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batches(pub [u64; 7]);

/// Shares in percent, 0 each if nothing was counted.
fn shares(names: [&'static str; 7], counts: &[u64; 7]) -> [(&'static str, f64); 7] {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let mut at = 0;
    names.map(|name| {
        let share = 100.0 * (counts[at] as f64 / total);
        at += 1;
        (name, share)
    })
}

impl Levels {
    /// Counts `ios` I/Os that were submitted together, with which `depth` are in flight (1 is alone).
    #[inline]
    pub fn record(&mut self, depth: u32, ios: u32) {
        self.0[(depth.max(1).ilog2() as usize).min(6)] += u64::from(ios);
    }

    /// fio's names of the classes, and the percentage of I/Os in each.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(["1", "2", "4", "8", "16", "32", ">=64"], &self.0)
    }
}

impl Batches {
    /// Counts a call that moved `size` I/Os.
    #[inline]
    pub fn record(&mut self, size: u32) {
        let class = match size {
            0 => 0,
            1..=4 => 1,
            larger => ((larger - 1).ilog2() as usize).min(6),
        };
        self.0[class] += 1;
    }

    /// fio's names of the classes, and the percentage of calls in each.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(["0", "4", "8", "16", "32", "64", ">=64"], &self.0)
    }
}

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

    #[test]
    fn levels_reach_up_and_batches_reach_down() {
        let mut levels = Levels::default();
        [1, 2, 3, 4, 31, 32, 63, 64, 9_999].into_iter().for_each(|d| levels.record(d, 2));
        assert_eq!(levels.0, [2, 4, 2, 0, 2, 4, 4]);
        let mut batches = Batches::default();
        [0, 1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65].into_iter().for_each(|s| batches.record(s));
        assert_eq!(batches.0, [1, 2, 2, 2, 2, 2, 1]);
        let sum: f64 = batches.shares().iter().map(|(_, share)| share).sum();
        assert!((sum - 100.0).abs() < 1e-9);
        assert_eq!(Levels::default().shares()[0], ("1", 0.0));
    }

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

    fn bin_at(us: u64) -> Instant {
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
            series.record(bin_at(us), us);
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
        short.record(bin_at(3), 7);
        long.record(bin_at(1_000), 9);
        let mut other = long.clone();
        short.merge(&long);
        let mut again = Series::new();
        again.record(bin_at(3), 7);
        other.merge(&again);
        assert_eq!(short, other);
        assert_eq!(short.bins().iter().map(|bin| bin.count).sum::<u64>(), 2);
        assert_eq!(short.length(), long.length());
    }

    #[test]
    fn a_level_counts_for_as_long_as_it_lasts() {
        let mut course = Course::new();
        course.change(bin_at(1), 4);
        course.change(bin_at(3), 2);
        course.change(bin_at(2), 6);
        assert_eq!(course.level(), 6);
        let series = course.into_series(bin_at(4));
        let one = 1 << FIRST_SHIFT;
        let bins: Vec<_> = series.bins().iter().map(|bin| (bin.sum / one, bin.max)).collect();
        assert_eq!(bins[..4], [(0, 0), (4, 4), (4, 4), (6, 6)]);
    }
}
