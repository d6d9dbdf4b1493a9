//! The shortest name that distinguishes a run from the others, and the runs that form a curve.

use super::model::{Report, Run};
use super::number::counted;

/// The properties that differ between the runs of a report, from which distinguishing names are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Varying {
    /// How threads share the elevator.
    pub access: bool,
    /// The scope of an elevator, where a scheduler was measured with several.
    pub scope: bool,
    /// The number of threads.
    pub threads: bool,
    /// The device.
    pub device: bool,
}

/// Runs that differ only in the number of threads.
#[derive(Clone, Debug)]
pub struct Series {
    /// The properties that its runs share and other runs do not.
    pub label: String,
    /// The indexes of its runs in the report, by number of threads.
    pub runs: Vec<usize>,
}

impl Varying {
    /// Compares all runs of a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let Some((first, rest)) = report.runs.split_first() else { return Self::default() };
        let differs = |same: fn(&Run, &Run) -> bool| rest.iter().any(|run| !same(first, run));
        Self {
            access: differs(|a, b| a.access == b.access),
            scope: report.runs.iter().any(|a| {
                let is_other = |b: &Run| scheduler(a) == scheduler(b) && a.scope != b.scope;
                report.runs.iter().any(is_other)
            }),
            threads: differs(|a, b| a.threads == b.threads),
            device: differs(|a, b| a.device.text == b.device.text),
        }
    }

    /// The run's name without its number of threads.
    #[must_use]
    pub fn series_name(self, run: &Run) -> String {
        let mut name = scheduler(run);
        let details =
            [(self.access, &run.access), (self.scope, &run.scope), (self.device, &run.device.text)];
        let shown: Vec<&str> = details
            .into_iter()
            .filter(|(shown, _)| *shown)
            .map(|(_, text)| text.as_str())
            .collect();
        if !shown.is_empty() {
            name.push_str(&format!(" ({})", shown.join(", ")));
        }
        name
    }

    /// The run's name.
    #[must_use]
    pub fn run_name(self, run: &Run) -> String {
        let name = self.series_name(run);
        if self.threads {
            format!("{name}, {}", counted(run.threads.into(), "thread"))
        } else {
            name
        }
    }
}

/// The scheduler and its attributes that were set.
#[must_use]
pub fn scheduler(run: &Run) -> String {
    if run.scheduler_options.is_empty() {
        run.scheduler.clone()
    } else {
        format!("{} {}", run.scheduler, run.scheduler_options)
    }
}

/// All runs as series, in order of first appearance. Runs of one series with equal numbers of threads (for instance
/// with another workload) are all kept.
#[must_use]
pub fn series(report: &Report) -> Vec<Series> {
    let varying = Varying::of(report);
    let mut all: Vec<Series> = Vec::new();
    for (index, run) in report.runs.iter().enumerate() {
        let label = varying.series_name(run);
        match all.iter_mut().find(|s| s.label == label) {
            Some(series) => series.runs.push(index),
            None => all.push(Series { label, runs: vec![index] }),
        }
    }
    for series in &mut all {
        series.runs.sort_by_key(|&index| report.runs[index].threads);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn only_what_differs_is_named() {
        let report = sample::comparison();
        let varying = Varying::of(&report);
        assert!(varying.access && varying.threads && !varying.scope && !varying.device);
        let names: Vec<String> = series(&report).into_iter().map(|s| s.label).collect();
        assert_eq!(names, ["none (combining)", "mq-deadline (combining)", "mq-deadline (spin)"]);
        let one = Report { runs: vec![report.runs[0].clone()], ..report };
        assert_eq!(Varying::of(&one).run_name(&one.runs[0]), "none");
    }

    /// Schedulers have different default scopes, which names do not mention.
    #[test]
    fn a_scope_is_named_where_a_scheduler_has_several() {
        let mut report = sample::starved();
        report.runs[0].scope = "hwqueue".into();
        assert!(!Varying::of(&report).scope);
        report.runs.push(report.runs[1].clone());
        report.runs[2].scope = "hwqueue".into();
        let varying = Varying::of(&report);
        assert_eq!(varying.run_name(&report.runs[2]), "bfq (hwqueue)");
    }

    #[test]
    fn a_series_ascends() {
        let mut report = sample::comparison();
        report.runs.reverse();
        for series in series(&report) {
            let threads: Vec<u32> = series.runs.iter().map(|&i| report.runs[i].threads).collect();
            assert!(threads.is_sorted(), "{threads:?}");
        }
    }
}
