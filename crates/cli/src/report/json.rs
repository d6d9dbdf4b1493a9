//! The report as JSON in the schema of `fio --output-format=json` (fio 3.33), so that programs that read fio's output
//! can read it.
//!
//! Units are fio's: `bw` in KiB/s, `bw_bytes` in bytes/s, `runtime` and `job_runtime` in milliseconds, `elapsed` in
//! whole seconds with the ramp, depths and latency classes in percent. Keys, nesting and order are fio's, too.
//! Additions to the schema are in objects named `blkmq`: one at the top (command, machine, notes, warnings) and one in
//! each job (the queue and its counts; all jobs of a run share a queue, so they repeat the same counts, and `run`
//! identifies them). When runs are compared, `jobs` contains the jobs of every run, run by run: each run has its own
//! groups, and `jobname` is the name of the job, a dot, and the name of the case, as in `fill.mq-deadline`. Files of
//! traces and logs have the same suffix after their prefix, and with several repetitions `.rep` and the number of the
//! repetition from 0; `repetition` is the one from which the figures are taken. `job options` has only the name of the
//! job.
//!
//! Options are listed as written: a job file's globals, and those before the first `--name`, in `global options`,
//! and each job's own in its `job options`. `fio version` begins with the version of the schema. With `group_reporting`,
//! sampled rates are sums over the threads, and `job_runtime` is the sum of their times.
//!
//! As in fio, reads that check contents count as reads, and the flush of `end_fsync` does not count as `sync`: it is
//! `end_fsync_ns`. A flush for `fdatasync` is counted in `sync`, where fio 3.33 only has its times. `clat_ns` is the
//! time from the push, so that it includes the wait in the scheduler.
//!
//! If runs are missing, the object at the top has `partial`: the `runs` that have ended, the number `planned`, and the
//! `signal` that ended the command (null in a status). A run truncated by the signal, or unfinished
//! (`status_interval`), has `partial` true. A document for each status precedes the final one.
//!
//! The object at the top has a list `queues` if there are any figures of queues: for each such `run` its `tokens`, by
//! pool; its `governor`, the exposed state that the scheduler's instances share; with `iostats` its `times`, by
//! operation: completed `requests`, `merged` I/Os, and the sums in nanoseconds of the times that the requests waited
//! for a slot, in the policy and for a tag, and were at the device; and its `groups`, the root first, with `parent`,
//! `weight`, the `ios` and `bytes` of jobs directly in it, the `share` of all bytes of the group and its descendants,
//! and the share that is `due` by weight (null if it does not follow from weights). With `iostats`, `waited_for` has
//! the nanoseconds for which I/Os directly in it waited while requests of a `group` were at the device; `group` is null
//! while the device was idle. `stats` has the scheduler's counts over the whole life of the queue, by the names of
//! cgroup v1: by direction, or a number; times in nanoseconds. `group_stats` is the level of counting. A figure that
//! was not counted has no key.
//!
//! Three figures are computed differently from fio: `latency_ns`, `latency_us` and `latency_ms` are derived from the
//! histogram of completion latencies, with buckets 1/64 wide; a percentile is the upper end of its bucket instead of
//! the middle; `time` is in UTC.
//!
//! Figures of fio's schema that blkmq does not measure have the values that fio prints when they do not apply: `eta` 0,
//! and without a latency target `latency_target` 0, `latency_window` 0 and `latency_percentile` 100. As in fio, there
//! is no `disk_util` if no disk is known or `disk_util=0`, and no `percentile` if no I/O was timed.

mod figures;

use super::job::{JobResult, ratio};
use super::model::{Disk, Report, Run};
use super::{as_fio, number, warnings};
use blkmq_lab::workload::Unified;
use figures::{Details, Show, Times, Transfer, latency_classes, millis};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::ser::{Formatter, PrettyFormatter};
use std::borrow::Cow;
use std::io::{self, Write};

/// The level of detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// fio's `json`.
    Plain,
    /// fio's `json+`: every bucket of the completion latencies as well, as `bins`.
    Bins,
}

/// The report as JSON that ends in a newline.
#[must_use]
pub fn render(report: &Report, detail: Detail) -> String {
    let mut text = to_string(&Document::new(report, detail));
    text.push('\n');
    text
}

/// The report as a JSON value.
#[must_use]
pub fn value(report: &Report) -> serde_json::Value {
    serde_json::to_value(Document::new(report, Detail::Plain))
        .expect("keys are texts and numbers, and every figure is one")
}

/// Options as fio prints them: an option without a value has the empty text.
fn texts(options: &[(String, String)]) -> Map<&str, &str> {
    Map(options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
}

#[derive(serde::Serialize)]
struct Document<'a> {
    #[serde(rename = "fio version")]
    version: String,
    timestamp: u64,
    timestamp_ms: u64,
    time: String,
    #[serde(rename = "global options", skip_serializing_if = "Map::is_empty")]
    global_options: Map<&'a str, &'a str>,
    jobs: Vec<Job<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disk_util: Vec<&'a Disk>,
    blkmq: About<'a>,
}

/// An object added by blkmq: the facts needed to judge and to repeat the report.
#[derive(serde::Serialize)]
struct About<'a> {
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<Missing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    cpu_model: &'a str,
    cores: u32,
    memory_bytes: u64,
    os: &'a str,
    kernel: &'a str,
    load_average: Option<f64>,
    hypervisor: Option<&'a str>,
    governor: Option<&'a str>,
    notes: &'a [String],
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<Details<'a>>,
}

#[derive(serde::Serialize)]
struct Job<'a> {
    jobname: Cow<'a, str>,
    groupid: u32,
    error: i32,
    eta: u64,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Map<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<Transfer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write: Option<Transfer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trim: Option<Transfer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sync: Option<Sync>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mixed: Option<Transfer>,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Map<&'static str, f64>,
    iodepth_submit: Map<&'static str, f64>,
    iodepth_complete: Map<&'static str, f64>,
    latency_ns: Map<&'static str, f64>,
    latency_us: Map<&'static str, f64>,
    latency_ms: Map<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_err: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<u16>,
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    desc: Option<&'a str>,
    blkmq: Queue<'a>,
}

/// An object added by blkmq: the queue of the job, and its counts.
#[derive(serde::Serialize)]
struct Queue<'a> {
    run: usize,
    repetition: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    scheduler: &'a str,
    scheduler_options: &'a str,
    device: &'a str,
    access: &'a str,
    scope: &'a str,
    threads: u32,
    elapsed_ns: u64,
    ramp_ns: u64,
    cpu_ns: Option<u64>,
    repetitions_iops: &'a [f64],
    submitted: u64,
    completed: u64,
    splits: u64,
    merges: Map<&'static str, u64>,
    cancelled: u64,
    flush_surplus: i64,
    dispatches: u64,
    requests_completed: u64,
    batch_mean: f64,
    kicks: Map<&'static str, u64>,
    locks: Map<&'static str, u64>,
    requeues: u64,
    timeouts: u64,
    retries: u64,
    longest_run_passes: u64,
    longest_run_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verify>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_fsync_ns: Option<u64>,
}

/// An object added by blkmq: the numbers of finished and planned runs.
#[derive(serde::Serialize)]
struct Missing {
    runs: usize,
    planned: usize,
    signal: Option<i32>,
}

/// An object added by blkmq: the job's verification.
#[derive(serde::Serialize)]
struct Verify {
    verified: u64,
    errors: u64,
    reads: u64,
}

#[derive(serde::Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Times,
}

/// The position of a run in the report.
#[derive(Clone, Copy)]
struct Place<'a> {
    index: usize,
    /// Reporting groups of the runs before.
    groups: u32,
    /// Options of all jobs.
    globals: &'a [(String, String)],
}

impl<'a> Document<'a> {
    fn new(report: &'a Report, detail: Detail) -> Self {
        let mut groups = 0;
        let mut jobs = Vec::new();
        for (index, run) in report.runs.iter().enumerate() {
            let place = Place { index, groups, globals: &report.global_options };
            jobs.extend(run.jobs.iter().map(|job| Job::new(place, run, job, detail)));
            groups += run.jobs.iter().map(|job| job.group + 1).max().unwrap_or(0);
        }
        Self {
            version: as_fio(&report.version),
            timestamp: report.time_ms / 1000,
            timestamp_ms: report.time_ms,
            time: number::date(report.time_ms),
            global_options: texts(&report.global_options),
            jobs,
            disk_util: report.disks.iter().collect(),
            blkmq: About::new(report),
        }
    }
}

impl<'a> About<'a> {
    fn new(report: &'a Report) -> Self {
        let machine = &report.machine;
        Self {
            command: &report.command,
            partial: report.partial.map(|it| Missing {
                runs: it.done,
                planned: it.planned,
                signal: it.signal,
            }),
            seed: report.seed,
            cpu_model: &machine.cpu_model,
            cores: machine.cores,
            memory_bytes: machine.memory_bytes,
            os: &machine.os,
            kernel: &machine.kernel,
            load_average: machine.load_average,
            hypervisor: machine.hypervisor.as_deref(),
            governor: machine.governor.as_deref(),
            notes: &report.notes,
            warnings: warnings::warnings(report).iter().map(ToString::to_string).collect(),
            queues: Details::all(report),
        }
    }
}

impl<'a> Job<'a> {
    fn new(place: Place<'a>, run: &'a Run, job: &'a JobResult, detail: Detail) -> Self {
        let [latency_ns, latency_us, latency_ms] = latency_classes(job).map(Map);
        let shown = Show::all(detail, job);
        let transfer = |name: &str| {
            let of = |job: &'a JobResult| job.reported().into_iter().find(|(it, _)| *it == name);
            let (_, direction) = of(job)?;
            let group = run.jobs.iter().filter(|j| j.group == job.group).filter_map(of);
            let total: f64 = group.map(|(_, direction)| direction.bytes_per_second()).sum();
            let share = (100.0 * ratio(direction.bw_samples.mean, total)).min(100.0);
            Some(Transfer::new(&direction, share, shown, job.percentiles_of))
        };
        // As in fio, flushes are omitted if all transfers are combined.
        let sync = (job.unified != Unified::Mixed).then(|| Sync {
            total_ios: job.sync.total_ios,
            lat_ns: Times::new(job.sync.lat.as_ref(), shown),
        });
        Self {
            jobname: match run.case.as_str() {
                "" => job.name.as_str().into(),
                case => format!("{}.{case}", job.name).into(),
            },
            groupid: place.groups + job.group,
            error: job.error,
            eta: 0,
            elapsed: (run.elapsed_ns + run.ramp_ns).div_ceil(1_000_000_000),
            options: texts(&job.options),
            read: transfer("read"),
            write: transfer("write"),
            trim: transfer("trim"),
            sync,
            mixed: transfer("mixed"),
            job_runtime: millis(job.total_runtime_ns + job.checks.total_ns),
            usr_cpu: job.usr_cpu,
            sys_cpu: job.sys_cpu,
            ctx: job.ctx,
            majf: job.majf,
            minf: job.minf,
            iodepth_level: Map(job.iodepth_level.shares().to_vec()),
            iodepth_submit: Map(job.iodepth_submit.shares().to_vec()),
            iodepth_complete: Map(job.iodepth_complete.shares().to_vec()),
            latency_ns,
            latency_us,
            latency_ms,
            total_err: job.forgiven.map(|forgiven| forgiven.count),
            first_error: job.forgiven.map(|forgiven| forgiven.first),
            latency_depth: job.iodepth,
            latency_target: job.latency_target.map_or(0, |latency| latency.target.0),
            latency_percentile: job.latency_target.map_or(100.0, |latency| latency.percentile),
            // In microseconds, as in fio.
            latency_window: job.latency_target.map_or(0, |latency| latency.window.0 / 1_000),
            desc: [job.options.as_slice(), place.globals]
                .into_iter()
                .find_map(|options| options.iter().find(|(key, _)| key == "description"))
                .map(|(_, text)| text.as_str()),
            blkmq: Queue::new(place.index, run, job),
        }
    }
}

impl<'a> Queue<'a> {
    fn new(index: usize, run: &'a Run, job: &JobResult) -> Self {
        let counters = &run.counters;
        Self {
            run: index,
            repetition: run.repetition,
            partial: run.is_partial,
            scheduler: &run.scheduler,
            scheduler_options: &run.scheduler_options,
            device: &run.device.text,
            access: &run.access,
            scope: &run.scope,
            threads: run.threads,
            elapsed_ns: run.elapsed_ns,
            ramp_ns: run.ramp_ns,
            cpu_ns: run.cpu_ns,
            repetitions_iops: &run.repetitions,
            submitted: counters.submitted,
            completed: counters.completed,
            splits: counters.splits,
            merges: Map(counters.merges.each().to_vec()),
            cancelled: counters.cancelled,
            flush_surplus: counters.flush_surplus,
            dispatches: counters.dispatches,
            requests_completed: counters.requests_completed,
            batch_mean: counters.batch_mean,
            kicks: Map(vec![
                ("sent", counters.kicks.sent),
                ("coalesced", counters.kicks.coalesced),
            ]),
            locks: Map(vec![
                ("taken", counters.locks.taken),
                ("contended", counters.locks.contended),
                ("waited_ns", counters.locks.waited_ns),
                ("merges_skipped", counters.locks.merges_skipped),
                ("parked", counters.locks.parked),
                ("left", counters.locks.left),
            ]),
            requeues: counters.requeues,
            timeouts: counters.timeouts,
            retries: counters.retries,
            longest_run_passes: counters.longest_run_passes,
            longest_run_ns: counters.longest_run_ns,
            verify: job.verify.as_ref().map(|found| Verify {
                verified: found.bytes,
                errors: found.errors,
                reads: job.checks.ios,
            }),
            end_fsync_ns: job.end_fsync_ns,
        }
    }
}

/// A JSON object; the entries keep their order.
struct Map<K, V>(Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<K, V> Map<K, V> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

struct FioStyle(PrettyFormatter<'static>);

/// Serialises a document of this crate. A number that is not finite becomes `null`.
fn to_string(document: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let style = FioStyle(PrettyFormatter::with_indent(b"  "));
    document
        .serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, style))
        .expect("keys are strings and a vector takes every byte");
    String::from_utf8(bytes).expect("serde_json writes UTF-8")
}

impl Formatter for FioStyle {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        write!(writer, "{value:.6}")
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b" : ")
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests;
