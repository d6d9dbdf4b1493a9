//! The figures of one job of a run: plain data with fio's meaning, and figures derived from it. The percentiles in
//! reports are those of `percentile_list`, by default fio's.
//!
//! A job may stand for several threads (fio's `group_reporting`); `members` is their number. Formatting is elsewhere.

pub use blkmq_lab::workload::{Batches, Levels};

use blkmq_core::{Histogram, IoPrio};
use blkmq_lab::workload::{Job, Latencies, LatencyTarget, Unified};
use std::borrow::Cow;

/// The figures of one job, or of a group of jobs reported together.
#[derive(Clone, Debug, Default)]
pub struct JobResult {
    /// fio's `jobname`.
    pub name: String,
    /// fio's `groupid`.
    pub group: u32,
    /// fio's `cgroup`: the group of the job. `None` for the root, and if the members are in different groups.
    pub cgroup: Option<String>,
    /// The options of the job file or command line, in order, as given.
    pub options: Vec<(String, String)>,
    /// Threads whose figures are added up here, at least 1.
    pub members: u32,
    /// The first error as an errno, or 0.
    pub error: i32,
    /// Failed I/Os, if they do not end the job (`continue_on_error`).
    pub forgiven: Option<Forgiven>,
    /// I/Os that had not ended at the end of the runtime, and were given up or never completed.
    pub unfinished: u64,
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Discards.
    pub trim: Direction,
    /// Flushes.
    pub sync: SyncResult,
    /// Wall time of the job while measuring, in nanoseconds (the maximum of its members), without the checks at its
    /// end.
    pub runtime_ns: u64,
    /// The sum of these times over all members.
    pub total_runtime_ns: u64,
    /// CPU time in user space, percent of `total_runtime_ns` (100 is one busy core each).
    pub usr_cpu: f64,
    /// CPU time in the kernel, likewise.
    pub sys_cpu: f64,
    /// Context switches.
    pub ctx: u64,
    /// Page faults that needed I/O.
    pub majf: u64,
    /// Page faults that needed no I/O.
    pub minf: u64,
    /// The percentiles to be reported, ascending.
    pub percentiles: Vec<Percentile>,
    /// The latencies of which they are reported.
    pub percentiles_of: Latencies,
    /// The kinds of transfer that are reported by themselves or as one.
    pub unified: Unified,
    /// The largest number of I/Os in flight that the job was allowed, at the end.
    pub iodepth: u32,
    /// `latency_target` and its companions, which found `iodepth`.
    pub latency_target: Option<LatencyTarget>,
    /// I/Os in flight when each I/O was submitted.
    pub iodepth_level: Levels,
    /// I/Os per submission call.
    pub iodepth_submit: Batches,
    /// I/Os per completion call.
    pub iodepth_complete: Batches,
    /// The result of verification; `None` if nothing was verified.
    pub verify: Option<Verified>,
    /// Reads that only checked contents; they are also in `read`, as in fio.
    pub checks: Checks,
    /// The time of the flush of `end_fsync` in nanoseconds (the longest of its members), if there was one.
    pub end_fsync_ns: Option<u64>,
    /// How late the I/Os of a recording were issued, if the job replays one.
    pub lateness: Option<Latency>,
}

/// Failed I/Os of a job that continues after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forgiven {
    /// The number of them.
    pub count: u64,
    /// The first error as an errno, or 0.
    pub first: u16,
}

/// Reads that only checked contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checks {
    /// Reads completed.
    pub ios: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time spent only on this, after all other work, in nanoseconds: the maximum of the members.
    pub ns: u64,
    /// The sum of these times over all members.
    pub total_ns: u64,
}

/// The result of comparing contents with the data that was written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Bytes that were compared.
    pub bytes: u64,
    /// Blocks that were wrong.
    pub errors: u64,
    /// The first wrong block, as text.
    pub first: Option<String>,
}

/// One kind of data transfer.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Bytes moved.
    pub io_bytes: u64,
    /// The time in which I/Os of this kind were done while measuring, in nanoseconds; for reads including the checks at
    /// the end.
    pub runtime_ns: u64,
    /// I/Os completed.
    pub total_ios: u64,
    /// I/Os that transferred less data than requested.
    pub short_ios: u64,
    /// I/Os given up.
    pub drop_ios: u64,
    /// From the job's decision to issue until the push of the I/O.
    pub slat: Option<Latency>,
    /// From the push to the completion, including the wait in the plug and the scheduler.
    pub clat: Option<Latency>,
    /// The sum of both.
    pub lat: Option<Latency>,
    /// Completion latencies by priority, if there were several.
    pub prios: Vec<(IoPrio, Latency)>,
    /// I/Os per second, sampled.
    pub iops_samples: Samples,
    /// Bytes per second, sampled.
    pub bw_samples: Samples,
}

/// Flushes of a job.
#[derive(Clone, Debug, Default)]
pub struct SyncResult {
    /// Flushes completed.
    pub total_ios: u64,
    /// Their latency, if measured.
    pub lat: Option<Latency>,
}

/// Times of many I/Os in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latency(pub Histogram);

/// A rate over time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Samples {
    /// The lowest sample.
    pub min: f64,
    /// The highest sample.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample.
    pub stddev: f64,
    /// The number of samples.
    pub count: u64,
}

impl JobResult {
    /// Data transfers of the workload completed, all kinds: without reads that only check.
    #[must_use]
    pub fn total_ios(&self) -> u64 {
        self.directions().iter().map(|(_, d)| d.total_ios).sum::<u64>() - self.checks.ios
    }

    /// I/Os of the workload per second, all kinds together.
    #[must_use]
    pub fn iops(&self) -> f64 {
        ratio(self.total_ios() as f64 * 1e9, self.runtime_ns as f64)
    }

    /// Bytes of the workload per second, all kinds together.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        let bytes = self.directions().iter().map(|(_, d)| d.io_bytes).sum::<u64>();
        ratio((bytes - self.checks.bytes) as f64 * 1e9, self.runtime_ns as f64)
    }

    /// Returns whether the workload itself did reads.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.read.total_ios > self.checks.ios
    }

    /// CPU time of all members in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> f64 {
        (self.usr_cpu + self.sys_cpu) / 100.0 * self.total_runtime_ns as f64
    }

    /// The kinds of transfer with fio's names.
    #[must_use]
    pub fn directions(&self) -> [(&'static str, &Direction); 3] {
        [("read", &self.read), ("write", &self.write), ("trim", &self.trim)]
    }

    /// The transfers of all kinds as one.
    #[must_use]
    pub fn mixed(&self) -> Direction {
        let [(_, read), (_, write), (_, trim)] = self.directions();
        let all = || [read, write, trim].into_iter();
        let used = || all().filter(|direction| direction.total_ios > 0);
        let latency = |of: fn(&Direction) -> &Option<Latency>| {
            Latency::sum(all().filter_map(|direction| of(direction).as_ref()))
        };
        Direction {
            io_bytes: all().map(|it| it.io_bytes).sum(),
            runtime_ns: used().map(|it| it.runtime_ns).max().unwrap_or(0),
            total_ios: all().map(|it| it.total_ios).sum(),
            short_ios: all().map(|it| it.short_ios).sum(),
            drop_ios: all().map(|it| it.drop_ios).sum(),
            slat: latency(|it| &it.slat),
            clat: latency(|it| &it.clat),
            lat: latency(|it| &it.lat),
            prios: Vec::new(),
            iops_samples: used().map(|it| it.iops_samples).reduce(Samples::sum).unwrap_or_default(),
            bw_samples: used().map(|it| it.bw_samples).reduce(Samples::sum).unwrap_or_default(),
        }
    }

    /// The transfers as reported, with fio's names.
    #[must_use]
    pub fn reported(&self) -> Vec<(&'static str, Cow<'_, Direction>)> {
        let each = self.directions().map(|(name, direction)| (name, Cow::Borrowed(direction)));
        let mixed = || ("mixed", Cow::Owned(self.mixed()));
        match self.unified {
            Unified::None => each.to_vec(),
            Unified::Mixed => vec![mixed()],
            Unified::Both => each.into_iter().chain([mixed()]).collect(),
        }
    }
}

impl Direction {
    /// I/Os per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        ratio(self.total_ios as f64 * 1e9, self.runtime_ns as f64)
    }

    /// Bytes per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        ratio(self.io_bytes as f64 * 1e9, self.runtime_ns as f64)
    }

    /// Whether I/Os were done and their completion was not timed (`gtod_reduce`, `disable_clat`).
    #[must_use]
    pub fn is_untimed(&self) -> bool {
        self.total_ios > 0 && self.clat.is_none() && self.lat.is_none()
    }
}

impl Latency {
    /// All times together; `None` without any.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        all.into_iter().fold(None, |sum, latency| {
            let mut sum: Self = sum.unwrap_or_default();
            sum.0.merge(&latency.0);
            Some(sum)
        })
    }

    /// The standard deviation in nanoseconds, 0 below two values.
    #[must_use]
    pub fn stddev(&self) -> f64 {
        self.0.variance().sqrt()
    }

    /// Returns whether some value exceeded the histogram, so that the highest percentiles are too low.
    #[must_use]
    pub fn is_clipped(&self) -> bool {
        self.0.buckets().last().is_some_and(|(upper, _)| upper < self.0.max())
    }
}

impl Samples {
    /// Summarises samples of a rate.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let (Some(min), Some(max)) =
            (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max))
        else {
            return Self::default();
        };
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let stddev = if values.len() < 2 { 0.0 } else { (squares / (n - 1.0)).sqrt() };
        Self { min, max, mean, stddev, count: values.len() as u64 }
    }

    /// Adds the rates of threads that are reported together: as in fio, means, minima, maxima and squared deviations
    /// are summed.
    #[must_use]
    pub fn sum(self, other: Self) -> Self {
        let squares = |of: Self| of.stddev * of.stddev * of.count.saturating_sub(1) as f64;
        let count = self.count + other.count;
        let variance = (squares(self) + squares(other)) / count.saturating_sub(1).max(1) as f64;
        Self {
            min: self.min + other.min,
            max: self.max + other.max,
            mean: self.mean + other.mean,
            stddev: variance.sqrt(),
            count,
        }
    }
}

/// A percentile in millionths of a percent, the precision of fio's output, exact where a float would not be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percentile(u32);

/// The whole.
const WHOLE: u32 = 100_000_000;

impl Percentile {
    /// The median.
    pub const P50: Self = Self(50_000_000);
    /// The 90th percentile.
    pub const P90: Self = Self(90_000_000);
    /// The 99th percentile.
    pub const P99: Self = Self(99_000_000);
    /// The 99.9th percentile.
    pub const P99_9: Self = Self(99_900_000);

    /// The percentile of this number before the percent sign, 0 to 100.
    #[must_use]
    fn of_percent(percent: f64) -> Self {
        Self((percent * 1e6).round().clamp(0.0, f64::from(WHOLE)) as u32)
    }

    /// The number before the percent sign.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Formats the number with as many decimals as it needs, at least two.
    #[must_use]
    pub fn text(self) -> String {
        let text = format!("{:.6}", self.percent());
        let least = text.len() - 4;
        let used = text.trim_end_matches('0').len().max(least);
        text[..used].to_owned()
    }

    /// The value that this share of `times` does not exceed.
    #[must_use]
    pub fn of(self, times: &Histogram) -> u64 {
        times.quantile(self.0.into(), WHOLE.into())
    }
}

/// fio's default list, ascending.
#[must_use]
pub fn default_percentiles() -> Vec<Percentile> {
    percentiles(&Job::default().percentile_list)
}

/// The percentiles of these numbers before the percent sign.
#[must_use]
pub fn percentiles(list: &[f64]) -> Vec<Percentile> {
    list.iter().map(|percent| Percentile::of_percent(*percent)).collect()
}

/// `part / whole`, and 0 if the whole is 0.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_value_beyond_its_bucket_is_clipped() {
        let mut latency = Latency::default();
        latency.0.record((1 << 40) - 1);
        assert!(!latency.is_clipped());
        latency.0.record(1 << 41);
        assert!(latency.is_clipped());
    }

    #[test]
    fn samples_are_summarised() {
        let s = Samples::of(&[2.0, 4.0, 6.0]);
        assert_eq!((s.min, s.max, s.mean, s.stddev, s.count), (2.0, 6.0, 4.0, 2.0, 3));
        assert_eq!(Samples::of(&[]), Samples::default());
        assert_eq!(Samples::of(&[7.0]).stddev, 0.0);
    }

    /// Regression test: the mean of a group was that of one thread, so `iops_mean` was a fourth of `iops` with four.
    #[test]
    fn rates_of_a_group_are_added() {
        let one = Samples::of(&[2.0, 4.0, 6.0]);
        let both = one.sum(Samples::of(&[10.0, 10.0]));
        assert_eq!((both.min, both.max, both.mean, both.count), (12.0, 16.0, 14.0, 5));
        assert!((both.stddev - 2f64.sqrt()).abs() < 1e-9, "squares of 8 in five samples");
        assert_eq!(Samples::default().sum(one), one);
    }

    #[test]
    fn cpu_time_is_a_share_of_the_time_of_all_members() {
        let job = JobResult {
            members: 4,
            runtime_ns: 1_000,
            total_runtime_ns: 4_000,
            usr_cpu: 40.0,
            sys_cpu: 10.0,
            ..JobResult::default()
        };
        assert!((job.cpu_ns() - 2_000.0).abs() < 1e-9);
    }

    #[test]
    fn percentiles_keep_their_digits() {
        let text = |percent| Percentile::of_percent(percent).text();
        assert_eq!(
            [text(1.0), text(99.95), text(99.999), text(100.0)],
            ["1.00", "99.95", "99.999", "100.00"]
        );
        assert_eq!(Percentile::of_percent(99.9), Percentile::P99_9);
        let mut ramp = Histogram::new();
        (1..=50).for_each(|value| ramp.record(value));
        assert_eq!(Percentile::of_percent(100.0).of(&ramp), 50);
        assert_eq!(default_percentiles().len(), 17);
    }
}
