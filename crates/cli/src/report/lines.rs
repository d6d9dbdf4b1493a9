//! The report as a line for each job of each run: CSV, and fio's terse output, version 3, 4 or 5. And the totals of
//! each group of jobs in fio's lines, since scripts look for `READ: bw=` in text.
//!
//! CSV has RFC 4180 quoting, lines end in a newline, and the units are in the names of the columns. Counters are those
//! of the queue, which all jobs of a run share; `run` identifies the lines of one run. A figure that was not measured
//! is an empty cell, never 0. `partial` is `run` for a run truncated by a signal, and `report` if other runs are
//! missing.
//!
//! Terse fields, with semicolons between them, follow fio's manual in its order; fields for disks come last, if any
//! disks are known. The figures are the same as in the JSON, in microseconds and KiB.

use super::job::{self, Direction, JobResult, Percentile, ratio};
use super::json;
use super::model::{Counters, Disk, Report, Run};
use super::wording::{bandwidth, bytes, decimal_bytes};
use blkmq_core::Histogram;
use blkmq_lab::workload::Latencies;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The column names and cells of a line.
#[derive(Default)]
struct Line(Vec<(String, String)>);

impl Line {
    fn add(&mut self, name: impl Into<String>, cell: &dyn ToString) {
        self.0.push((name.into(), cell.to_string()));
    }
}

/// The report as CSV; the header alone if there are no runs.
#[must_use]
pub fn csv(report: &Report) -> String {
    let listed = listed(report);
    let blank = cells(0, &Run::default(), &JobResult::default(), &listed);
    let names = blank.0.iter().map(|(name, _)| name.as_str());
    let mut out = csv_line(&Vec::from_iter(names.chain(["partial"])));
    for (index, run) in report.runs.iter().enumerate() {
        for job in &run.jobs {
            let partial = match report.partial {
                _ if run.is_partial => "run",
                Some(_) => "report",
                None => "",
            };
            let cells = cells(index, run, job, &listed);
            let cells = cells.0.iter().map(|(_, cell)| cell.as_str());
            out.push_str(&csv_line(&Vec::from_iter(cells.chain([partial]))));
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

/// The line of these cells, in quotes if they need them.
#[must_use]
pub fn csv_line<C: AsRef<str>>(cells: &[C]) -> String {
    let quoted = |cell: &C| match cell.as_ref() {
        cell if cell.contains(['"', ',', '\n', '\r']) => {
            format!("\"{}\"", cell.replace('"', "\"\""))
        }
        cell => cell.to_owned(),
    };
    Vec::from_iter(cells.iter().map(quoted)).join(",") + "\n"
}

/// The cell of a figure, empty if it was not measured.
#[must_use]
pub fn or_empty(figure: Option<impl ToString>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}

fn cells(index: usize, run: &Run, job: &JobResult, listed: &[Percentile]) -> Line {
    let mut line = Line::default();
    line.add("run", &index);
    line.add("scheduler", &run.scheduler);
    line.add("scheduler_options", &run.scheduler_options);
    line.add("device", &run.device.text);
    line.add("access", &run.access);
    line.add("scope", &run.scope);
    line.add("threads", &run.threads);
    line.add("job", &job.name);
    line.add("group", &job.group);
    line.add("error", &job.error);
    line.add("job_runtime_ns", &job.runtime_ns);
    for (name, direction) in job.directions() {
        csv_transfer(&mut line, name, direction, listed);
    }
    let times = job.sync.lat.as_ref().map(|latency| &latency.0).filter(|times| times.count() > 0);
    line.add("sync_ios", &job.sync.total_ios);
    line.add("sync_p50_ns", &or_empty(times.map(|times| Percentile::P50.of(times))));
    line.add("sync_p99_ns", &or_empty(times.map(|times| Percentile::P99.of(times))));
    line.add("sync_max_ns", &or_empty(times.map(Histogram::max)));
    line.add("end_fsync_ns", &or_empty(job.end_fsync_ns));
    let verify = job.verify.as_ref();
    line.add("verified_bytes", &or_empty(verify.map(|found| found.bytes)));
    line.add("verify_errors", &or_empty(verify.map(|found| found.errors)));
    line.add("usr_cpu_percent", &fixed(job.usr_cpu));
    line.add("sys_cpu_percent", &fixed(job.sys_cpu));
    line.add("run_iops", &fixed(run.iops()));
    line.add("run_iops_min", &or_empty(run.range().map(|(low, _)| fixed(low))));
    line.add("run_iops_max", &or_empty(run.range().map(|(_, high)| fixed(high))));
    line.add("run_repetitions", &run.repetitions.len());
    line.add("run_cpu_ns_per_io", &or_empty(run.cpu_ns_per_io().map(fixed)));
    counters(&mut line, &run.counters);
    cgroup(&mut line, run, job);
    line
}

fn csv_transfer(line: &mut Line, name: &str, direction: &Direction, listed: &[Percentile]) {
    let mut add = |field: &str, cell: String| line.add(format!("{name}_{field}"), &cell);
    add("ios", direction.total_ios.to_string());
    add("bytes", direction.io_bytes.to_string());
    add("iops", fixed(direction.iops()));
    add("bytes_per_s", fixed(direction.bytes_per_second()));
    let times = direction.clat.as_ref().map(|latency| &latency.0).filter(|it| it.count() > 0);
    add("clat_mean_ns", or_empty(times.map(|times| fixed(times.mean()))));
    let usual = [Percentile::P50, Percentile::P90, Percentile::P99, Percentile::P99_9];
    for percentile in usual.iter().chain(listed) {
        let text = percentile.text();
        let name = text.trim_end_matches('0').trim_end_matches('.').replace('.', "_");
        let value = times.map(|times| percentile.of(times));
        add(&format!("clat_p{name}_ns"), or_empty(value));
    }
    add("clat_max_ns", or_empty(times.map(Histogram::max)));
}

fn counters(line: &mut Line, counters: &Counters) {
    let Counters { merges, kicks, locks, .. } = counters;
    line.add("bios_submitted", &counters.submitted);
    line.add("bios_completed", &counters.completed);
    line.add("splits", &counters.splits);
    for (name, n) in merges.each() {
        line.add(format!("{name}_merges"), &n);
    }
    line.add("dispatches", &counters.dispatches);
    line.add("requests_completed", &counters.requests_completed);
    line.add("kicks_sent", &kicks.sent);
    line.add("kicks_coalesced", &kicks.coalesced);
    line.add("lock_taken", &locks.taken);
    line.add("lock_contended", &locks.contended);
    line.add("lock_waited_ns", &locks.waited_ns);
    line.add("lock_merges_skipped", &locks.merges_skipped);
    line.add("lock_parked", &locks.parked);
    line.add("lock_left", &locks.left);
    line.add("requeues", &counters.requeues);
    line.add("longest_run_passes", &counters.longest_run_passes);
    line.add("longest_run_ns", &counters.longest_run_ns);
    line.add("batch_mean_requests", &fixed(counters.batch_mean));
}

/// Adds the group of the job; empty cells if it had none.
fn cgroup(line: &mut Line, run: &Run, job: &JobResult) {
    let groups = &run.groups;
    let at = job.cgroup.as_deref().and_then(|name| groups.find(name));
    line.add("cgroup", &or_empty(job.cgroup.as_ref()));
    line.add("cgroup_weight", &or_empty(at.and_then(|at| groups.all[at].weight)));
    line.add("cgroup_share", &or_empty(at.map(|at| fixed(groups.share(at)))));
    let mean = |name| or_empty(at.and_then(|at| groups.mean(at, name)).map(fixed));
    line.add("cgroup_wait_mean_ns", &mean("io_wait_time"));
    line.add("cgroup_service_mean_ns", &mean("io_service_time"));
}

fn fixed(value: f64) -> String {
    format!("{value:.3}")
}

/// The fields of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TerseVersion {
    /// Reads and writes.
    #[default]
    V3 = 3,
    /// Trims follow writes.
    V4 = 4,
    /// The bandwidth of each direction is followed by its number of samples, and by the minimum, maximum, mean,
    /// deviation and number of samples of the rate.
    V5 = 5,
}

/// The number of percentile fields in a line.
const PLACES: usize = 20;

/// The report, a line for each job.
#[must_use]
pub fn terse(report: &Report, fields: TerseVersion) -> String {
    let document = json::value(report);
    let version = document["fio version"].as_str().unwrap_or_default();
    let jobs = document["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let results = report.runs.iter().flat_map(|run| &run.jobs);
    let disks = Vec::from_iter(report.disks.iter().map(disk)).concat();
    let line = |(job, result)| line(fields, version, job, result) + &disks + &additional(job);
    let lines = Vec::from_iter(jobs.iter().zip(results).map(line));
    format!("{}\n", lines.join("\n"))
}

fn line(version: TerseVersion, program: &str, job: &Value, result: &JobResult) -> String {
    let name = job["jobname"].as_str().unwrap_or_default().replace(';', ",");
    let mut fields = vec![(version as u8).to_string(), program.into(), name];
    fields.extend(["groupid", "error"].map(|key| text(&job[key])));
    let trim = (version != TerseVersion::V3).then_some("trim");
    // As in fio, a kind of transfer that is not reported separately has no fields.
    let kinds = ["read", "write"].into_iter().chain(trim).chain(["mixed"]);
    for direction in kinds.filter(|kind| !job[kind].is_null()) {
        terse_transfer(&mut fields, &job[direction], result);
        if version == TerseVersion::V5 {
            samples(&mut fields, &job[direction]);
        }
    }
    for share in ["usr_cpu", "sys_cpu"] {
        fields.push(format!("{:.6}%", number(&job[share])));
    }
    fields.extend(["ctx", "majf", "minf"].map(|key| text(&job[key])));
    let depths = ["1", "2", "4", "8", "16", "32", ">=64"];
    fields.extend(depths.map(|key| format!("{:.1}%", number(&job["iodepth_level"][key]))));
    // The first class has all that is faster.
    let nanos = job["latency_ns"].as_object().map_or(0.0, |all| all.values().map(number).sum());
    let classes = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000"];
    for (at, key) in classes.iter().enumerate() {
        let faster = if at == 0 { nanos } else { 0.0 };
        fields.push(format!("{:.2}%", number(&job["latency_us"][key]) + faster));
    }
    for key in classes.iter().chain(&["2000", ">=2000"]) {
        fields.push(format!("{:.2}%", number(&job["latency_ms"][key])));
    }
    fields.join(";")
}

/// The additional fields of some jobs: errors that they survive, and their description.
fn additional(job: &Value) -> String {
    let errors = ["total_err", "first_error"].map(|key| &job[key]);
    let errors = errors.into_iter().filter(|it| !it.is_null()).map(|it| format!(";{it}"));
    let description = job["desc"].as_str().map(|it| format!(";{}", it.replace(';', ",")));
    errors.chain(description).collect()
}

fn disk(of: &Disk) -> String {
    let ios = [of.read_ios, of.write_ios, of.read_merges, of.write_merges];
    let counts = ios.into_iter().chain([of.read_ticks, of.write_ticks, of.in_queue]);
    let counts = counts.map(|count| format!("{count};"));
    format!(";{};{}{:.2}%", of.name.replace(';', ","), counts.collect::<String>(), of.util)
}

fn terse_transfer(fields: &mut Vec<String>, of: &Value, job: &JobResult) {
    fields.extend(["io_kbytes", "bw"].map(|key| text(&of[key])));
    fields.push(format!("{:.0}", number(&of["iops"])));
    fields.push(text(&of["runtime"]));
    times(fields, &of["slat_ns"]);
    times(fields, &of["clat_ns"]);
    // As in fio, percentiles of the total time if those of completions are not wanted.
    let wanted = ["clat_ns", "lat_ns"].map(|key| &of[key]["percentile"]);
    let is_shown = |job: Latencies| job.clat || job.lat;
    let values = if job.percentiles_of.clat { wanted[0] } else { wanted[1] };
    let shown = job.percentiles.iter().take(PLACES).filter(|_| is_shown(job.percentiles_of));
    let shown = shown.map(|place| format!("{:.6}", place.percent()));
    let shown = shown.map(|key| format!("{key}%={:.0}", (number(&values[&key]) / 1e3).floor()));
    let end = fields.len() + PLACES;
    fields.extend(shown);
    fields.resize(end, "0%=0".into());
    times(fields, &of["lat_ns"]);
    fields.extend(["bw_min", "bw_max"].map(|key| text(&of[key])));
    fields.push(format!("{:.6}%", number(&of["bw_agg"])));
    fields.extend(["bw_mean", "bw_dev"].map(|key| format!("{:.6}", number(&of[key]))));
}

/// For the bandwidth only the number of samples, for the rate all fields.
fn samples(fields: &mut Vec<String>, of: &Value) {
    fields.extend(["bw_samples", "iops_min", "iops_max"].map(|key| text(&of[key])));
    fields.extend(["iops_mean", "iops_stddev"].map(|key| format!("{:.6}", number(&of[key]))));
    fields.push(text(&of["iops_samples"]));
}

/// Least and most in whole microseconds, mean and deviation with a fraction.
fn times(fields: &mut Vec<String>, of: &Value) {
    fields.extend(["min", "max"].map(|key| format!("{:.0}", (number(&of[key]) / 1e3).floor())));
    fields.extend(["mean", "stddev"].map(|key| format!("{:.6}", number(&of[key]) / 1e3)));
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn text(value: &Value) -> String {
    if value.is_null() { "0".into() } else { value.to_string() }
}

/// The lines for the jobs of one run, groups in the order of their numbers.
pub(super) fn run_status(jobs: &[JobResult]) -> Vec<String> {
    let groups = BTreeSet::from_iter(jobs.iter().map(|job| job.group));
    let of = |group: u32| {
        let jobs = Vec::from_iter(jobs.iter().filter(|job| job.group == group));
        let sums = ["READ", "WRITE", "TRIM", "MIXED"].into_iter().filter_map(move |name| {
            let parts = jobs.iter().flat_map(|job| job.reported());
            let parts = parts.filter(|(of, it)| of.eq_ignore_ascii_case(name) && it.total_ios > 0);
            let parts = Vec::from_iter(parts.map(|(_, direction)| direction));
            (!parts.is_empty()).then(|| format!("{name:>7}: {}", sum(&parts)))
        });
        [format!("Run status group {group} (all jobs):")].into_iter().chain(sums)
    };
    groups.into_iter().flat_map(of).collect()
}

/// The rate of all is that over the longest time, as in fio.
fn sum(parts: &[Cow<'_, Direction>]) -> String {
    let total = parts.iter().map(|part| part.io_bytes).sum::<u64>() as f64;
    let times = parts.iter().map(|part| part.runtime_ns);
    let (shortest, longest) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
    let rates = parts.iter().map(|part| part.bytes_per_second());
    let (slowest, fastest) =
        rates.fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    let binary = |rate: f64| bandwidth(rate).replace(' ', "");
    let decimal = |rate: f64| format!("{}/s", decimal_bytes(rate));
    let rate = ratio(total * 1e9, longest as f64);
    let millis = |ns: u64| (ns + 500_000) / 1_000_000;
    format!(
        "bw={} ({}), {}-{} ({}-{}), io={} ({}), run={}-{}msec",
        binary(rate),
        decimal(rate),
        binary(slowest),
        binary(fastest),
        decimal(slowest),
        decimal(fastest),
        bytes(total).replace(' ', ""),
        decimal_bytes(total),
        millis(shortest),
        millis(longest)
    )
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
        assert_eq!(csv(&sample::single()), include_str!("testdata/single.csv"));
        let rows = parse(&csv(&sample::comparison()));
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
        let rows = parse(&csv(&report));
        let cells = |line| ["verified_bytes", "verify_errors"].map(|name| cell(&rows, line, name));
        assert_eq!((cells(1), cells(2)), (["", ""], ["4096", "0"]));
    }

    #[test]
    fn percentiles_that_are_listed_have_columns() {
        let mut report = sample::single();
        report.runs[0].jobs[0].percentiles = job::percentiles(&[15.0, 25.0, 50.0, 99.999, 100.0]);
        let rows = parse(&csv(&report));
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
        let rows = parse(&csv(&report));
        let names = ["sync_ios", "sync_p50_ns", "sync_p99_ns", "sync_max_ns", "end_fsync_ns"];
        let cells = |line| names.map(|name| cell(&rows, line, name));
        assert_eq!((cells(1), cells(2)), (["0", "", "", "", ""], ["2", "10", "30", "30", ""]));
    }

    #[test]
    fn a_job_has_the_figures_of_its_group() {
        let rows = parse(&csv(&sample::shared()));
        let names = ["cgroup", "cgroup_weight", "cgroup_share", "cgroup_wait_mean_ns"];
        let cells = |line| names.map(|name| cell(&rows, line, name));
        assert_eq!(cells(1), ["shop", "200", "0.600", "2000000.000"]);
        assert_eq!(cells(2), ["backup", "100", "0.200", "7000000.000"]);
        let rows = parse(&csv(&sample::single()));
        assert_eq!(names.map(|name| cell(&rows, 1, name)), [""; 4]);
    }

    #[test]
    fn any_text_survives() {
        let mut report = sample::hostile();
        for (run, text) in report.runs.iter_mut().zip(["a=1,b=2", "two\nlines", "\"", "\r"]) {
            run.scheduler_options = text.into();
        }
        let rows = parse(&csv(&report));
        assert_eq!(cell(&rows, 2, "job"), report.runs[1].jobs[0].name);
        for (line, run) in report.runs.iter().enumerate().take(4) {
            assert_eq!(cell(&rows, line + 1, "scheduler_options"), run.scheduler_options);
        }
        assert_eq!(cell(&rows, 9, "device"), report.runs[8].device.text);
    }

    #[test]
    fn disks_stand_behind_everything_else() {
        let mut report = sample::single();
        let line = terse(&report, TerseVersion::V3);
        report.disks =
            vec![Disk { name: "vda".into(), read_ios: 7, util: 12.5, ..Disk::default() }];
        let with_disk = terse(&report, TerseVersion::V3);
        assert_eq!(with_disk, format!("{};vda;7;0;0;0;0;0;0;12.50%\n", line.trim_end()));
    }

    /// The names of the fields of version 3 in fio's manual, without disks: 5 of the job, 41 of each direction, 5 of
    /// the processor, 7 of depths, 22 of latencies.
    #[test]
    fn a_line_has_the_fields_of_the_manual_in_their_order() {
        let report = sample::single();
        let text = terse(&report, TerseVersion::V3);
        let line = text.strip_suffix('\n').expect("a line");
        let fields = Vec::from_iter(line.split(';'));
        assert_eq!(fields.len(), 5 + 2 * 41 + 5 + 7 + 22);
        let job = &report.runs[0].jobs[0];
        assert_eq!((fields[0], fields[2]), ("3", job.name.as_str()));
        assert_eq!(fields[5], (job.read.io_bytes / 1024).to_string());
        assert_eq!(fields[8], ((job.read.runtime_ns + 500_000) / 1_000_000).to_string());
        assert!(fields[17].starts_with("1.000000%=") && fields[33].starts_with("99.990000%="));
        assert_eq!((fields[34], fields[36]), ("0%=0", "0%=0"));
        assert!(fields[43].ends_with('%'), "the share of the bandwidth: {}", fields[43]);
        assert_eq!(fields[46], (job.write.io_bytes / 1024).to_string());
        assert!(fields[87].ends_with('%') && fields[89] == job.ctx.to_string());
        let classes = fields[99..].iter().map(|field| field.trim_end_matches('%').parse::<f64>());
        let sum: f64 = classes.map(|share| share.expect("a share")).sum();
        assert!((sum - 100.0).abs() < 0.5, "{sum}");
    }

    #[test]
    fn trims_and_samples_stand_where_fio_has_them() {
        let mut report = sample::single();
        let job = &mut report.runs[0].jobs[0];
        job.trim = job.read.clone();
        let lines = [TerseVersion::V3, TerseVersion::V4, TerseVersion::V5]
            .map(|version| terse(&report, version));
        let [third, fourth, fifth] =
            lines.each_ref().map(|line| Vec::from_iter(line.trim_end().split(';')));
        // fio 3.33 has 130, 171 and 189 fields, with the 9 of one disk.
        assert_eq!([third.len(), fourth.len(), fifth.len()], [121, 162, 180]);
        assert_eq!([third[0], fourth[0], fifth[0]], ["3", "4", "5"]);
        assert_eq!((&fourth[1..87], &fourth[128..]), (&third[1..87], &third[87..]));
        assert_eq!(fourth[87..128], third[5..46], "trims as reads");
        // 41 fields and 6 of samples for each direction.
        assert_eq!((&fifth[1..46], &fifth[52..93]), (&third[1..46], &third[46..87]));
        assert_eq!((&fifth[99..140], &fifth[146..]), (&third[5..46], &third[87..]));
        let rates = &report.runs[0].jobs[0].read.iops_samples;
        let mean = format!(
            "{:.6}",
            json::value(&report)["jobs"][0]["read"]["iops_mean"].as_f64().unwrap()
        );
        assert_eq!((fifth[49], fifth[51]), (mean.as_str(), rates.count.to_string().as_str()));
        assert!(rates.count > 1 && fifth[46..52] == fifth[140..146]);
    }

    fn job(group: u32, bytes: u64, ms: u64) -> JobResult {
        let read = Direction {
            io_bytes: bytes,
            total_ios: 1,
            runtime_ns: ms * 1_000_000,
            ..Direction::default()
        };
        JobResult { group, read, ..JobResult::default() }
    }

    /// As printed by fio 3.33, except for the number of digits.
    #[test]
    fn jobs_are_summed_by_group_over_the_longest_time() {
        let mut jobs = [job(1, 12_582_912, 417), job(0, 1 << 20, 1_000), job(0, 3 << 20, 2_000)];
        jobs[0].write = Direction {
            io_bytes: 4_231_168,
            total_ios: 1,
            runtime_ns: 417_000_000,
            ..Direction::default()
        };
        let expected = [
            "Run status group 0 (all jobs):",
            "   READ: bw=2.00MiB/s (2.10MB/s), 1.00MiB/s-1.50MiB/s (1.05MB/s-1.57MB/s), io=4.00MiB (4.19MB), run=1000-2000msec",
            "Run status group 1 (all jobs):",
            "   READ: bw=28.8MiB/s (30.2MB/s), 28.8MiB/s-28.8MiB/s (30.2MB/s-30.2MB/s), io=12.0MiB (12.6MB), run=417-417msec",
            "  WRITE: bw=9.68MiB/s (10.1MB/s), 9.68MiB/s-9.68MiB/s (10.1MB/s-10.1MB/s), io=4.04MiB (4.23MB), run=417-417msec",
        ];
        assert_eq!(run_status(&jobs), expected);
    }

    #[test]
    fn a_group_without_io_has_its_heading() {
        assert_eq!(run_status(&[JobResult::default()]), ["Run status group 0 (all jobs):"]);
        assert!(run_status(&[]).is_empty());
    }
}
