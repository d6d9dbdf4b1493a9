//! The results of an experiment: a [`Row`] for each point has the figures of its run, as a line of JSON; and the
//! formatting of every figure. Beside the figures of jobs there are those of a run as a whole.
//!
//! The folder of an experiment has the study, and a file of results for each shard with a line for each finished point.
//! A line is written immediately and completely, so that a killed program loses only the points in progress. The next
//! program truncates an incomplete line. The file is locked, so that only one program writes to it.

use super::study::{Point, Study, Value};
use crate::Failure;
use crate::report::job::{JobResult, Latency, ratio};
use crate::report::model::{Report, Run};
use crate::report::wording::{bytes, count, decimal_bytes, nanos, percent};
use blkmq_core::Histogram;
use blkmq_terminal::{UsageError, bounded};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The percentiles of a row, in hundredths of a percent.
const PERCENTILES: [u64; 13] =
    [100, 500, 1_000, 2_500, 5_000, 7_500, 9_000, 9_500, 9_900, 9_950, 9_990, 9_995, 9_999];

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
        let none = Run::default();
        let run = report.runs.first().unwrap_or(&none);
        let figures = OF_RUN.iter().filter_map(|it| Some((it.name.to_owned(), (it.of)(run)?)));
        let groups = &run.groups;
        let group = |at: usize| GroupRow {
            name: groups.all[at].name.clone(),
            ios: groups.ios(at),
            bytes: groups.bytes(at),
            share: groups.share(at),
        };
        Self {
            id,
            values: point.clone(),
            run: figures.collect(),
            jobs: run.jobs.iter().map(|job| job_row(run, job)).collect(),
            groups: (0..groups.all.len()).map(group).collect(),
            notes: report.notes.clone(),
        }
    }

    /// The line of a file, with its end.
    pub fn line(&self) -> String {
        let text = serde_json::to_string(self).expect("keys are texts");
        format!("{text}\n")
    }
}

fn job_row(run: &Run, job: &JobResult) -> JobRow {
    let mut kinds = BTreeMap::new();
    for (name, it) in job.directions() {
        let times = it.lat.as_ref().or(it.clat.as_ref());
        kinds.insert(name.to_owned(), kind_row(it.total_ios, it.io_bytes, it.iops(), times));
    }
    let flushes = job.sync.total_ios;
    let iops = ratio(flushes as f64, job.runtime_ns as f64 / 1e9);
    kinds.insert("sync".into(), kind_row(flushes, 0, iops, job.sync.lat.as_ref()));
    kinds.retain(|_, row| row.ios > 0);
    JobRow {
        name: job.name.clone(),
        runtime_ns: if job.runtime_ns > 0 { job.runtime_ns } else { run.elapsed_ns },
        iops: job.iops(),
        bytes_per_s: job.bytes_per_second(),
        kinds,
    }
}

fn kind_row(ios: u64, bytes: u64, iops: f64, times: Option<&Latency>) -> KindRow {
    let times = times.map(|times| &times.0).filter(|times| times.count() > 0);
    let percentiles = times.into_iter().flat_map(|times| {
        PERCENTILES.map(|part| ((part as f64 / 100.0).to_string(), times.quantile(part, 10_000)))
    });
    KindRow {
        ios,
        bytes,
        iops,
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
    /// The figure of a run; `None` if it was not measured.
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

const STUDY: &str = "study.json";
/// The longest file of a shard.
const MAX_BYTES: u64 = 8 << 30;
/// The longest study.
const MAX_STUDY: u64 = 64 << 20;

/// A subset of the points: those whose numbers modulo `of` equal `number - 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The number, from 1.
    pub number: usize,
    /// All shards.
    pub of: usize,
}

impl Shard {
    /// The whole.
    pub const ALL: Self = Self { number: 1, of: 1 };

    /// Parses `i/n`.
    ///
    /// # Errors
    /// If `i` is not one of 1 to `n`, or `n` is above 100,000.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let parts =
            text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) && of <= 100_000 => {
                Ok(Self { number, of })
            }
            _ => Err(UsageError::new(format!("{text}; accepted: I/N, as 1/3, 2/3 and 3/3"))),
        }
    }

    /// Returns whether the point `index` is in it.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }

    fn file(self) -> String {
        format!("shard-{}-of-{}.jsonl", self.number, self.of)
    }
}

/// The open file of a shard.
pub struct Store {
    path: PathBuf,
    file: Flock<File>,
}

impl Store {
    /// Opens the file of `shard` in `folder`, creating the folder if necessary, and reads the rows in it by id.
    ///
    /// # Errors
    /// If the folder has another study, the file is in use, or it contains anything but rows.
    pub fn open(
        folder: &Path,
        study: &Study,
        shard: Shard,
    ) -> Result<(Self, BTreeMap<String, Row>), Failure> {
        std::fs::create_dir_all(folder).map_err(|e| refuse(folder, &e))?;
        keep_study(folder, study)?;
        let path = folder.join(shard.file());
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.map_err(|e| refuse(&path, &e))?;
        let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let mut file = locked.map_err(|(_, e)| match e {
            nix::errno::Errno::EWOULDBLOCK => {
                let text =
                    "another experiment writes to it; accepted: one at a time for each shard";
                UsageError::new(text).at(path.display().to_string()).into()
            }
            e => refuse(&path, &e.into()),
        })?;
        let mut rows = BTreeMap::new();
        let whole = read_rows(&path, &mut rows)?;
        file.set_len(whole)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|e| refuse(&path, &e))?;
        Ok((Self { path, file }, rows))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, row: &Row) -> Result<(), Failure> {
        self.file.write_all(row.line().as_bytes()).map_err(|e| refuse(&self.path, &e))
    }

    /// Waits until all rows are on the disk.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|e| refuse(&self.path, &e))
    }
}

/// Writes the study of a new folder, and checks that of another.
fn keep_study(folder: &Path, study: &Study) -> Result<(), Failure> {
    let path = folder.join(STUDY);
    match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => write(folder, STUDY, &study.json()),
        Err(e) => Err(refuse(&path, &e)),
        Ok(_) if study_of(folder)?.json() == study.json() => Ok(()),
        Ok(_) => {
            let text = "it has the results of another study; accepted: another --out, or this study under another name";
            Err(UsageError::new(text).at(folder.display().to_string()).into())
        }
    }
}

/// The study of a folder.
///
/// # Errors
/// If it has none.
pub fn study_of(folder: &Path) -> Result<Study, Failure> {
    let path = folder.join(STUDY).display().to_string();
    let bytes = bounded::read(&path, "the study of a folder with results", MAX_STUDY)?;
    let text = String::from_utf8(bytes).map_err(|e| UsageError::new(e.to_string()).at(&path))?;
    Ok(Study::of_json(&text).map_err(|e| e.at(&path))?)
}

/// The rows of all shards in `folder`, by id.
///
/// # Errors
/// If a file contains anything but rows, or two rows of one point differ.
pub fn rows_of(folder: &Path) -> Result<BTreeMap<String, Row>, Failure> {
    let listed = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let listed = listed.map_err(|e| refuse(folder, &e))?;
    let names = listed.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_shard = |name: &String| name.starts_with("shard-") && name.ends_with(".jsonl");
    let mut rows = BTreeMap::new();
    for name in names.filter(is_shard).collect::<BTreeSet<_>>() {
        read_rows(&folder.join(name), &mut rows)?;
    }
    Ok(rows)
}

/// Adds the rows in the complete lines of a file. Returns the length of these.
fn read_rows(path: &Path, rows: &mut BTreeMap<String, Row>) -> Result<u64, Failure> {
    let name = path.display().to_string();
    let text = bounded::read(&name, "results", MAX_BYTES)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split(|byte| *byte == b'\n').enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let fault = |why: String| UsageError::new(format!("line {}: {why}", at + 1)).at(&name);
        let row: Row = serde_json::from_slice(line).map_err(|e| fault(e.to_string()))?;
        match rows.get(&row.id) {
            Some(known) if *known != row => {
                let text = "another result of a point that has one; accepted: one of both lines";
                return Err(fault(text.into()).into());
            }
            _ => rows.insert(row.id.clone(), row),
        };
    }
    Ok(whole as u64)
}

/// Writes a file, which is whole or is not there: it is renamed into place, so that no other shard reads a part.
///
/// # Errors
/// If it cannot be written.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let (path, fresh) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path));
    written.map_err(|e| refuse(&path, &e))
}

fn refuse(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Results(format!("{}: {e}", path.display()))
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
        let of = |name: &str, run: &Run| (OfRun::find(name).expect("a figure").of)(run);
        assert_eq!(of("merged", &run), Some(0.125));
        assert_eq!(of("kicks_per_io", &run), Some(4e-6));
        assert_eq!(of("request_bytes", &run), Some(4096.0 / 0.875));
        assert!(of("cpu_per_io", &run).is_some());
        for name in ["inversions", "waiting", "merged", "request_bytes", "kicks_per_io"] {
            assert_eq!(of(name, &Run::default()), None, "{name}");
        }
    }

    fn row(id: &str) -> Row {
        Row {
            id: id.into(),
            values: BTreeMap::new(),
            run: BTreeMap::new(),
            jobs: Vec::new(),
            groups: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn study(seeds: &str) -> Study {
        Study::parse(&format!("[grid]\nseed={seeds}")).expect("a study")
    }

    #[test]
    fn a_line_without_an_end_is_cut_off_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(Shard::ALL.file());
        let open = || Store::open(folder.path(), &study("[1]"), Shard::ALL);
        {
            let (mut store, rows) = open().expect("a new one");
            assert!(rows.is_empty());
            store.add(&row("a")).expect("room");
            store.add(&row("b")).expect("room");
        }
        let text = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &text[..text.len() - 3]).expect("it can be written");
        let (mut store, rows) = open().expect("the first row");
        assert_eq!(Vec::from_iter(rows.keys()), ["a"]);
        store.add(&row("c")).expect("room");
        drop(store);
        let rows = rows_of(folder.path()).expect("rows");
        assert_eq!(Vec::from_iter(rows.keys()), ["a", "c"]);
    }

    #[test]
    fn one_writer_one_study_and_nothing_but_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |seeds| Store::open(folder.path(), &study(seeds), Shard::ALL);
        let (store, _) = open("[1]").expect("a new one");
        let says =
            |result: Result<_, Failure>| result.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(says(open("[1]")).contains("another experiment writes to it"));
        drop(store);
        assert!(says(open("[1,2]")).contains("another study"));
        let path = folder.path().join("shard-2-of-3.jsonl");
        std::fs::write(&path, "{}\n").expect("it can be written");
        let error = rows_of(folder.path()).expect_err("no row").to_string();
        assert!(error.contains("line 1: missing field `id`"), "{error}");
        let other = Row { notes: vec!["other".into()], ..row("a") };
        std::fs::write(&path, row("a").line() + &row("a").line()).expect("it can be written");
        assert_eq!(rows_of(folder.path()).expect("one point").len(), 1);
        std::fs::write(&path, row("a").line() + &other.line()).expect("it can be written");
        let error = rows_of(folder.path()).expect_err("two results").to_string();
        assert!(error.contains("line 2: another result"), "{error}");
    }

    #[test]
    fn shards_have_each_point_once() {
        for of in 1..5 {
            let shards = Vec::from_iter((1..=of).map(|number| Shard { number, of }));
            for index in 0..20 {
                assert_eq!(shards.iter().filter(|shard| shard.has(index)).count(), 1);
            }
        }
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "1/100001", ""] {
            assert!(Shard::parse(text).is_err(), "{text}");
        }
        assert_eq!(Shard::parse("2/3").expect("a shard"), Shard { number: 2, of: 3 });
    }
}
