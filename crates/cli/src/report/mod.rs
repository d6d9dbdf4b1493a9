//! The results of `blkmq bench`, and every way to show them.
//!
//! The runner fills a [`model::Report`]; [`render`] turns it into text, fio's JSON, CSV or one HTML page. All formats
//! read the same plain data, so they cannot disagree. [`judgement`] says when a report is unreliable, and interprets
//! its figures.
//!
//! Usage: [`model::Machine::detect`] and [`open`] before the first run, [`Output::write`] after each. Files for a
//! report are opened before the first run, so that an hour of measuring does not end in "no such directory". An
//! existing file keeps its contents until the report overwrites it; a file created for a report that is never written
//! is removed. If writing fails, no partial report is left: the file is removed if it was created here, and truncated
//! otherwise.

pub mod figures;
pub mod html;
pub mod job;
mod json;
pub mod judgement;
pub mod lines;
pub mod model;
pub mod svg;
pub mod table;
pub mod wording;

pub use lines::TerseVersion;

use blkmq_terminal::UsageError;
use blkmq_terminal::output::{quietly, width};
use model::Report;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The form of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Text for a terminal; fio's name for it is `normal`.
    #[default]
    Normal,
    /// fio's JSON.
    Json,
    /// fio's JSON with every bucket of the latencies, `json+`.
    JsonPlus,
    /// A line for each job.
    Csv,
    /// One page with plots.
    Html,
    /// fio's terse lines.
    Terse(TerseVersion),
}

impl Format {
    /// Every format with its name on the command line.
    pub const ALL: [(&'static str, Self); 6] = [
        ("normal", Self::Normal),
        ("json", Self::Json),
        ("json+", Self::JsonPlus),
        ("csv", Self::Csv),
        ("html", Self::Html),
        ("terse", Self::Terse(TerseVersion::V3)),
    ];

    /// The file name extensions that imply a format.
    pub const ENDINGS: &str = ".html, .htm, .json, .csv, .txt";

    /// The format implied by a file name's extension, or `None`.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("json") => Some(Self::Json),
            Some("csv") => Some(Self::Csv),
            Some("html" | "htm") => Some(Self::Html),
            Some("txt") => Some(Self::Normal),
            _ => None,
        }
    }
}

impl FromStr for Format {
    type Err = UsageError;

    fn from_str(name: &str) -> Result<Self, UsageError> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| format).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            UsageError::new(format!("no output format '{name}'; accepted: {names}"))
        })
    }
}

/// The version for programs that read fio's output: fio's, whose schema is used, and ours.
#[must_use]
pub fn as_fio(version: &str) -> String {
    format!("fio-3.33-blkmq-{version}")
}

/// Formats the report, ending in a newline; text has the terminal's width.
#[must_use]
pub fn render(report: &Report, format: Format) -> String {
    match format {
        Format::Normal => table::render(report, width()),
        Format::Json => json::render(report, json::Detail::Plain),
        Format::JsonPlus => json::render(report, json::Detail::Bins),
        Format::Csv => lines::csv(report),
        Format::Html => html::render(report),
        Format::Terse(version) => lines::terse(report, version),
    }
}

/// A place for a report, ready to be written to.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    format: Format,
    file: File,
    /// Whether this process created the file.
    is_created: bool,
    /// Whether a report has been written to the file.
    is_written: bool,
    /// The length in bytes of reports that are kept before the next one.
    kept: u64,
}

/// A file that could not be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report to '{}': {cause}{}", .path.display(), .left)]
pub struct OutputError {
    path: PathBuf,
    #[source]
    cause: io::Error,
    /// The fate of the file; empty if it is unchanged, or cannot contain a partial report.
    left: &'static str,
}

/// Opens `path` for a report in the format implied by its name (`.json`, `.csv`, `.html`, otherwise text). Writes
/// nothing, and does not change an existing file.
///
/// # Errors
/// If the file cannot be opened for writing.
pub fn open(path: &Path) -> Result<Output, OutputError> {
    open_as(path, Format::of_path(path).unwrap_or(Format::Normal))
}

/// Opens `path` for a report in the given format.
///
/// # Errors
/// If the file cannot be opened for writing.
pub fn open_as(path: &Path, format: Format) -> Result<Output, OutputError> {
    let failed = |cause| OutputError { path: path.to_owned(), cause, left: "" };
    let mut options = OpenOptions::new();
    options.write(true);
    let (file, is_created) = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            (options.open(path).map_err(failed)?, false)
        }
        created => (created.map_err(failed)?, true),
    };
    Ok(Output { path: path.to_owned(), format, file, is_created, is_written: false, kept: 0 })
}

impl Output {
    /// Replaces the contents of the file by the report, except for reports that were [added](Self::add). May be called
    /// after each run, so that finished runs are saved.
    ///
    /// # Errors
    /// If the file cannot be written. It is then removed or truncated, and the output is unusable.
    pub fn write(&mut self, report: &Report) -> Result<(), OutputError> {
        let text = render(report, self.format);
        self.write_text(&text)
    }

    /// Writes a report that is kept: later ones follow it.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn add(&mut self, report: &Report) -> Result<(), OutputError> {
        let mut text = render(report, self.format);
        if self.format == Format::Normal {
            text.push('\n');
        }
        self.write_text(&text)?;
        self.kept += text.len() as u64;
        Ok(())
    }

    /// Like [`write`](Self::write), for a rendered report.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_text(&mut self, text: &str) -> Result<(), OutputError> {
        self.is_written = true;
        quietly(self.replace(text.as_bytes())).map_err(|cause| {
            let left = self.clear();
            OutputError { path: self.path.clone(), cause, left }
        })
    }

    /// Removes or empties the file after a failure.
    fn clear(&self) -> &'static str {
        if !self.file.metadata().is_ok_and(|it| it.is_file()) {
            return "";
        }
        // Truncated first: the name may be gone, or belong to another file.
        let emptied = self.file.set_len(0).is_ok();
        if self.is_created && fs::remove_file(&self.path).is_ok() {
            "; the file is removed"
        } else if emptied {
            "; the file is empty now"
        } else {
            "; the file may hold a part of it"
        }
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        // A pipe or a terminal can be neither rewound nor truncated; there a report follows the previous one.
        if self.file.metadata()?.is_file() {
            self.file.set_len(self.kept)?;
            self.file.seek(SeekFrom::Start(self.kept))?;
        }
        self.file.write_all(text)?;
        self.file.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_created && !self.is_written {
            // A leftover empty file is harmless, so an error is ignored.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
pub(crate) mod sample {
    //! Small made-up reports for the tests of this module: fixed figures, nothing measured.

    use super::job::{self, Batches, Direction, JobResult, Latency, Levels, Samples, SyncResult};
    use super::model::{
        Counters, Courses, Device, DeviceKind, GroupResult, Groups, Kicks, Locks, Machine, Merges,
        Report, Run, Shared, Waited,
    };
    use blkmq_core::Instant;
    use blkmq_device::{Activity, Span};
    use blkmq_lab::workload::{Course, Job, Series};
    use blkmq_sched::{Flow, Reading};

    /// The locks of spinning threads: half of a thread's ten seconds and one second of ramp are spent waiting.
    const SPUN: Locks = Locks {
        taken: 1_000_000,
        contended: 900_000,
        waited_ns: 5_500_000_000,
        merges_skipped: 3,
        parked: 2,
        left: 1,
    };

    /// A run of one job: `iops` for ten seconds, latencies around `clat` nanoseconds.
    pub fn run(scheduler: &str, access: &str, threads: u32, iops: u64, clat: u64) -> Run {
        let elapsed_ns = 10_000_000_000;
        let ios = iops * 10;
        let mut latency = Latency::default();
        // A ramp, and a tail for the last two in a hundred.
        let tail = |i: u64| i.saturating_sub(979).pow(3);
        (0..1000).for_each(|i| latency.0.record(clat + clat * i / 2_000 + clat * tail(i) / 100));
        let mut slat = Latency::default();
        (0..1000).for_each(|i| slat.0.record(20 + i / 100));
        let merged = if scheduler == "none" { 0 } else { ios / 8 };
        let rate = iops as f64;
        let read = Direction {
            io_bytes: ios * 4096,
            runtime_ns: elapsed_ns,
            total_ios: ios,
            slat: Some(slat),
            clat: Some(latency.clone()),
            lat: Some(latency),
            iops_samples: Samples::of(&[rate * 0.99, rate, rate * 1.01]),
            bw_samples: Samples::of(&[rate * 4055.0, rate * 4096.0, rate * 4137.0]),
            ..Direction::default()
        };
        let job = JobResult {
            name: "randread".into(),
            options: vec![("rw".into(), "randread".into()), ("bs".into(), "4k".into())],
            members: threads,
            read,
            runtime_ns: elapsed_ns,
            total_runtime_ns: elapsed_ns * u64::from(threads),
            percentiles: job::default_percentiles(),
            percentiles_of: Job::default().percentiles,
            usr_cpu: 95.0,
            sys_cpu: 1.5,
            ctx: 12,
            minf: 8,
            iodepth: 32,
            iodepth_level: Levels([1, 1, 2, 4, 8, ios, 0]),
            iodepth_submit: Batches([0, 0, ios / 8, 0, 0, 0, 0]),
            iodepth_complete: Batches([0, 0, ios / 8, 0, 0, 0, 0]),
            ..JobResult::default()
        };
        Run {
            scheduler: scheduler.into(),
            device: Device { kind: DeviceKind::Null, text: "null(irqmode=0)".into() },
            access: access.into(),
            scope: "queue".into(),
            threads,
            jobs: vec![job],
            elapsed_ns,
            ramp_ns: 1_000_000_000,
            repetitions: vec![rate * 0.97, rate, rate * 1.02],
            counters: Counters {
                submitted: ios,
                completed: ios,
                splits: 0,
                merges: Merges { plug: merged / 2, back: merged - merged / 2, ..Merges::default() },
                cancelled: 0,
                flush_surplus: 0,
                dispatches: ios - merged + 3,
                requests_completed: ios - merged,
                batch_mean: 7.25,
                kicks: Kicks { sent: 40, coalesced: 960 },
                locks: if access == "spin" { SPUN } else { Locks::default() },
                requeues: 3,
                timeouts: 0,
                retries: 0,
                longest_run_passes: 16,
                longest_run_ns: 4_200,
            },
            ..Run::default()
        }
    }

    fn report(runs: Vec<Run>) -> Report {
        Report {
            command: "blkmq bench --rw=randread --schedulers=none,mq-deadline".into(),
            version: "0.1.0".into(),
            time_ms: 1_795_259_797_343,
            machine: Machine {
                cpu_model: "Some CPU @ 2.0GHz".into(),
                cores: 2,
                memory_bytes: 8 << 30,
                os: "Some OS 12".into(),
                kernel: "6.1.0".into(),
                ..Machine::default()
            },
            runs,
            ..Report::default()
        }
    }

    /// One run of one job.
    pub fn single() -> Report {
        report(vec![run("none", "combining", 1, 8_000_000, 180)])
    }

    /// A commit log beside a scan on a model of a disk, with two schedulers, one of which starves the log.
    pub fn starved() -> Report {
        let with = |scheduler, iops, clat| {
            let mut run = run(scheduler, "combining", 2, iops, clat);
            run.device = Device { kind: DeviceKind::Model, text: "disk".into() };
            let mut scan = run.jobs[0].clone();
            let db = &mut run.jobs[0];
            db.name = "db".into();
            db.sync = SyncResult { total_ios: iops * 10, lat: db.read.clat.clone() };
            scan.name = "scan".into();
            scan.read = Direction { total_ios: 5_000, io_bytes: 5_000 << 17, ..scan.read };
            run.jobs.push(scan);
            run
        };
        let mut report = report(vec![with("none", 2, 500_000_000), with("bfq", 80, 6_000_000)]);
        report.seed = Some(0);
        report
    }

    /// Two schedulers, one of them in two ways, with one, two and four threads.
    pub fn comparison() -> Report {
        report(vec![
            run("none", "combining", 1, 8_000_000, 180),
            run("none", "combining", 2, 15_500_000, 190),
            run("none", "combining", 4, 15_400_000, 400),
            run("mq-deadline", "combining", 1, 5_000_000, 260),
            run("mq-deadline", "combining", 2, 5_300_000, 520),
            run("mq-deadline", "combining", 4, 4_800_000, 1_100),
            run("mq-deadline", "spin", 1, 4_600_000, 280),
            run("mq-deadline", "spin", 2, 1_900_000, 1_700),
            run("mq-deadline", "spin", 4, 600_000, 21_000),
        ])
    }

    /// The comparison with text that would break a writer that does not escape, in every field of text.
    pub fn hostile() -> Report {
        let evil = "<script>alert('x')</script> & \"quoted\", \u{1b}[31mred\u{7}\nnext";
        let mut report = comparison();
        report.command = evil.into();
        report.version = evil.into();
        report.notes = vec![evil.into()];
        report.global_options = vec![(evil.into(), evil.into())];
        report.machine.cpu_model = evil.into();
        report.machine.os = evil.into();
        report.machine.kernel = evil.into();
        report.machine.hypervisor = Some(evil.into());
        report.machine.governor = Some(evil.into());
        for run in report.runs.iter_mut().skip(1) {
            run.scheduler_options = evil.into();
            run.access = format!("{}{evil}", run.access);
            run.device.text = format!("{}{evil}", run.threads);
            run.scope = format!("{}{evil}", run.threads);
            run.jobs[0].name = evil.into();
            run.jobs[0].options = vec![(evil.into(), evil.into())];
        }
        report.runs[0].jobs[0].name = evil.into();
        report
    }

    /// A tree of groups: `web` (300) with `shop` (200) and `search` (100) below it, `backup` (100), and `idle` (900),
    /// which does nothing. The statistics are a few of the real ones.
    pub fn groups() -> Groups {
        let group = |name: &str, parent: Option<usize>, weight: u32, ios: u64| GroupResult {
            name: name.into(),
            parent,
            weight: (weight > 0).then_some(weight),
            ios,
            bytes: ios << 12,
            stats: Vec::new(),
            waited: Vec::new(),
        };
        let mut all = vec![
            group("/", None, 0, 0),
            group("web", Some(0), 300, 0),
            group("shop", Some(1), 200, 600),
            group("search", Some(1), 100, 200),
            group("backup", Some(0), 100, 200),
            group("idle", Some(0), 900, 0),
        ];
        let flow = |n: u64| Reading::Flow(Flow { read: n, sync: n, ..Flow::default() });
        // Requests, nanoseconds that each waited, and the number of times that a queue became empty.
        let counted =
            [(0, 1_000, 3, 0), (1, 800, 2, 0), (2, 600, 2, 5), (3, 200, 2, 6), (4, 200, 7, 7)];
        for (at, requests, wait_ms, dequeue) in counted {
            all[at].stats = vec![
                ("io_serviced_recursive".into(), flow(requests)),
                ("io_wait_time_recursive".into(), flow(requests * wait_ms * 1_000_000)),
                ("io_service_time_recursive".into(), flow(requests * 100_000)),
                ("dequeue".into(), Reading::Number(dequeue)),
            ];
        }
        // Seconds.
        for (at, behind, time) in [(2, None, 2), (2, Some(2), 6), (4, Some(2), 4), (4, Some(4), 1)]
        {
            all[at].waited.push(Waited { behind, ns: time * 1_000_000_000 });
        }
        Groups { level: "full".into(), all }
    }

    /// Returns two schedulers with two jobs in [`groups`]; one scheduler counts the groups and respects their weights.
    pub fn shared() -> Report {
        let mut runs =
            vec![run("bfq", "combining", 2, 100, 9_000), run("none", "combining", 2, 100, 9_000)];
        for run in &mut runs {
            run.groups = groups();
            let mut other = run.jobs[0].clone();
            run.jobs[0].cgroup = Some("shop".into());
            (other.name, other.cgroup) = ("copy".into(), Some("backup".into()));
            run.jobs.push(other);
        }
        for group in &mut runs[1].groups.all {
            group.stats.clear();
            group.waited.clear();
        }
        report(runs)
    }

    /// The figures of a governor.
    pub fn governed() -> Shared {
        Shared {
            tokens: vec![256, 128],
            governor: vec![("read_target", 2_000_000), ("read_p99", 3)],
        }
    }

    /// A comparison with everything that a page can draw: courses of all kinds, heads in the first run, dies in the
    /// second, and more runs than colours and patterns.
    pub fn drawn() -> Report {
        let mut runs = comparison().runs;
        while runs.len() < 30 {
            let name = format!("a-scheduler-with-a-very-long-name-{}", runs.len());
            runs.push(run(&name, "combining", 1, 1_000_000, 900));
        }
        for run in &mut runs {
            let (mut completions, mut depth) = (Series::new(), Course::new());
            for n in 0..1_000 {
                completions.record(Instant::from_nanos(n * 1_000_000), 900 + n);
                depth.change(Instant::from_nanos(n * 1_000_000), n % 7);
            }
            let depth = depth.into_series(Instant::from_nanos(1_000_000_000));
            run.courses = Some(Courses {
                completions: Some(completions),
                elevator: Some(depth.clone()),
                device: Some(depth),
                ..Courses::default()
            });
        }
        let span = |n: u32, activity| Span {
            start: Instant::from_nanos(u64::from(n) * 1_000_000),
            end: Instant::from_nanos(u64::from(n) * 1_000_000 + 700_000),
            place: n * 7_919 % 60_000,
            activity,
        };
        let [first, second] = [Activity::Position, Activity::Write]
            .map(|activity| (0..3_000).map(|n| span(n, activity)).collect::<Vec<_>>());
        for (run, spans) in runs.iter_mut().zip([first, second]) {
            let courses = run.courses.as_mut().expect("every run has courses");
            (courses.spans, courses.spans_missed) = (spans, 10);
        }
        Report { seed: Some(7), ..report(runs) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_files_suggest_them() {
        for (name, format) in Format::ALL {
            assert_eq!(name.parse(), Ok(format));
        }
        let error = "xml".parse::<Format>().unwrap_err();
        let expected = "no output format 'xml'; accepted: normal, json, json+, csv, html, terse";
        assert_eq!(error.to_string(), expected);
        assert_eq!(Format::of_path(Path::new("a.b/x.JSON")), Some(Format::Json));
        assert_eq!(Format::of_path(Path::new("x.txt")), Some(Format::Normal));
        assert_eq!(Format::of_path(Path::new("x.pdf")), None);
        for ending in Format::ENDINGS.split(", ") {
            assert!(Format::of_path(Path::new(&format!("x{ending}"))).is_some(), "{ending}");
        }
    }

    #[test]
    fn every_format_of_every_report_ends_in_a_newline() {
        let reports =
            [Report::default(), sample::single(), sample::comparison(), sample::hostile()];
        for report in &reports {
            for (name, format) in Format::ALL {
                let text = render(report, format);
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}: {text:?}");
            }
        }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("blkmq-output-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_typo_is_found_before_the_run() {
        let error = open(Path::new("/nonexistent/report.json")).unwrap_err();
        let text = error.to_string();
        let start = "cannot write the report to '/nonexistent/report.json': ";
        assert!(text.starts_with(start) && text.len() > start.len(), "{text}");
    }

    #[test]
    fn an_existing_file_is_kept_until_it_is_replaced() {
        let path = path("kept.csv");
        let old = "x".repeat(100_000);
        fs::write(&path, &old).unwrap();
        let mut output = open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), old);
        for report in [sample::comparison(), sample::single()] {
            output.write(&report).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), render(&report, Format::Csv));
        }
        drop(output);
        assert!(path.exists());
        drop(open(&path).unwrap());
        assert!(path.exists(), "a file that was there before is not ours to remove");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_was_never_written_goes_again() {
        let path = path("unused.html");
        let output = open(&path).unwrap();
        assert!(path.exists());
        drop(output);
        assert!(!path.exists());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            println!("SKIP a_full_disk_is_an_error: no /dev/full");
            return;
        }
        let mut output = open_as(full, Format::Json).unwrap();
        let error = output.write(&sample::single()).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the report to '/dev/full': "), "{error}");
        assert!(!error.contains("; the file"), "a device is left alone: {error}");
        assert!(full.exists());
    }

    #[test]
    fn half_a_report_does_not_stay() {
        let path = path("half.json");
        // A file that cannot be written to: it fails as a full disk does.
        let unwritable = |is_created| {
            fs::write(&path, "half").unwrap();
            let file = File::open(&path).unwrap();
            Output {
                path: path.clone(),
                format: Format::Json,
                file,
                is_created,
                is_written: true,
                kept: 0,
            }
        };
        let error = unwritable(true).write(&sample::single()).unwrap_err().to_string();
        assert!(error.ends_with("; the file is removed") && !path.exists(), "{error}");
        let error = unwritable(false).write(&sample::single()).unwrap_err().to_string();
        assert!(error.ends_with("; the file may hold a part of it"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
