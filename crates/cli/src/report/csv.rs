//! The report as CSV (RFC 4180 quoting, lines end in a newline): one line for each job of each run, units in the
//! names of the columns.
//!
//! Counters are those of the queue, which all jobs of a run share; `run` identifies the lines of one run. A figure that
//! was not measured is an empty cell, never 0. `partial` is `run` for a run truncated by a signal, and `report` if
//! other runs are missing.

use super::job::{self, Direction, JobResult, Percentile};
use super::model::{Report, Run};
use std::collections::BTreeSet;

/// The column names and cells of a line.
type Line = Vec<(String, String)>;

/// The report as CSV; the header alone if there are no runs.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let listed = listed(report);
    let blank = cells(0, &Run::default(), &JobResult::default(), &listed);
    let names = blank.iter().map(|(name, _)| name.as_str());
    push(&mut out, names.chain(["partial"]));
    for (index, run) in report.runs.iter().enumerate() {
        for job in &run.jobs {
            let partial = match report.partial {
                _ if run.is_partial => "run",
                Some(_) => "report",
                None => "",
            };
            let cells = cells(index, run, job, &listed);
            push(&mut out, cells.iter().map(|(_, cell)| cell.as_str()).chain([partial]));
        }
    }
    out
}

/// The percentiles listed by some job but not in fio's list: each gets an additional column.
fn listed(report: &Report) -> Vec<Percentile> {
    let usual = job::default_percentiles();
    let jobs = report.runs.iter().flat_map(|run| &run.jobs);
    let all =
        jobs.flat_map(|job| &job.percentiles).filter(|percentile| !usual.contains(percentile));
    Vec::from_iter(all.copied().collect::<BTreeSet<_>>())
}

fn push<'a>(out: &mut String, cells: impl Iterator<Item = &'a str>) {
    out.push_str(&cells.map(quoted).collect::<Vec<_>>().join(","));
    out.push('\n');
}

/// The cell of a line, in quotes if it needs them.
#[must_use]
pub fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

fn cells(index: usize, run: &Run, job: &JobResult, listed: &[Percentile]) -> Line {
    let mut line = Line::new();
    let mut add = |name: &str, cell: String| line.push((name.to_owned(), cell));
    add("run", index.to_string());
    add("scheduler", run.scheduler.clone());
    add("scheduler_options", run.scheduler_options.clone());
    add("device", run.device.text.clone());
    add("access", run.access.clone());
    add("scope", run.scope.clone());
    add("threads", run.threads.to_string());
    add("job", job.name.clone());
    add("group", job.group.to_string());
    add("error", job.error.to_string());
    add("job_runtime_ns", job.runtime_ns.to_string());
    for (name, direction) in job.directions() {
        transfer(&mut line, name, direction, listed);
    }
    sync(&mut line, job);
    let mut add = |name: &str, cell: String| line.push((name.to_owned(), cell));
    let found = job.verify.as_ref();
    add("verified_bytes", found.map_or_else(String::new, |found| found.bytes.to_string()));
    add("verify_errors", found.map_or_else(String::new, |found| found.errors.to_string()));
    add("usr_cpu_percent", format!("{:.3}", job.usr_cpu));
    add("sys_cpu_percent", format!("{:.3}", job.sys_cpu));
    add("run_iops", format!("{:.3}", run.iops()));
    let (low, high) = run.range().map_or((None, None), |(low, high)| (Some(low), Some(high)));
    add("run_iops_min", optional(low));
    add("run_iops_max", optional(high));
    add("run_repetitions", run.repetitions.len().to_string());
    add("run_cpu_ns_per_io", optional(run.cpu_ns_per_io()));
    counters(&mut line, run);
    cgroup(&mut line, run, job);
    line
}

fn transfer(line: &mut Line, name: &str, direction: &Direction, listed: &[Percentile]) {
    let mut add = |field: &str, cell: String| line.push((format!("{name}_{field}"), cell));
    add("ios", direction.total_ios.to_string());
    add("bytes", direction.io_bytes.to_string());
    add("iops", format!("{:.3}", direction.iops()));
    add("bytes_per_s", format!("{:.3}", direction.bytes_per_second()));
    let latency = direction.clat.as_ref().filter(|l| l.0.count() > 0);
    let whole = |value: Option<u64>| value.map_or_else(String::new, |v| v.to_string());
    add("clat_mean_ns", optional(latency.map(|l| l.0.mean())));
    let percentiles = [
        ("clat_p50_ns", Percentile::P50),
        ("clat_p90_ns", Percentile::P90),
        ("clat_p99_ns", Percentile::P99),
        ("clat_p99_9_ns", Percentile::P99_9),
    ];
    for (field, percentile) in percentiles {
        add(field, whole(latency.map(|l| percentile.of(&l.0))));
    }
    for percentile in listed {
        let text = percentile.text();
        let name = text.trim_end_matches('0').trim_end_matches('.').replace('.', "_");
        add(&format!("clat_p{name}_ns"), whole(latency.map(|l| percentile.of(&l.0))));
    }
    add("clat_max_ns", whole(latency.map(|l| l.0.max())));
}

fn sync(line: &mut Line, job: &JobResult) {
    let mut add = |name: &str, cell: Option<u64>| {
        line.push((name.to_owned(), cell.map_or_else(String::new, |cell| cell.to_string())));
    };
    let times = job.sync.lat.as_ref().map(|latency| &latency.0).filter(|times| times.count() > 0);
    add("sync_ios", Some(job.sync.total_ios));
    add("sync_p50_ns", times.map(|times| Percentile::P50.of(times)));
    add("sync_p99_ns", times.map(|times| Percentile::P99.of(times)));
    add("sync_max_ns", times.map(blkmq_core::Histogram::max));
    add("end_fsync_ns", job.end_fsync_ns);
}

fn counters(line: &mut Line, run: &Run) {
    let counters = &run.counters;
    let mut add = |name: &str, cell: u64| line.push((name.to_owned(), cell.to_string()));
    add("bios_submitted", counters.submitted);
    add("bios_completed", counters.completed);
    add("splits", counters.splits);
    for (name, n) in counters.merges.each() {
        add(&format!("{name}_merges"), n);
    }
    add("dispatches", counters.dispatches);
    add("requests_completed", counters.requests_completed);
    add("kicks_sent", counters.kicks.sent);
    add("kicks_coalesced", counters.kicks.coalesced);
    add("lock_taken", counters.locks.taken);
    add("lock_contended", counters.locks.contended);
    add("lock_waited_ns", counters.locks.waited_ns);
    add("lock_merges_skipped", counters.locks.merges_skipped);
    add("lock_parked", counters.locks.parked);
    add("lock_left", counters.locks.left);
    add("requeues", counters.requeues);
    add("longest_run_passes", counters.longest_run_passes);
    add("longest_run_ns", counters.longest_run_ns);
    line.push(("batch_mean_requests".into(), format!("{:.3}", counters.batch_mean)));
}

/// Adds the group of the job; empty cells if it had none.
fn cgroup(line: &mut Line, run: &Run, job: &JobResult) {
    let mut add = |name: &str, cell: String| line.push((name.to_owned(), cell));
    let groups = &run.groups;
    let at = job.cgroup.as_deref().and_then(|name| groups.find(name));
    add("cgroup", job.cgroup.clone().unwrap_or_default());
    let weight = at.and_then(|at| groups.all[at].weight);
    add("cgroup_weight", weight.map_or_else(String::new, |weight| weight.to_string()));
    add("cgroup_share", optional(at.map(|at| groups.share(at))));
    let mean = |name| optional(at.and_then(|at| groups.mean(at, name)));
    add("cgroup_wait_mean_ns", mean("io_wait_time"));
    add("cgroup_service_mean_ns", mean("io_service_time"));
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format!("{v:.3}"))
}

#[cfg(test)]
mod tests {
    use super::super::job::Verified;
    use super::super::sample;
    use super::*;

    /// A CSV parser that is independent of the writer.
    fn parse(text: &str) -> Vec<Vec<String>> {
        let (mut rows, mut row, mut cell, mut is_quoted) = (vec![], vec![], String::new(), false);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '"' if is_quoted && chars.next_if_eq(&'"').is_some() => cell.push('"'),
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
                '\n' if !is_quoted => {
                    row.push(std::mem::take(&mut cell));
                    rows.push(std::mem::take(&mut row));
                }
                other => cell.push(other),
            }
        }
        assert!(!is_quoted && cell.is_empty() && row.is_empty(), "ends inside a line");
        rows
    }

    fn cell<'a>(rows: &'a [Vec<String>], line: usize, name: &str) -> &'a str {
        let at = rows[0].iter().position(|n| n == name).expect("the header names the column");
        &rows[line][at]
    }

    #[test]
    fn a_line_for_each_job() {
        assert_eq!(render(&sample::single()), include_str!("testdata/single.csv"));
        let rows = parse(&render(&sample::comparison()));
        assert_eq!(rows.len(), 10);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
        assert_eq!(cell(&rows, 6, "scheduler"), "mq-deadline");
        assert_eq!(cell(&rows, 6, "threads"), "4");
        assert_eq!(cell(&rows, 6, "read_iops"), "4800000.000");
        assert_eq!(cell(&rows, 6, "run_iops_max"), "4896000.000");
        assert_eq!(cell(&rows, 6, "write_clat_p99_ns"), "");
    }

    #[test]
    fn what_was_not_verified_has_empty_cells() {
        let mut report = sample::comparison();
        let found = Verified { bytes: 4096, errors: 0, first: None };
        report.runs[1].jobs[0].verify = Some(found);
        let rows = parse(&render(&report));
        let cells = |line| ["verified_bytes", "verify_errors"].map(|name| cell(&rows, line, name));
        assert_eq!((cells(1), cells(2)), (["", ""], ["4096", "0"]));
    }

    #[test]
    fn percentiles_that_are_listed_have_columns() {
        let mut report = sample::single();
        report.runs[0].jobs[0].percentiles = job::percentiles(&[15.0, 25.0, 50.0, 99.999, 100.0]);
        let rows = parse(&render(&report));
        for name in ["read_clat_p25_ns", "read_clat_p99_999_ns", "read_clat_p100_ns"] {
            assert!(cell(&rows, 1, name).parse::<u64>().expect("a time") > 0, "{name}");
        }
    }

    #[test]
    fn flushes_have_columns_of_their_own() {
        let mut report = sample::comparison();
        let job = &mut report.runs[1].jobs[0];
        job.sync.total_ios = 2;
        let latency = job.sync.lat.get_or_insert_default();
        [10, 30].iter().for_each(|ns| latency.0.record(*ns));
        let rows = parse(&render(&report));
        let names = ["sync_ios", "sync_p50_ns", "sync_p99_ns", "sync_max_ns", "end_fsync_ns"];
        let cells = |line| names.map(|name| cell(&rows, line, name));
        assert_eq!((cells(1), cells(2)), (["0", "", "", "", ""], ["2", "10", "30", "30", ""]));
    }

    #[test]
    fn a_job_has_the_figures_of_its_group() {
        let rows = parse(&render(&sample::shared()));
        let names = ["cgroup", "cgroup_weight", "cgroup_share", "cgroup_wait_mean_ns"];
        let cells = |line| names.map(|name| cell(&rows, line, name));
        assert_eq!(cells(1), ["shop", "200", "0.600", "2000000.000"]);
        assert_eq!(cells(2), ["backup", "100", "0.200", "7000000.000"]);
        let rows = parse(&render(&sample::single()));
        assert_eq!(names.map(|name| cell(&rows, 1, name)), [""; 4]);
    }

    #[test]
    fn any_text_survives() {
        let mut report = sample::hostile();
        for (run, text) in report.runs.iter_mut().zip(["a=1,b=2", "two\nlines", "\"", "\r"]) {
            run.scheduler_options = text.into();
        }
        let rows = parse(&render(&report));
        assert_eq!(cell(&rows, 2, "job"), report.runs[1].jobs[0].name);
        for (line, run) in report.runs.iter().enumerate().take(4) {
            assert_eq!(cell(&rows, line + 1, "scheduler_options"), run.scheduler_options);
        }
        assert_eq!(cell(&rows, 9, "device"), report.runs[8].device.text);
    }
}
