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
use super::job::{Direction, Forgiven, JobResult, ratio};
use super::judgement::warnings;
use super::model::{Machine, Partial, Report, Run};
use super::wording::date;
use figures::{Details, Show, Times, Transfer, latency_classes, millis};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::ser::{Formatter, PrettyFormatter};
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
    let mut text = to_string(&Document { report, detail });
    text.push('\n');
    text
}

/// The report as a JSON value.
#[must_use]
pub fn value(report: &Report) -> serde_json::Value {
    serde_json::to_value(Document { report, detail: Detail::Plain })
        .expect("keys are texts and numbers, and every figure is one")
}

/// Options as fio prints them: an option without a value has the empty text.
fn texts(options: &[(String, String)]) -> Map<&str, &str> {
    Map(options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
}

/// The entries of an object; the first error ends it.
struct Fields<M: SerializeMap>(Result<M, M::Error>);

impl<M: SerializeMap> Fields<M> {
    fn of<S: Serializer<SerializeMap = M, Error = M::Error>>(serializer: S) -> Self {
        Self(serializer.serialize_map(None))
    }

    fn put(&mut self, key: &str, value: impl Serialize) {
        if let Ok(map) = &mut self.0
            && let Err(e) = map.serialize_entry(key, &value)
        {
            self.0 = Err(e);
        }
    }

    fn put_if(&mut self, is_shown: bool, key: &str, value: impl Serialize) {
        if is_shown {
            self.put(key, value);
        }
    }

    fn end(self) -> Result<M::Ok, M::Error> {
        self.0?.end()
    }
}

struct Document<'a> {
    report: &'a Report,
    detail: Detail,
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

struct Job<'a> {
    report: &'a Report,
    /// The number of the run in the report.
    index: usize,
    run: &'a Run,
    job: &'a JobResult,
    /// Reporting groups of the runs before.
    groups: u32,
    detail: Detail,
}

/// An object added by blkmq: the queue of the job, and its counts.
#[derive(serde::Serialize)]
struct Queue<'a> {
    run: usize,
    #[serde(flatten)]
    of: &'a Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Map<&'static str, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_fsync_ns: Option<u64>,
}

#[derive(serde::Serialize)]
struct Sync<'a> {
    total_ios: u64,
    lat_ns: Times<'a>,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { report, detail } = *self;
        let mut groups = 0;
        let mut jobs = Vec::new();
        for (index, run) in report.runs.iter().enumerate() {
            jobs.extend(run.jobs.iter().map(|job| Job { report, index, run, job, groups, detail }));
            groups += run.jobs.iter().map(|job| job.group + 1).max().unwrap_or(0);
        }
        let global = &report.global_options;
        let mut fields = Fields::of(serializer);
        fields.put("fio version", as_fio(&report.version));
        fields.put("timestamp", report.time_ms / 1000);
        fields.put("timestamp_ms", report.time_ms);
        fields.put("time", date(report.time_ms));
        fields.put_if(!global.is_empty(), "global options", texts(global));
        fields.put("jobs", jobs);
        fields.put_if(!report.disks.is_empty(), "disk_util", &report.disks);
        fields.put(
            "blkmq",
            About {
                command: &report.command,
                partial: report.partial,
                seed: report.seed,
                machine: &report.machine,
                notes: &report.notes,
                warnings: warnings(report).into_iter().map(|warning| warning.text).collect(),
                queues: Details::all(report),
            },
        );
        fields.end()
    }
}

impl<'a> Job<'a> {
    fn show(&self) -> Show<'a> {
        (&self.job.percentiles, self.detail)
    }

    fn transfer(&self, name: &str, direction: &'a Direction) -> Transfer<'a> {
        let group = self.run.jobs.iter().filter(|job| job.group == self.job.group);
        let same = group.flat_map(JobResult::reported).filter(|(of, _)| *of == name);
        let total: f64 = same.map(|(_, direction)| direction.bytes_per_second()).sum();
        let bw_agg = (100.0 * ratio(direction.bw_samples.mean, total)).min(100.0);
        Transfer { direction, bw_agg, show: self.show(), of: self.job.percentiles_of }
    }

    fn queue(&self) -> Queue<'a> {
        let verify = self.job.verify.as_ref().map(|found| {
            let reads = self.job.checks.ios;
            Map(vec![("verified", found.bytes), ("errors", found.errors), ("reads", reads)])
        });
        Queue { run: self.index, of: self.run, verify, end_fsync_ns: self.job.end_fsync_ns }
    }
}

impl Serialize for Job<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { run, job, .. } = self;
        let mut fields = Fields::of(serializer);
        fields.put(
            "jobname",
            match run.case.as_str() {
                "" => job.name.clone(),
                case => format!("{}.{case}", job.name),
            },
        );
        fields.put("groupid", self.groups + job.group);
        fields.put("error", job.error);
        fields.put("eta", 0);
        fields.put("elapsed", (run.elapsed_ns + run.ramp_ns).div_ceil(1_000_000_000));
        fields.put("job options", texts(&job.options));
        let reported = job.reported();
        let (mixed, each): (Vec<_>, Vec<_>) = reported.iter().partition(|it| it.0 == "mixed");
        each.iter().for_each(|(name, of)| fields.put(name, self.transfer(name, of)));
        let lat_ns = Times(job.sync.lat.as_ref(), self.show());
        let sync = Sync { total_ios: job.sync.total_ios, lat_ns };
        fields.put_if(!each.is_empty(), "sync", sync);
        mixed.iter().for_each(|(name, of)| fields.put(name, self.transfer(name, of)));
        fields.put("job_runtime", millis(job.total_runtime_ns + job.checks.total_ns));
        fields.put("usr_cpu", job.usr_cpu);
        fields.put("sys_cpu", job.sys_cpu);
        fields.put("ctx", job.ctx);
        fields.put("majf", job.majf);
        fields.put("minf", job.minf);
        fields.put("iodepth_level", Map(job.iodepth_level.shares().to_vec()));
        fields.put("iodepth_submit", Map(job.iodepth_submit.shares().to_vec()));
        fields.put("iodepth_complete", Map(job.iodepth_complete.shares().to_vec()));
        let units = ["latency_ns", "latency_us", "latency_ms"];
        units.iter().zip(latency_classes(job)).for_each(|(unit, all)| fields.put(unit, all));
        if let Some(Forgiven { count, first }) = job.forgiven {
            fields.put("total_err", count);
            fields.put("first_error", first);
        }
        let target = job.latency_target;
        fields.put("latency_depth", job.iodepth);
        fields.put("latency_target", target.map_or(0, |latency| latency.target.0));
        fields.put("latency_percentile", target.map_or(100.0, |latency| latency.percentile));
        fields.put("latency_window", target.map_or(0, |latency| latency.window.0 / 1_000));
        let mut options = job.options.iter().chain(&self.report.global_options);
        if let Some((_, text)) = options.find(|(key, _)| key == "description") {
            fields.put("desc", text);
        }
        fields.put("blkmq", self.queue());
        fields.end()
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
