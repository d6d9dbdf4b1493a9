//! The figures of a run as a whole, in addition to those of its jobs; and the formatting of every figure.

use crate::report::job::JobResult;
use crate::report::model::Run;
use crate::report::number::{bytes, count, decimal_bytes, nanos, percent};

/// A figure of a run.
pub struct OfRun {
    /// Its name.
    pub name: &'static str,
    /// A lower value is better.
    pub less_is_better: bool,
    show: fn(f64) -> String,
    of: fn(&Run) -> Option<f64>,
}

/// Requests per thousand that overtook an earlier pick. Counted only on request, since that slows the run down.
pub const INVERSIONS: &str = "inversions";

/// Every figure of a run.
pub const OF_RUN: [OfRun; 6] = [
    less("cpu_per_io", nanos, Run::cpu_ns_per_io),
    less("waiting", percent, Run::waited_share),
    less(INVERSIONS, |value| format!("{value:.1}"), |run| run.inversions_per_1000),
    less("kicks_per_io", |value| format!("{value:.3}"), kicks),
    OfRun { less_is_better: false, ..less("merged", percent, merged) },
    OfRun { less_is_better: false, ..less("request_bytes", bytes, request_bytes) },
];

const fn less(name: &'static str, show: fn(f64) -> String, of: fn(&Run) -> Option<f64>) -> OfRun {
    OfRun { name, less_is_better: true, show, of }
}

impl OfRun {
    /// Finds a figure of a run.
    pub fn find(name: &str) -> Option<&'static Self> {
        OF_RUN.iter().find(|figure| figure.name == name)
    }

    /// The figure of `run`; `None` if it was not measured.
    pub fn of(&self, run: &Run) -> Option<f64> {
        (self.of)(run)
    }
}

/// Formats the value of the figure `name`; times of I/Os are in nanoseconds.
pub fn show(name: &str, value: f64) -> String {
    match OfRun::find(name) {
        Some(figure) => (figure.show)(value),
        None if name == "bytes_per_s" => format!("{}/s", decimal_bytes(value)),
        None if name.ends_with("iops") => count(value),
        None => nanos(value),
    }
}

fn kicks(run: &Run) -> Option<f64> {
    let counters = &run.counters;
    (counters.submitted > 0).then(|| counters.kicks.sent as f64 / counters.submitted as f64)
}

fn merged(run: &Run) -> Option<f64> {
    (run.counters.submitted > 0).then(|| run.counters.merged_share())
}

/// The bytes of an I/O, times the I/Os in a request.
fn request_bytes(run: &Run) -> Option<f64> {
    let (counters, ios) = (&run.counters, run.total_ios());
    (counters.requests_completed > 0 && ios > 0).then(|| {
        let bytes: u64 =
            run.jobs.iter().flat_map(JobResult::directions).map(|it| it.1.io_bytes).sum();
        let per_request = counters.submitted as f64 / counters.requests_completed as f64;
        bytes as f64 / ios as f64 * per_request
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn values_have_their_unit() {
        let shown = [
            ("readers.iops", 2_311_000.0, "2.31M"),
            ("waiting", 0.936, "93.6 %"),
            ("cpu_per_io", 1_234.0, "1.23 us"),
            ("inversions", 12.25, "12.2"),
            ("merged", 0.9688, "96.9 %"),
            ("request_bytes", 131_072.0, "128 KiB"),
            ("kicks_per_io", 0.5, "0.500"),
            ("write_p99", 5e6, "5.00 ms"),
        ];
        for (name, value, text) in shown {
            assert_eq!(show(name, value), text, "{name}");
        }
    }

    #[test]
    fn figures_are_those_of_the_run_if_it_has_them() {
        let run = sample::run("bfq", "spin", 2, 1_000_000, 1_000);
        let of = |name: &str, run: &Run| OfRun::find(name).expect("a figure").of(run);
        assert_eq!(of("merged", &run), Some(0.125));
        assert_eq!(of("kicks_per_io", &run), Some(4e-6));
        assert_eq!(of("request_bytes", &run), Some(4096.0 / 0.875));
        assert!(of("cpu_per_io", &run).is_some());
        for name in ["inversions", "waiting", "merged", "request_bytes", "kicks_per_io"] {
            assert_eq!(of(name, &Run::default()), None, "{name}");
        }
    }
}
