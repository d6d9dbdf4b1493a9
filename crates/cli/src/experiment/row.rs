//! The result of a point: the figures of its run, as a line of JSON. Beside the figures of jobs there are those of a run
//! as a whole, and the formatting of every figure.

use super::study::{Point, Study, Value};
use crate::report::job::{Direction, JobResult, Latency};
use crate::report::model::{Report, Run};
use crate::report::number::{bytes, count, decimal_bytes, nanos, percent};
use blkmq_core::Histogram;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The percentiles of a row, in parts of 10,000.
const PERCENTILES: [(&str, u64); 13] = [
    ("1", 100),
    ("5", 500),
    ("10", 1_000),
    ("25", 2_500),
    ("50", 5_000),
    ("75", 7_500),
    ("90", 9_000),
    ("95", 9_500),
    ("99", 9_900),
    ("99.5", 9_950),
    ("99.9", 9_990),
    ("99.95", 9_995),
    ("99.99", 9_999),
];

/// The result of a point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The identity of the point; see [`id`].
    pub id: String,
    /// The value of the point on each axis.
    pub values: BTreeMap<String, Value>,
    /// The figures of the whole run, by name; see [`OF_RUN`].
    #[serde(default)]
    pub run: BTreeMap<String, f64>,
    /// The jobs of the run.
    pub jobs: Vec<JobRow>,
    /// The groups of the run.
    pub groups: Vec<GroupRow>,
    /// Notes about the run.
    pub notes: Vec<String>,
}

/// The figures of a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRow {
    /// The name of the job.
    pub name: String,
    /// The time that was measured, in nanoseconds.
    pub runtime_ns: u64,
    /// I/Os per second of all kinds except flushes.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The figures of `read`, `write`, `trim` and `sync`, as far as there was any I/O of that kind.
    pub kinds: BTreeMap<String, KindRow>,
}

/// The figures of one kind of I/O.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindRow {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// I/Os per second.
    pub iops: f64,
    /// The mean latency in nanoseconds, from the decision to issue on, if it was measured.
    pub mean_ns: Option<f64>,
    /// The longest latency in nanoseconds.
    pub max_ns: Option<u64>,
    /// Latencies in nanoseconds by percentile; see [`PERCENTILES`].
    pub percentiles_ns: BTreeMap<String, u64>,
}

/// The figures of a group.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRow {
    /// The name; `/` is the root.
    pub name: String,
    /// I/Os in it and below.
    pub ios: u64,
    /// Bytes in it and below.
    pub bytes: u64,
    /// The share of all bytes, 0 to 1.
    pub share: f64,
}

impl Row {
    /// The result of `point` with that `id`, whose run is the only one of `report`.
    pub fn of(id: String, point: &Point, report: &Report) -> Self {
        let run = report.runs.first();
        let all = run.map_or(0, |run| run.groups.all.len());
        let group = |at: usize| {
            let groups = &run.expect("groups are of a run").groups;
            let (ios, bytes, share) = (groups.ios(at), groups.bytes(at), groups.share(at));
            GroupRow { name: groups.all[at].name.clone(), ios, bytes, share }
        };
        Self {
            id,
            values: point.values.clone(),
            run: run.into_iter().flat_map(figures).collect(),
            jobs: run.map_or_else(Vec::new, |run| {
                run.jobs.iter().map(|job| job_row(run, job)).collect()
            }),
            groups: (0..all).map(group).collect(),
            notes: report.notes.clone(),
        }
    }

    /// The line of a file, with its end.
    pub fn line(&self) -> String {
        let text = serde_json::to_string(self).expect("keys are texts");
        format!("{text}\n")
    }
}

fn figures(run: &Run) -> impl Iterator<Item = (String, f64)> {
    OF_RUN.iter().filter_map(|figure| Some((figure.name.to_owned(), figure.of(run)?)))
}

fn job_row(run: &Run, job: &JobResult) -> JobRow {
    let mut kinds = BTreeMap::new();
    for (name, direction) in job.directions() {
        if direction.total_ios > 0 {
            kinds.insert(name.to_owned(), kind_row(direction));
        }
    }
    if job.sync.total_ios > 0 {
        let seconds = job.runtime_ns as f64 / 1e9;
        let iops = if seconds > 0.0 { job.sync.total_ios as f64 / seconds } else { 0.0 };
        let row =
            KindRow { ios: job.sync.total_ios, bytes: 0, iops, ..timed(job.sync.lat.as_ref()) };
        kinds.insert("sync".into(), row);
    }
    let runtime_ns = if job.runtime_ns > 0 { job.runtime_ns } else { run.elapsed_ns };
    let (iops, bytes_per_s) = (job.iops(), job.bytes_per_second());
    JobRow { name: job.name.clone(), runtime_ns, iops, bytes_per_s, kinds }
}

fn kind_row(direction: &Direction) -> KindRow {
    let times = direction.lat.as_ref().or(direction.clat.as_ref());
    KindRow {
        ios: direction.total_ios,
        bytes: direction.io_bytes,
        iops: direction.iops(),
        ..timed(times)
    }
}

fn timed(times: Option<&Latency>) -> KindRow {
    let times = times.map(|times| &times.0).filter(|times| times.count() > 0);
    let percentiles = times.into_iter().flat_map(|times| {
        PERCENTILES.map(|(name, part)| (name.to_owned(), times.quantile(part, 10_000)))
    });
    KindRow {
        ios: 0,
        bytes: 0,
        iops: 0.0,
        mean_ns: times.map(Histogram::mean),
        max_ns: times.map(Histogram::max),
        percentiles_ns: percentiles.collect(),
    }
}

/// The identity of a point: a digest of the command, its words, the version of blkmq, and `trace`, the digest of the
/// trace. Points of other studies with the same command line have the same identity.
pub fn id(study: &Study, point: &Point, trace: Option<&str>) -> String {
    let mut words = study.words(point);
    // The contents of the trace count, not its path.
    if let (Some(trace), Some(first)) = (trace, words.first_mut()) {
        trace.clone_into(first);
    }
    let parts = [study.program.word(), env!("CARGO_PKG_VERSION")]
        .into_iter()
        .chain(words.iter().map(String::as_str));
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    hex(&digest.finalize()[..12])
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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
