//! The kinds of logs: rates and latencies, with a line for each I/O, or for each window of time and direction; histograms
//! of completion latency; and the I/Os of a thread as issued (`write_iolog`).
//!
//! Bins of histograms are those of fio: the first 128 are one nanosecond wide, and each further 64 twice as wide as the
//! previous ones. Each step of `log_hist_coarseness` joins two neighbours.
//!
//! I/Os as issued are in version 3 of fio's format, which fio's `read_iolog` replays. The first line gives the version.
//! Each further line has a time in microseconds, a file and an action: `add`, `open`, `close`, or `read`, `write`,
//! `trim`, `sync` with the offset in the file and the length.

use super::{Sink, Unit, about, about_window, window};
use crate::devices::path_of;
use crate::plan::DeviceChoice;
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::{Completed, Logs, NextIo};
use blkmq_terminal::UsageError;

/// A log of bandwidth or of I/Os.
pub(super) struct Rates {
    sink: Sink,
    logs: Logs,
    unit: Unit,
    /// The window that is being counted.
    window: u64,
    /// Bytes or I/Os in it, by direction.
    done: [u64; 3],
}

impl Rates {
    pub(super) fn new(sink: Sink, logs: &Logs, unit: Unit) -> Self {
        Self { sink, logs: logs.clone(), unit, window: 0, done: [0; 3] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed) {
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
    pub(super) fn end(&mut self, at: Nanos) {
        let length = self.logs.avg;
        let passed = Nanos(at.0.saturating_sub(self.window * length.0)).min(length);
        if length > Nanos::ZERO && passed.0 * 2 >= length.0 {
            self.close(passed);
        }
    }
}

/// A log of one kind of latency.
pub(super) struct Latencies {
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
    pub(super) fn new(sink: Sink, logs: &Logs) -> Self {
        Self { sink, logs: logs.clone(), window: 0, seen: [LatencyWindow::default(); 3] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed, value: Nanos) {
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

    pub(super) fn end(&mut self, at: Nanos) {
        if self.logs.avg > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.logs.avg.0)));
        }
    }
}

/// Bins of a group, as a shift.
const BITS: u32 = 6;
/// fio's number of bins: 29 groups.
const BINS: usize = 29 << BITS;

pub(super) struct Histograms {
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
    pub(super) fn new(sink: Sink, logs: &Logs) -> Self {
        let Logs { hist_window: length, coarseness, .. } = *logs;
        Self { sink, length, coarseness, window: 0, seen: [None, None, None] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed) {
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

    pub(super) fn end(&mut self, at: Nanos) {
        if self.length > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.length.0)));
        }
    }
}

/// The first line.
const VERSION: &str = "fio version 3 iolog";
/// The longest file name that fio reads.
const MAX_NAME: usize = 256;

pub(super) struct IoLog {
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
pub(super) fn files(device: &DeviceChoice) -> Result<Vec<(u64, String)>, UsageError> {
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
    pub(super) fn new(mut sink: Sink, files: Vec<(u64, String)>) -> Self {
        sink.line(format_args!("{VERSION}"));
        for action in ["add", "open"] {
            files.iter().for_each(|(_, name)| sink.line(format_args!("0 {name} {action}")));
        }
        Self { sink, files, last: Nanos::ZERO }
    }

    pub(super) fn issued(&mut self, at: Nanos, io: &NextIo) {
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

    pub(super) fn end(&mut self) {
        let at = self.last.0 / 1_000;
        for (_, name) in &self.files {
            self.sink.line(format_args!("{at} {name} close"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogFile;
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
