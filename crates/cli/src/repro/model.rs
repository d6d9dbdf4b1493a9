//! The measured results: plain data, filled by `run.rs` and read by every output.
//!
//! A figure that follows from other figures is a method and not a field.

use super::metric::Metric;
use super::name::Name;
use crate::report::job::JobResult;
use crate::report::machine::Machine;
use crate::report::model::{Partial, Run};

/// The results of one `blkmq repro`.
#[derive(Clone, Debug, Default)]
pub struct Repro {
    /// The command line as typed; running it again repeats the measurement.
    pub command: String,
    /// The version of blkmq, `0.1.0`.
    pub version: String,
    /// When the first run began: milliseconds since the epoch, UTC.
    pub time_ms: u64,
    /// The machine of the runs.
    pub machine: Machine,
    /// The claims in the order in which they are shown.
    pub experiments: Vec<Experiment>,
    /// The number of missing runs, if a signal ended the measurement.
    pub partial: Option<Partial>,
}

/// The measurements of one claim.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The claim.
    pub name: Name,
    /// The workload here, in words: pattern, device, how long and how often.
    pub workload: String,
    /// The measured rows; rows that are compared are adjacent, *before* first.
    pub points: Vec<Point>,
    /// Timelines of calls in quick succession, for claims about them.
    pub timelines: Vec<Timeline>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
}

/// A run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// How the step is done: as before, as proposed or as here.
    pub variant: Variant,
    /// The options of the variant.
    pub how: &'static str,
    /// The scheduler.
    pub scheduler: &'static str,
    /// The varied quantity.
    pub setting: Setting,
    /// The arguments behind `blkmq bench`.
    pub args: Vec<String>,
}

/// How a step is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Variant {
    /// As the kernel does it.
    Before,
    /// As a patch proposed.
    Proposed,
    /// As this project does it.
    Ours,
}

impl Variant {
    /// All variants, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Before, Self::Proposed, Self::Ours];

    /// The word for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Proposed => "as proposed",
            Self::Ours => "ours",
        }
    }

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Proposed => "proposed",
            Self::Ours => "ours",
        }
    }
}

/// The quantity that is varied besides the variant, and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// `threads`, or `depth`.
    pub what: &'static str,
    /// Its value.
    pub value: u32,
}

/// One run, or the median of several.
#[derive(Clone, Debug)]
pub struct Point {
    /// How the step was done.
    pub variant: Variant,
    /// The options of the variant, `spin:dispatch=batch`.
    pub how: String,
    /// The scheduler.
    pub scheduler: String,
    /// The varied quantity.
    pub setting: Setting,
    /// The command line that repeats the run.
    pub command: String,
    /// The figures, each metric at most once; metrics that were not measured are left out.
    pub figures: Vec<(Metric, f64)>,
    /// The lowest and the highest rate of the repetitions, in I/Os per second; None with fewer than two.
    pub range: Option<(f64, f64)>,
}

/// Calls in quick succession, and when they were answered.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// How the step was done.
    pub variant: Variant,
    /// The options of the variant.
    pub how: String,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// The times of the passes, in nanoseconds from the first call.
    pub passes: Vec<u64>,
}

/// A call for a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The time of the call, in nanoseconds from the first call.
    pub at: u64,
    /// The delay that the call allows for the pass, in nanoseconds; 0 is now.
    pub delay: u64,
}

impl Timeline {
    /// The time from the last call for a pass *now* to the next pass, in nanoseconds. `None` if there was no such
    /// call, or no pass after it.
    pub fn answered_after(&self) -> Option<u64> {
        let asked = self.calls.iter().rev().find(|call| call.delay == 0)?.at;
        self.passes.iter().find(|pass| **pass >= asked).map(|pass| pass - asked)
    }
}

impl Point {
    /// The point of `case`, which `command` repeats. Figures that the run does not have are left out.
    pub fn of(case: &Case, command: String, run: &Run) -> Self {
        Self {
            variant: case.variant,
            how: case.how.into(),
            scheduler: case.scheduler.into(),
            setting: case.setting,
            command,
            figures: Self::figures_of(run),
            range: run.range().filter(|_| run.repetitions.len() > 1),
        }
    }

    /// The value of `metric`.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.figures.iter().find(|(known, _)| *known == metric).map(|(_, value)| *value)
    }

    /// The figures of a run of `blkmq bench` or `blkmq sim`.
    fn figures_of(run: &Run) -> Vec<(Metric, f64)> {
        let mut figures = vec![(Metric::Iops, run.iops())];
        figures.extend(run.cpu_ns_per_io().map(|ns| (Metric::CpuPerIo, ns)));
        let counters = &run.counters;
        if counters.submitted > 0 {
            let kicks = counters.kicks.sent as f64 / counters.submitted as f64;
            figures.extend([(Metric::Merged, counters.merged_share()), (Metric::Kicks, kicks)]);
        }
        if counters.requests_completed > 0 && run.total_ios() > 0 {
            let bytes: u64 =
                run.jobs.iter().flat_map(JobResult::directions).map(|it| it.1.io_bytes).sum();
            let per_io = bytes as f64 / run.total_ios() as f64;
            let ios_per_request = counters.submitted as f64 / counters.requests_completed as f64;
            figures.push((Metric::RequestSize, per_io * ios_per_request));
        }
        let slow = run.latency().filter(|latency| latency.0.count() > 0);
        figures.extend(slow.map(|latency| (Metric::P99, latency.0.quantile(99, 100) as f64)));
        figures
    }

    /// Returns whether both points differ in their variants only.
    fn is_comparable(&self, other: &Self) -> bool {
        self.scheduler == other.scheduler && self.setting == other.setting
    }
}

impl Experiment {
    /// The point that the point at `at` is compared with: the first *before* with the same scheduler and setting.
    pub fn base(&self, at: usize) -> Option<&Point> {
        let point = &self.points[at];
        self.points
            .iter()
            .find(|other| other.variant == Variant::Before && other.is_comparable(point))
    }

    /// The claim's metric at `at`, relative to *before*; `None` if either was not measured, or if *before* is 0.
    pub fn ratio(&self, at: usize) -> Option<f64> {
        let metric = self.name.metric();
        let base = self.base(at)?.get(metric).filter(|base| *base > 0.0)?;
        Some(self.points[at].get(metric)? / base)
    }

    /// Every metric that some point has, the claim's first.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![self.name.metric()];
        for (metric, _) in self.points.iter().flat_map(|point| &point.figures) {
            if !metrics.contains(metric) {
                metrics.push(*metric);
            }
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::report::sample as reports;

    #[test]
    fn a_point_is_compared_with_what_was_before_it() {
        let experiment = sample::contention();
        assert_eq!(experiment.ratio(0), Some(1.0));
        assert_eq!(experiment.ratio(2), Some(4.0));
        assert_eq!(experiment.base(5).map(|point| point.setting.value), Some(4));
        let mut none = experiment.clone();
        none.points[0].figures.clear();
        assert_eq!((none.ratio(0), none.ratio(2)), (None, None));
        let metrics = [Metric::Iops, Metric::Waiting, Metric::CpuPerIo];
        assert_eq!(experiment.metrics(), metrics);
    }

    #[test]
    fn a_call_for_now_is_answered_by_the_first_pass_behind_it() {
        let timeline = |passes: &[u64]| Timeline {
            variant: Variant::Before,
            how: String::new(),
            calls: vec![
                Call { at: 0, delay: 0 },
                Call { at: 5, delay: 90 },
                Call { at: 7, delay: 0 },
            ],
            passes: passes.to_vec(),
        };
        assert_eq!(timeline(&[3, 9]).answered_after(), Some(2));
        assert_eq!(timeline(&[3]).answered_after(), None);
        let later = Timeline { calls: vec![Call { at: 0, delay: 1 }], ..timeline(&[3]) };
        assert_eq!(later.answered_after(), None);
    }

    #[test]
    fn figures_are_those_of_the_run() {
        let run = reports::run("bfq", "spin", 2, 1_000_000, 1_000);
        let setting = Setting { what: "threads", value: 2 };
        let (variant, how, scheduler) = (Variant::Before, "spin", "bfq");
        let case = Case { variant, how, scheduler, setting, args: Vec::new() };
        let point = Point::of(&case, "blkmq bench".into(), &run);
        assert_eq!((point.how.as_str(), point.scheduler.as_str()), ("spin", "bfq"));
        assert_eq!((point.variant, point.setting), (variant, setting));
        assert_eq!(point.range, Some((970_000.0, 1_020_000.0)));
        assert_eq!(point.get(Metric::Iops), Some(1_000_000.0));
        assert_eq!(point.get(Metric::Merged), Some(0.125));
        assert_eq!(point.get(Metric::Kicks), Some(4e-6));
        assert_eq!(point.get(Metric::RequestSize), Some(4096.0 / 0.875));
        assert_eq!(point.get(Metric::Waiting), None);
        assert!(point.get(Metric::P99).is_some() && point.get(Metric::CpuPerIo).is_some());
        let nothing = Point::of(&case, String::new(), &Run::default());
        assert_eq!((nothing.figures, nothing.range), (vec![(Metric::Iops, 0.0)], None));
    }
}
