//! fio's logs of I/Os: bandwidth, rate, latencies and histograms over time, and the I/Os of a thread as issued
//! (`write_iolog`), with fio's formats and file names.
//!
//! Each thread has a [`Log`], which its worker notifies of every completed I/O. Entries are written in batches during
//! the run, so that the memory of a log is bounded. A thread does not stop on a write error: the error is kept, and
//! reported after the run.
//!
//! Rates and latencies have a line for each I/O, or for each window of time and direction: `time, value, direction,
//! block size, priority`, with the offset before the priority if requested; time is in milliseconds since measurement
//! began, or since the epoch. A line of a histogram is `time, direction, block size` and the bins.
//!
//! Bins of histograms are those of fio: the first 128 are one nanosecond wide, and each further 64 twice as wide as the
//! previous ones. Each step of `log_hist_coarseness` joins two neighbours.
//!
//! I/Os as issued are in version 3 of fio's format, which fio's `read_iolog` replays. The first line gives the version.
//! Each further line has a time in microseconds, a file and an action: `add`, `open`, `close`, or `read`, `write`,
//! `trim`, `sync` with the offset in the file and the length.

use crate::Failure;
use crate::devices::path_of;
use crate::plan::{DeviceChoice, Plan, RunSpec};
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::{Completed, Job, Journal, Logs, NextIo};
use blkmq_terminal::UsageError;
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
                    Some(IoLog::new(self.sink(name)?, files(spec.device)?))
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
struct LogFile(Mutex<State>);

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
    fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(State { file: File::create(path)?, failure: None })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is harmless: each batch is written by one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the file is incomplete, if it is.
    fn failure(&self) -> Option<String> {
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

/// A log of bandwidth or of I/Os.
struct Rates {
    sink: Sink,
    logs: Logs,
    unit: Unit,
    /// The window that is being counted.
    window: u64,
    /// Bytes or I/Os in it, by direction.
    done: [u64; 3],
}

impl Rates {
    fn new(sink: Sink, logs: &Logs, unit: Unit) -> Self {
        Self { sink, logs: logs.clone(), unit, window: 0, done: [0; 3] }
    }

    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    fn record(&mut self, io: &Completed) {
        let amount = if self.unit == Unit::Bytes { io.bytes } else { 1 };
        if self.logs.avg == Nanos::ZERO {
            let value = match self.unit {
                // As fio has it for single I/Os: thousands of bytes in the second.
                Unit::Bytes => io.bytes.saturating_mul(1_000_000) / io.clat.0.max(1),
                Unit::Ios => 1,
            };
            let about = about(io, &self.logs);
            return self.sink.line(format_args!("{}, {value}, {about}", self.sink.time(io.at)));
        }
        let at = window(io.at, self.logs.avg);
        if at > self.window {
            self.close(self.logs.avg);
            self.window = at;
        }
        self.done[io.direction as usize] += amount;
    }

    /// Writes the present window, which lasted `length`. A direction without I/Os gets no line.
    fn close(&mut self, length: Nanos) {
        let end = Nanos(self.window * self.logs.avg.0 + length.0);
        let unit = if self.unit == Unit::Bytes { 1024 } else { 1 };
        for (direction, done) in std::mem::take(&mut self.done).into_iter().enumerate() {
            if done > 0 {
                let per_second = u128::from(done) * 1_000_000_000 / u128::from(length.0.max(1));
                let about = about_window(direction, &self.logs);
                let line = (self.sink.time(end), per_second / unit);
                self.sink.line(format_args!("{}, {}, {about}", line.0, line.1));
            }
        }
    }

    /// The last window counts if at least half of it has passed: the rate of a few I/Os in a short time is meaningless.
    fn end(&mut self, at: Nanos) {
        let length = self.logs.avg;
        let passed = Nanos(at.0.saturating_sub(self.window * length.0)).min(length);
        if length > Nanos::ZERO && passed.0 * 2 >= length.0 {
            self.close(passed);
        }
    }
}

/// A log of one kind of latency.
struct Latencies {
    sink: Sink,
    logs: Logs,
    window: u64,
    /// By direction.
    seen: [LatencyWindow; 3],
}

/// The latencies of a window.
#[derive(Clone, Copy, Default)]
struct LatencyWindow {
    count: u64,
    sum: u128,
    max: u64,
}

impl Latencies {
    fn new(sink: Sink, logs: &Logs) -> Self {
        Self { sink, logs: logs.clone(), window: 0, seen: [LatencyWindow::default(); 3] }
    }

    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    fn record(&mut self, io: &Completed, value: Nanos) {
        if self.logs.avg == Nanos::ZERO {
            let about = about(io, &self.logs);
            return self.sink.line(format_args!("{}, {}, {about}", self.sink.time(io.at), value.0));
        }
        let at = window(io.at, self.logs.avg);
        if at > self.window {
            self.close(Nanos((self.window + 1) * self.logs.avg.0));
            self.window = at;
        }
        let seen = &mut self.seen[io.direction as usize];
        seen.count += 1;
        seen.sum += u128::from(value.0);
        seen.max = seen.max.max(value.0);
    }

    fn close(&mut self, end: Nanos) {
        for (direction, seen) in std::mem::take(&mut self.seen).into_iter().enumerate() {
            if seen.count > 0 {
                let mean = seen.sum / u128::from(seen.count);
                let value = if self.logs.max_value { u128::from(seen.max) } else { mean };
                let about = about_window(direction, &self.logs);
                self.sink.line(format_args!("{}, {value}, {about}", self.sink.time(end)));
            }
        }
    }

    fn end(&mut self, at: Nanos) {
        if self.logs.avg > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.logs.avg.0)));
        }
    }
}

/// Bins of a group, as a shift.
const BITS: u32 = 6;
/// fio's number of bins: 29 groups.
const BINS: usize = 29 << BITS;

struct Histograms {
    sink: Sink,
    length: Nanos,
    coarseness: u8,
    window: u64,
    /// By direction; `None` until there is an I/O of it.
    seen: [Option<BinWindow>; 3],
}

/// The latencies of a window.
struct BinWindow {
    bins: Box<[u64]>,
    count: u64,
    /// The length of the latest I/O.
    bytes: u64,
}

/// The bin of a latency.
fn bin(ns: u64) -> usize {
    let shift = (ns | 1).ilog2().saturating_sub(BITS);
    let within = (ns >> shift) as usize;
    (((shift as usize) << BITS) + within).min(BINS - 1)
}

impl Histograms {
    fn new(sink: Sink, logs: &Logs) -> Self {
        let Logs { hist_window: length, coarseness, .. } = *logs;
        Self { sink, length, coarseness, window: 0, seen: [None, None, None] }
    }

    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    fn record(&mut self, io: &Completed) {
        // As in fio, the file stays empty without log_hist_msec.
        if self.length == Nanos::ZERO {
            return;
        }
        let at = window(io.at, self.length);
        if at > self.window {
            self.close(Nanos((self.window + 1) * self.length.0));
            self.window = at;
        }
        let seen = self.seen[io.direction as usize].get_or_insert_with(|| BinWindow {
            bins: vec![0; BINS].into_boxed_slice(),
            count: 0,
            bytes: 0,
        });
        seen.bins[bin(io.clat.0)] += 1;
        seen.count += 1;
        seen.bytes = io.bytes;
    }

    fn close(&mut self, end: Nanos) {
        for (direction, seen) in self.seen.iter_mut().enumerate() {
            let Some(seen) = seen.as_mut().filter(|seen| seen.count > 0) else { continue };
            let joined = seen.bins.chunks(1 << self.coarseness).map(|bins| bins.iter().sum());
            let bins = Vec::from_iter(joined.map(|n: u64| n.to_string())).join(", ");
            self.sink.line(format_args!(
                "{}, {direction}, {}, {bins}",
                self.sink.time(end),
                seen.bytes
            ));
            seen.bins.fill(0);
            seen.count = 0;
        }
    }

    fn end(&mut self, at: Nanos) {
        if self.length > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.length.0)));
        }
    }
}

/// The first line.
const VERSION: &str = "fio version 3 iolog";
/// The longest file name that fio reads.
const MAX_NAME: usize = 256;

struct IoLog {
    sink: Sink,
    /// The offsets on the device at which its files begin, in order, with their names.
    files: Vec<(u64, String)>,
    last: Nanos,
}

/// The files of `device` and their offsets. A device other than a file appears under its own name; fio's
/// `replay_redirect` replaces it.
///
/// # Errors
/// If a name does not fit in a log.
fn files(device: &DeviceChoice) -> Result<Vec<(u64, String)>, UsageError> {
    let path = |text: &str| path_of(text).unwrap_or(&device.name).to_owned();
    let files = match device.files.as_slice() {
        [] => vec![(0, path(&device.text))],
        files => files.iter().map(|file| (file.start, path(&file.text))).collect(),
    };
    let is_unfit = |name: &str| name.contains(char::is_whitespace) || name.len() > MAX_NAME;
    match files.iter().find(|(_, name)| is_unfit(name)) {
        Some((_, name)) => {
            let text = format!(
                "write_iolog: filename={name}; accepted: names without a space, of up to {MAX_NAME} bytes"
            );
            Err(UsageError::new(text))
        }
        None => Ok(files),
    }
}

impl IoLog {
    fn new(mut sink: Sink, files: Vec<(u64, String)>) -> Self {
        sink.line(format_args!("{VERSION}"));
        for action in ["add", "open"] {
            files.iter().for_each(|(_, name)| sink.line(format_args!("0 {name} {action}")));
        }
        Self { sink, files, last: Nanos::ZERO }
    }

    fn issued(&mut self, at: Nanos, io: &NextIo) {
        self.last = at;
        let byte = io.sector * u64::from(SECTOR_SIZE);
        let behind = self.files.partition_point(|(start, _)| *start <= byte);
        let (start, name) = &self.files[behind.max(1) - 1];
        let action = match io.op {
            Op::Read => "read",
            Op::Write | Op::WriteZeroes => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        let (at, length) = (at.0 / 1_000, u64::from(io.sectors) * u64::from(SECTOR_SIZE));
        self.sink.line(format_args!("{at} {name} {action} {} {length}", byte - start));
    }

    fn end(&mut self) {
        let at = self.last.0 / 1_000;
        for (_, name) in &self.files {
            self.sink.line(format_args!("{at} {name} close"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kept, PlacedFile};
    use blkmq_core::{IoFlags, IoPrio};
    use std::sync::Arc;

    /// Bins rise without a gap, and their width is at most a 64th of their values.
    #[test]
    fn bins_are_fios() {
        for ns in 0..128 {
            assert_eq!(bin(ns), ns as usize);
        }
        assert_eq!((bin(128), bin(129), bin(130), bin(255), bin(256)), (128, 128, 129, 191, 192));
        assert_eq!((bin((1 << 34) - 1), bin(1 << 34), bin(u64::MAX)), (1855, 1855, 1855));
        let mut last = 0;
        for ns in 1..100_000 {
            let at = bin(ns);
            assert!(at == last || at == last + 1, "{ns}");
            last = at;
        }
    }

    fn device(text: &str, files: &[(u64, &str)]) -> DeviceChoice {
        let placed =
            |(start, text): &(u64, &str)| PlacedFile { start: *start, text: (*text).into() };
        DeviceChoice {
            name: text.split([':', ',']).next().unwrap_or_default().into(),
            text: text.into(),
            chosen_by: format!("--device {text}"),
            size_bytes: 1 << 30,
            keeps: true,
            notes: Vec::new(),
            files: files.iter().map(placed).collect(),
            is_filled: false,
            is_stand_in: false,
            kept: Kept::default(),
        }
    }

    #[test]
    fn a_log_names_the_files_and_the_places_in_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let sink = Sink::new(Arc::new(LogFile::create(&path).expect("it can be made")));
        let device =
            device("uring:a to b (2 files)", &[(0, "uring:a,size=8b"), (1 << 20, "uring:b")]);
        let mut log = IoLog::new(sink, files(&device).expect("names"));
        let io = |op, sector, sectors| NextIo {
            op,
            flags: IoFlags::NONE,
            prio: IoPrio::default(),
            sectors,
            sector,
        };
        log.issued(Nanos::from_micros(5), &io(Op::Write, 8, 8));
        log.issued(Nanos::from_millis(2), &io(Op::Read, 2048 + 16, 1));
        log.issued(Nanos::from_millis(2), &io(Op::Flush, 0, 0));
        log.end();
        drop(log);
        let text = std::fs::read_to_string(&path).expect("it is written");
        let expected = "fio version 3 iolog\n0 a add\n0 b add\n0 a open\n0 b open\n5 a write 4096 4096\n2000 b read \
                        8192 512\n2000 a sync 0 0\n2000 a close\n2000 b close\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_device_has_its_name_and_a_name_no_space() {
        let names = |text: &str| files(&device(text, &[]));
        assert_eq!(names("threads:/dev/sdb,threads=2"), Ok(vec![(0, "/dev/sdb".into())]));
        assert_eq!(names("uring:/dev/sdb,direct=0"), Ok(vec![(0, "/dev/sdb".into())]));
        assert_eq!(names("memory,size=1g"), Ok(vec![(0, "memory".into())]));
        assert!(names("uring:a b").is_err_and(|e| e.to_string().contains("without a space")));
    }
}
