//! fio's logs of I/Os: bandwidth, rate, latencies and histograms over time, with fio's formats and file names.
//!
//! Each thread has a [`Log`], which its worker notifies of every completed I/O. Entries are written in batches during
//! the run, so that the memory of a log is bounded. A thread does not stop on a write error: the error is kept, and
//! reported after the run.
//!
//! A line is `time, value, direction, block size, priority`, with the offset before the priority if requested; time is
//! in milliseconds since measurement began, or since the epoch. A line of a histogram is `time, direction, block size`
//! and the bins. The log of `write_iolog` has a different format.

mod kinds;

use crate::Failure;
use crate::plan::Plan;
use crate::plan::runs::RunSpec;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Completed, Job, Journal, Logs, NextIo};
use blkmq_terminal::UsageError;
use kinds::{Histograms, IoLog, Latencies, Rates};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The logs of one run.
#[derive(Default)]
pub struct RunLogs {
    files: BTreeMap<PathBuf, Arc<LogFile>>,
}

struct Log {
    bw: Option<Rates>,
    iops: Option<Rates>,
    slat: Option<Latencies>,
    clat: Option<Latencies>,
    lat: Option<Latencies>,
    hist: Option<Histograms>,
    io: Option<IoLog>,
    /// Whether times count from the epoch.
    from_epoch: bool,
}

/// The unit of a log of rates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// KiB.
    Bytes,
    /// I/Os.
    Ios,
}

impl RunLogs {
    /// The journal of thread `number` of `spec`, which runs `job`; `None` if the job has no log.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn journal(
        &mut self,
        plan: &Plan,
        spec: &RunSpec<'_>,
        number: usize,
        job: &Job,
    ) -> Result<Option<Box<dyn Journal>>, Failure> {
        let logs = &job.logs;
        if !logs.any() {
            return Ok(None);
        }
        let mut open = |prefix: &Option<String>, wanted: bool, kind: &str| {
            let Some(prefix) = prefix.as_ref().filter(|_| wanted) else { return Ok(None) };
            let name = name_of(&plan.file_of(spec, prefix), kind, logs.per_job.then_some(number));
            self.sink(name).map(Some)
        };
        let taken = job.latencies;
        let latencies = |sink: Option<Sink>| sink.map(|sink| Latencies::new(sink, logs));
        let log = Log {
            bw: open(&logs.bw, true, "bw")?.map(|sink| Rates::new(sink, logs, Unit::Bytes)),
            iops: open(&logs.iops, true, "iops")?.map(|sink| Rates::new(sink, logs, Unit::Ios)),
            slat: latencies(open(&logs.lat, taken.slat, "slat")?),
            clat: latencies(open(&logs.lat, taken.clat, "clat")?),
            lat: latencies(open(&logs.lat, taken.lat, "lat")?),
            hist: open(&logs.hist, true, "clat_hist")?.map(|sink| Histograms::new(sink, logs)),
            from_epoch: logs.unix_epoch,
            io: match &logs.io {
                None => None,
                Some(name) => {
                    // A log that several threads write to would be replayed by one.
                    let has_it = |job: usize| plan.jobs[job].logs.io == logs.io;
                    let alone = spec.threads.iter().filter(|it| has_it(it.job)).count() == 1;
                    let name = plan.file_of(spec, name);
                    let name = if alone { name } else { format!("{name}.{}", number + 1) };
                    Some(IoLog::new(self.sink(name)?, kinds::files(spec.device)?))
                }
            },
        };
        Ok(Some(Box::new(log)))
    }

    /// The file of a log, shared by threads that write to the same file.
    fn sink(&mut self, path: String) -> Result<Sink, Failure> {
        let path = PathBuf::from(path);
        let file = match self.files.get(&path) {
            Some(file) => Arc::clone(file),
            None => {
                let refuse = |e| UsageError::new(format!("log {}: {e}", path.display()));
                let file = Arc::new(LogFile::create(&path).map_err(refuse)?);
                self.files.insert(path, Arc::clone(&file));
                file
            }
        };
        Ok(Sink::new(file))
    }

    /// A message for each log that was not written completely. Must be called after all threads have ended.
    pub fn incomplete(&self) -> Vec<String> {
        let failed = |(path, file): (&PathBuf, &Arc<LogFile>)| {
            file.failure().map(|why| format!("log {} is incomplete: {why}", path.display()))
        };
        let mut failed = Vec::from_iter(self.files.iter().filter_map(failed));
        failed.sort();
        failed
    }
}

/// The file name of a log of completed I/Os.
fn name_of(prefix: &str, kind: &str, thread: Option<usize>) -> String {
    match thread {
        // fio counts threads from 1.
        Some(number) => format!("{prefix}_{kind}.{}.log", number + 1),
        None => format!("{prefix}_{kind}.log"),
    }
}

impl Journal for Log {
    fn began(&mut self, ago: Nanos) {
        if self.from_epoch {
            let began = blkmq_runtime::wall_clock_millis().saturating_sub(millis(ago));
            let Self { bw, iops, slat, clat, lat, hist, .. } = self;
            let rates = [bw, iops].into_iter().flatten().map(Rates::sink);
            let latencies = [slat, clat, lat].into_iter().flatten().map(Latencies::sink);
            let sinks = rates.chain(latencies).chain(hist.as_mut().map(Histograms::sink));
            sinks.for_each(|sink| sink.begin_at(began));
        }
    }

    fn issued(&mut self, at: Nanos, io: &NextIo) {
        if let Some(log) = &mut self.io {
            log.issued(at, io);
        }
    }

    fn completed(&mut self, io: &Completed) {
        for rates in [&mut self.bw, &mut self.iops].into_iter().flatten() {
            rates.record(io);
        }
        let lat = Nanos(io.slat.0 + io.clat.0);
        let values = [(&mut self.slat, io.slat), (&mut self.clat, io.clat), (&mut self.lat, lat)];
        for (log, value) in values {
            if let Some(log) = log {
                log.record(io, value);
            }
        }
        if let Some(hist) = &mut self.hist {
            hist.record(io);
        }
    }

    fn ended(&mut self, at: Nanos) {
        for rates in [&mut self.bw, &mut self.iops].into_iter().flatten() {
            rates.end(at);
        }
        for log in [&mut self.slat, &mut self.clat, &mut self.lat].into_iter().flatten() {
            log.end(at);
        }
        if let Some(hist) = &mut self.hist {
            hist.end(at);
        }
        if let Some(log) = &mut self.io {
            log.end();
        }
    }
}

/// The number of the window of this length that `at` is in.
fn window(at: Nanos, length: Nanos) -> u64 {
    at.0 / length.0.max(1)
}

/// Whole milliseconds.
fn millis(at: Nanos) -> u64 {
    at.0 / 1_000_000
}

/// The end of the line of a single I/O: direction, block size, offset and priority.
fn about(io: &Completed, logs: &Logs) -> String {
    use std::fmt::Write;
    let mut text = format!("{}, {}", io.direction as u8, io.bytes);
    let written = if logs.offset { write!(text, ", {}", io.offset) } else { Ok(()) };
    let written = written.and_then(|()| {
        if logs.prio {
            write!(text, ", 0x{:04x}", io.prio.to_bits())
        } else {
            write!(text, ", {}", u8::from(io.prio.class() == blkmq_core::Class::Realtime))
        }
    });
    written.expect("a string takes any text");
    text
}

/// Like [`about`], but for a window, which has no block size, offset or priority.
fn about_window(direction: usize, logs: &Logs) -> String {
    let offset = if logs.offset { ", 0" } else { "" };
    format!("{direction}, 0{offset}, {}", if logs.prio { "0x0000" } else { "0" })
}

/// Bytes that a thread collects before it writes them.
const PORTION: usize = 64 << 10;

/// A file, and the first error of writing to it.
pub(super) struct LogFile(Mutex<State>);

struct State {
    file: File,
    failure: Option<io::Error>,
}

/// A thread's buffered access to a file. Lines are written completely, in batches.
struct Sink {
    file: Arc<LogFile>,
    lines: String,
    /// The time of a line is from this on: milliseconds.
    began: u64,
}

impl LogFile {
    /// Creates an empty file at `path`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(State { file: File::create(path)?, failure: None })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is harmless: each batch is written by one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the file is incomplete, if it is.
    pub(super) fn failure(&self) -> Option<String> {
        self.state().failure.as_ref().map(ToString::to_string)
    }

    fn append(&self, lines: &str) {
        let mut state = self.state();
        // After an error the rest would have a gap before it.
        if state.failure.is_none() {
            state.failure = state.file.write_all(lines.as_bytes()).err();
        }
    }
}

impl Sink {
    fn new(file: Arc<LogFile>) -> Self {
        Self { file, lines: String::with_capacity(PORTION + 4096), began: 0 }
    }

    /// Counting began at `began`, in milliseconds since the epoch, and lines have times since the epoch.
    fn begin_at(&mut self, began: u64) {
        self.began = began;
    }

    /// The time of a line, in milliseconds: `at` is from the beginning of counting.
    fn time(&self, at: Nanos) -> u64 {
        self.began + millis(at)
    }

    /// Adds a line.
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        use std::fmt::Write;
        self.lines.write_fmt(line).expect("a string takes any text");
        self.lines.push('\n');
        if self.lines.len() >= PORTION {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.file.append(&self.lines);
        self.lines.clear();
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}
