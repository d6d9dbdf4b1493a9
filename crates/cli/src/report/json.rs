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
//! and each job's own in its `job options`. `fio version` begins with the version of the schema. With
//! `group_reporting`, sampled rates are sums over the threads, and `job_runtime` is the sum of their times.
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

use super::as_fio;
use super::job::{JobResult, ratio};
use super::judgement::warnings;
use super::model::{Counters, Disk, Machine, Partial, Report, Run};
use super::wording::date;
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
    partial: Option<Partial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(flatten)]
    machine: &'a Machine,
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
    #[serde(flatten)]
    counters: &'a Counters,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verify>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_fsync_ns: Option<u64>,
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
            time: date(report.time_ms),
            global_options: texts(&report.global_options),
            jobs,
            disk_util: report.disks.iter().collect(),
            blkmq: About::new(report),
        }
    }
}

impl<'a> About<'a> {
    fn new(report: &'a Report) -> Self {
        Self {
            command: &report.command,
            partial: report.partial,
            seed: report.seed,
            machine: &report.machine,
            notes: &report.notes,
            warnings: warnings(report).iter().map(ToString::to_string).collect(),
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
            counters: &run.counters,
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

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self(Vec::new())
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
mod tests {
    use super::super::job::{self, Latency, SyncResult, Verified};
    use super::super::model::{Disk, Report};
    use super::super::sample;
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::process::Command;

    /// fio's keys, one path per line, written by hand from the output of fio 3.33.
    const KEYS: &str = include_str!("testdata/fio-keys.txt");

    /// The paths of all keys, without descending into objects with data as keys or added by blkmq.
    fn paths(value: &Value) -> BTreeSet<String> {
        fn walk(value: &Value, path: &str, found: &mut BTreeSet<String>) {
            match value {
                Value::Array(items) => {
                    items.iter().for_each(|item| walk(item, &format!("{path}[]"), found));
                }
                Value::Object(map) => {
                    for (key, value) in map.iter().filter(|(key, _)| *key != "blkmq") {
                        let path = format!("{path}/{key}");
                        found.insert(path.clone());
                        if !["job options", "global options", "bins"].contains(&key.as_str()) {
                            walk(value, &path, found);
                        }
                    }
                }
                _ => {}
            }
        }
        let mut found = BTreeSet::new();
        walk(value, "", &mut found);
        found
    }

    fn parsed(report: &Report, detail: Detail) -> Value {
        serde_json::from_str(&render(report, detail)).expect("the report is JSON")
    }

    /// The described paths; `*` stands for read, write and trim, and a line `path: a b c` for several keys.
    fn described() -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for line in KEYS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (parent, keys) = line.split_once(": ").expect("a line is `path: key, key`");
            for key in keys.split(", ") {
                let path = format!("{}/{key}", parent.trim_end_matches('/'));
                for direction in ["read", "write", "trim"] {
                    all.insert(path.replace('*', direction));
                }
            }
        }
        all
    }

    #[test]
    fn the_keys_are_fios() {
        let ours = paths(&parsed(&sample::single(), Detail::Plain));
        let expected = described();
        assert!(expected.len() > 150, "the description was read");
        let missing: Vec<_> = expected.difference(&ours).collect();
        let extra: Vec<_> = ours.difference(&expected).collect();
        assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}, extra: {extra:?}");
    }

    #[test]
    fn s_fio_json() {
        let fio = |format: &str| {
            let options = ["--name=t", "--ioengine=null", "--rw=randread", "--bs=4k", "--size=4m"];
            Command::new("fio").args(options).arg(format!("--output-format={format}")).output()
        };
        for (format, detail) in [("json", Detail::Plain), ("json+", Detail::Bins)] {
            let Ok(output) = fio(format) else {
                println!("SKIP s_fio_json: fio is not installed");
                return;
            };
            let theirs: Value = serde_json::from_slice(&output.stdout).expect("fio prints JSON");
            let version = theirs["fio version"].as_str().expect("fio tells its version").to_owned();
            if !version.starts_with("fio-3.33") {
                println!("SKIP s_fio_json: the schema is that of fio-3.33, installed is {version}");
                return;
            }
            let mut report = sample::single();
            // fio attaches its options to the job, not to the whole run.
            report.global_options.clear();
            let ours = parsed(&report, detail);
            assert_eq!(paths(&ours), paths(&theirs), "{format}");
            assert_eq!(kinds(&ours["jobs"][0], ""), kinds(&theirs["jobs"][0], ""), "{format}");
        }
    }

    /// The kind of number or other value at each key, so that a float does not replace an integer.
    fn kinds(value: &Value, path: &str) -> Vec<(String, &'static str)> {
        let kind = match value {
            Value::Object(map) => {
                let entered = map
                    .iter()
                    .filter(|(key, _)| !["blkmq", "job options", "bins"].contains(&key.as_str()));
                return entered.flat_map(|(k, v)| kinds(v, &format!("{path}/{k}"))).collect();
            }
            Value::Number(n) if n.is_f64() => "float",
            Value::Number(_) => "integer",
            Value::String(_) => "text",
            _ => "other",
        };
        vec![(path.to_owned(), kind)]
    }

    #[test]
    fn figures_have_fios_units_and_agree() {
        let report = sample::comparison();
        let json = parsed(&report, Detail::Plain);
        let jobs = json["jobs"].as_array().expect("jobs are a list");
        assert_eq!(jobs.len(), 9);
        for (job, run) in jobs.iter().zip(&report.runs) {
            let read = &job["read"];
            let number = |key: &str| read[key].as_f64().expect("a number");
            assert_eq!(read["bw"].as_u64(), read["bw_bytes"].as_u64().map(|b| b / 1024));
            assert_eq!(read["io_kbytes"].as_u64(), read["io_bytes"].as_u64().map(|b| b / 1024));
            let seconds = number("runtime") / 1000.0;
            let rounding = number("iops") * 0.0005 + 1.0;
            assert!((number("iops") * seconds - number("total_ios")).abs() <= rounding);
            assert!((number("bw_bytes") * seconds - number("io_bytes")).abs() <= rounding * 4096.0);
            assert!((number("bw_mean") * 1024.0 - number("iops_mean") * 4096.0).abs() < 1.0);
            assert_eq!(number("bw_agg"), 100.0);
            let percentiles: Vec<u64> = job::default_percentiles()
                .iter()
                .map(|p| format!("{:.6}", p.percent()))
                .map(|key| read["clat_ns"]["percentile"][key].as_u64().expect("fio's key"))
                .collect();
            assert!(percentiles.is_sorted(), "{percentiles:?}");
            assert_eq!(job["write"]["clat_ns"].get("percentile"), None);
            assert_eq!(job["elapsed"], 11);
            assert_eq!(job["job_runtime"], 10_000 * u64::from(run.threads));
            assert_eq!(job["blkmq"]["scheduler"], run.scheduler.as_str());
        }
    }

    #[test]
    fn distributions_add_up_to_all() {
        let json = parsed(&sample::comparison(), Detail::Plain);
        for job in json["jobs"].as_array().expect("jobs are a list") {
            let sum = |key: &str| -> f64 {
                job[key].as_object().expect("an object").values().filter_map(Value::as_f64).sum()
            };
            let latencies = sum("latency_ns") + sum("latency_us") + sum("latency_ms");
            for total in [sum("iodepth_level"), sum("iodepth_submit"), latencies] {
                assert!((total - 100.0).abs() < 1e-3, "{total}");
            }
        }
    }

    #[test]
    fn the_books_can_be_checked_by_a_reader() {
        let json = parsed(&sample::comparison(), Detail::Plain);
        for job in json["jobs"].as_array().expect("jobs are a list") {
            let queue = &job["blkmq"];
            let n = |key: &str| queue[key].as_u64().expect("a count");
            let merges = queue["merges"].as_object().expect("an object");
            let merged: u64 = merges.values().filter_map(Value::as_u64).sum();
            assert_eq!(n("submitted"), n("completed"));
            assert_eq!(n("submitted") - merged, n("dispatches") - n("requeues"));
            assert_eq!(n("requests_completed"), n("dispatches") - n("requeues"));
        }
    }

    #[test]
    fn verification_is_beside_the_queue_where_there_was_any() {
        let mut report = sample::comparison();
        let found = Verified { bytes: 8192, errors: 2, first: Some("offset 0".into()) };
        report.runs[1].jobs[0].verify = Some(found);
        let json = parsed(&report, Detail::Plain);
        assert_eq!(json["jobs"][0]["blkmq"].get("verify"), None);
        let expected = serde_json::json!({ "verified": 8192, "errors": 2, "reads": 0 });
        assert_eq!(json["jobs"][1]["blkmq"]["verify"], expected);
    }

    #[test]
    fn groups_are_told_once_for_each_queue_that_has_some() {
        let mut report = sample::shared();
        report.runs.push(sample::single().runs.remove(0));
        report.runs[2].shared = sample::governed();
        report.runs.push(sample::single().runs.remove(0));
        let queues = &parsed(&report, Detail::Plain)["blkmq"]["queues"];
        assert_eq!(queues.as_array().map(Vec::len), Some(3), "the last run has nothing to say");
        let groups = queues[0]["groups"].as_array().expect("a list");
        let names =
            Vec::from_iter(groups.iter().map(|group| group["name"].as_str().expect("text")));
        assert_eq!(names, ["/", "web", "shop", "search", "backup", "idle"]);
        let expected = serde_json::json!({
            "name": "backup", "parent": "/", "weight": 100, "ios": 200, "bytes": 819_200, "share": 0.2, "due": 0.25,
            "stats": {
                "io_serviced_recursive": {
                    "Read": 200, "Write": 0, "Sync": 200, "Async": 0, "Discard": 0, "Total": 200
                },
                "io_wait_time_recursive": {
                    "Read": 1_400_000_000, "Write": 0, "Sync": 1_400_000_000, "Async": 0, "Discard": 0,
                    "Total": 1_400_000_000
                },
                "io_service_time_recursive": {
                    "Read": 20_000_000, "Write": 0, "Sync": 20_000_000, "Async": 0, "Discard": 0, "Total": 20_000_000
                },
                "dequeue": 7
            },
            "waited_for": [
                { "group": "shop", "time_ns": 4_000_000_000_u64 },
                { "group": "backup", "time_ns": 1_000_000_000 }
            ]
        });
        let shop = &groups[2]["waited_for"];
        assert_eq!(shop[0], serde_json::json!({ "group": null, "time_ns": 2_000_000_000 }));
        assert_eq!(groups[4], expected);
        assert_eq!((&groups[0]["parent"], &groups[0]["weight"]), (&Value::Null, &Value::Null));
        assert_eq!((&groups[5]["due"], groups[5].get("stats")), (&Value::Null, None));
        assert_eq!(queues[0]["group_stats"], "full");
        let expected = serde_json::json!({
            "run": 2, "tokens": [256, 128], "governor": { "read_target": 2_000_000, "read_p99": 3 }
        });
        assert_eq!(queues[2], expected);
        assert_eq!(parsed(&sample::comparison(), Detail::Plain)["blkmq"].get("queues"), None);
    }

    #[test]
    fn bins_count_every_completion() {
        let json = parsed(&sample::single(), Detail::Bins);
        let clat = &json["jobs"][0]["read"]["clat_ns"];
        let bins = clat["bins"].as_object().expect("json+ has bins");
        assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), clat["N"]);
        assert!(bins.keys().all(|key| key.parse::<u64>().is_ok()));
    }

    /// Flushes have the keys that fio has: a summary, percentiles, and in json+ bins.
    #[test]
    fn flushes_are_timed_like_other_io() {
        let mut report = sample::single();
        let job = &mut report.runs[0].jobs[0];
        let mut latency = Latency::default();
        [100, 200, 300].iter().for_each(|ns| latency.0.record(*ns));
        job.sync = SyncResult { total_ios: 3, lat: Some(latency) };
        job.end_fsync_ns = Some(77);
        let json = parsed(&report, Detail::Plain);
        let sync = &json["jobs"][0]["sync"];
        let found = ["min", "max", "N"].map(|key| sync["lat_ns"][key].as_u64());
        assert_eq!((sync["total_ios"].as_u64(), found), (Some(3), [Some(100), Some(300), Some(3)]));
        let percentiles = sync["lat_ns"]["percentile"].as_object().expect("an object");
        assert_eq!(percentiles.len(), job::default_percentiles().len());
        assert_eq!(percentiles["50.000000"], 201);
        assert_eq!(sync["lat_ns"].get("bins"), None);
        assert_eq!(json["jobs"][0]["blkmq"]["end_fsync_ns"], 77);
        let json = parsed(&report, Detail::Bins);
        let bins = json["jobs"][0]["sync"]["lat_ns"]["bins"].as_object().expect("json+ has bins");
        assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), 3);
    }

    /// A job has the name of its case appended, and each run its own reporting groups.
    #[test]
    fn jobs_of_several_runs_are_told_apart() {
        let mut report = sample::shared();
        for (run, case) in report.runs.iter_mut().zip(["bfq", "none"]) {
            run.case = case.into();
            run.jobs[1].group = 1;
        }
        let json = parsed(&report, Detail::Plain);
        let jobs = json["jobs"].as_array().expect("jobs are a list");
        let names = Vec::from_iter(jobs.iter().map(|job| (&job["jobname"], &job["groupid"])));
        let expected =
            [("randread.bfq", 0), ("copy.bfq", 1), ("randread.none", 2), ("copy.none", 3)];
        let expected = expected.map(|(name, group)| (Value::from(name), Value::from(group)));
        assert!(names.iter().copied().eq(expected.iter().map(|(n, g)| (n, g))), "{names:?}");
    }

    #[test]
    fn disks_have_fios_keys_where_they_are_known() {
        let mut report = sample::single();
        assert_eq!(parsed(&report, Detail::Plain).get("disk_util"), None);
        report.disks =
            vec![Disk { name: "vda".into(), read_ios: 7, util: 12.5, ..Disk::default() }];
        let json = parsed(&report, Detail::Plain);
        let keys = json["disk_util"][0].as_object().expect("a disk").keys();
        let keys = keys.map(String::as_str).collect::<BTreeSet<_>>();
        let expected =
            "name read_ios write_ios read_merges write_merges read_ticks write_ticks in_queue util";
        assert_eq!(keys, expected.split(' ').collect());
    }

    #[test]
    fn any_text_survives() {
        let report = sample::hostile();
        let json = parsed(&report, Detail::Plain);
        assert_eq!(json["jobs"][3]["jobname"], report.runs[3].jobs[0].name.as_str());
        assert_eq!(json["blkmq"]["command"], report.command.as_str());
        assert_eq!(json["global options"].as_object().expect("an object").len(), 1);
    }

    #[test]
    fn the_layout_is_fios() {
        let text = render(&sample::single(), Detail::Plain);
        for line in [
            "{\n  \"fio version\" : \"fio-3.33-blkmq-0.1.0\",\n  \"timestamp\" : 1795259797,\n",
            "\n  \"time\" : \"Sat Nov 21 11:16:37 2026\",\n  \"jobs\" : [\n    {\n      \"jobname\" : \"randread\",\n",
            "\n        \"iops\" : 8000000.000000,\n        \"runtime\" : 10000,\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
