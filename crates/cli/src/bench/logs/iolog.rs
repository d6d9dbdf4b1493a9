//! `write_iolog`: the I/Os of a thread as issued, in version 3 of fio's format, which fio's `read_iolog` replays.
//!
//! The first line gives the version. Each further line has a time in microseconds, a file and an action: `add`, `open`,
//! `close`, or `read`, `write`, `trim`, `sync` with the offset in the file and the length.

use super::file::Sink;
use crate::devices::path_of;
use crate::plan::DeviceChoice;
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::NextIo;
use blkmq_terminal::UsageError;

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
    use super::super::file::LogFile;
    use super::*;
    use crate::plan::{Kept, PlacedFile};
    use blkmq_core::{IoFlags, IoPrio};
    use std::sync::Arc;

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
