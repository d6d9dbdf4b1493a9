//! The columns of a comparison, with names and formats shared by the terminal and the page.

use super::job::Latency;
use super::label::{Varying, scheduler};
use super::model::{Report, Run};
use super::number::{bandwidth, bytes, count, nanos, percent};
use super::percentile::Percentile;
use super::ratio::ratio;
use blkmq_lab::workload::Direction;
use blkmq_terminal::text_table::Align;

/// One column.
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The meaning, a sentence for a first-time reader.
    pub help: &'static str,
    /// Words or figures.
    pub align: Align,
    cell: fn(&Run, &Run) -> String,
}

impl Column {
    /// The cell of `run`, in a report whose first run is `first`.
    #[must_use]
    pub fn cell(&self, run: &Run, first: &Run) -> String {
        (self.cell)(run, first)
    }
}

const fn words(name: &'static str, help: &'static str, cell: fn(&Run, &Run) -> String) -> Column {
    Column { name, help, align: Align::Left, cell }
}

const fn figures(name: &'static str, help: &'static str, cell: fn(&Run, &Run) -> String) -> Column {
    Column { name, help, align: Align::Right, cell }
}

/// The columns that distinguish the runs of this report: figures that do not vary or were not measured are omitted.
#[must_use]
pub fn columns(report: &Report) -> Vec<Column> {
    let varying = Varying::of(report);
    let scopes = report.runs.windows(2).any(|pair| pair[0].scope != pair[1].scope);
    let merged = report.runs.iter().any(|run| run.counters.merges.total() > 0);
    let verified = report.runs.iter().any(|run| verified(run).is_some());
    let locked = report.runs.iter().any(|run| run.waited_share().is_some());
    let before = [
        (
            true,
            words("scheduler", "and those of its attributes that were set", |r, _| scheduler(r)),
        ),
        (true, words("access", "how threads reach the elevator", |r, _| r.access.clone())),
        (scopes, words("scope", "what one elevator serves", |r, _| r.scope.clone())),
        (varying.device, words("device", "what the I/O went to", |r, _| r.device.text.clone())),
        (true, figures("threads", "that submitted", |r, _| r.threads.to_string())),
        (true, figures("IOPS", "I/Os per second of all threads", |r, _| count(r.iops()))),
        (true, figures("bandwidth", "bytes per second", |r, _| bandwidth(r.bytes_per_second()))),
    ];
    let after = [
        (
            true,
            figures("CPU us/IO", "CPU time of all threads per I/O, in microseconds", |r, _| cpu(r)),
        ),
        (
            merged,
            figures("merged", "I/Os that needed no request of their own", |r, _| {
                percent(r.counters.merged_share())
            }),
        ),
        (
            locked,
            figures("waiting", "thread time spent waiting for the elevator's lock", |r, _| {
                r.waited_share().map_or_else(|| "-".into(), percent)
            }),
        ),
        (
            true,
            figures("rq/batch", "requests per batch that left the elevator", |r, _| {
                format!("{:.1}", r.counters.batch_mean)
            }),
        ),
        (
            true,
            figures("vs first", "IOPS relative to the first row", |r, first| {
                format!("{:.2}x", ratio(r.iops(), first.iops()))
            }),
        ),
        (
            verified,
            figures("verified", "bytes compared, or blocks that were wrong", |r, _| verify(r)),
        ),
    ];
    let shown = |(shown, column): (bool, Column)| shown.then_some(column);
    let mut columns = Vec::from_iter(before.into_iter().filter_map(shown));
    columns.extend(latencies(report));
    columns.extend(after.into_iter().filter_map(shown));
    columns
}

/// Returns percentiles of latency for each kind of I/O that some workload does; none if nothing was measured.
fn latencies(report: &Report) -> Vec<Column> {
    const P50: &str = "half of them took no longer, from the push to the completion";
    const P99: &str = "99 % of them took no longer, from the push to the completion";
    use Direction::{Read, Trim, Write};
    let is_used = |direction: Direction| report.runs.iter().any(|run| run.does(direction));
    let used = Direction::ALL.into_iter().filter(|direction| is_used(*direction)).count();
    if report.runs.iter().all(|run| run.latency().is_none()) {
        return vec![];
    }
    if !report.runs.iter().any(Run::has_clat) {
        return vec![
            figures("lat p50", "half of the I/Os took no longer", |r, _| all(r, Percentile::P50)),
            figures("lat p99", "99 % of the I/Os took no longer", |r, _| all(r, Percentile::P99)),
        ];
    }
    if used < 2 {
        return vec![
            figures("clat p50", P50, |r, _| all(r, Percentile::P50)),
            figures("clat p99", P99, |r, _| all(r, Percentile::P99)),
        ];
    }
    let each = [
        (Read, figures("read clat p50", P50, |r, _| one(r, Read, Percentile::P50))),
        (Read, figures("read clat p99", P99, |r, _| one(r, Read, Percentile::P99))),
        (Write, figures("write clat p50", P50, |r, _| one(r, Write, Percentile::P50))),
        (Write, figures("write clat p99", P99, |r, _| one(r, Write, Percentile::P99))),
        (Trim, figures("trim clat p50", P50, |r, _| one(r, Trim, Percentile::P50))),
        (Trim, figures("trim clat p99", P99, |r, _| one(r, Trim, Percentile::P99))),
    ];
    let shown = each.into_iter().filter(|(direction, _)| is_used(*direction));
    shown.map(|(_, column)| column).collect()
}

/// A percentile of all I/Os.
fn all(run: &Run, percentile: Percentile) -> String {
    shown(run.latency(), percentile)
}

/// A percentile of the I/Os of one kind.
fn one(run: &Run, direction: Direction, percentile: Percentile) -> String {
    shown(run.latency_of(direction), percentile)
}

fn shown(latency: Option<Latency>, percentile: Percentile) -> String {
    let latency = latency.filter(|latency| latency.0.count() > 0);
    latency.map_or_else(|| "-".into(), |l| nanos(percentile.of(&l.0) as f64))
}

/// Returns the verified bytes and errors of all jobs of a run; `None` if no job verified.
fn verified(run: &Run) -> Option<(u64, u64)> {
    let found = run.jobs.iter().filter_map(|job| job.verify.as_ref());
    found.map(|found| (found.bytes, found.errors)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
}

fn verify(run: &Run) -> String {
    match verified(run) {
        None => "-".into(),
        Some((compared, 0)) => bytes(compared as f64),
        Some((_, errors)) => format!("{errors} WRONG"),
    }
}

fn cpu(run: &Run) -> String {
    run.cpu_ns_per_io().map_or_else(|| "-".into(), |ns| format!("{:.3}", ns / 1e3))
}
