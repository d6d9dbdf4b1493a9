//! `blkmqctl trace` and `blkmqctl elevator-log`: the recordings of a running server, into files or a pipe.

use super::args::Recording;
use super::json_line;
use crate::Failure;
use blkmq_server::control::{Ended, RecordError, Request, Why, record};
use blkmq_terminal::output::complain;
use blkmq_terminal::program::Stop;
use blkmq_trace::record::Record;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The result of a recording, for scripts.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    ended: Ended,
    bytes: u64,
}

/// Records until the server ends the recording; the first signal asks it to.
///
/// # Errors
/// If the server refuses or disconnects, or a file cannot be written.
pub fn run(
    socket: &Path,
    wanted: &Recording,
    json: bool,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let stop = Stop::on_signals();
    let is_trace = matches!(wanted.request, Request::Trace { .. });
    let mut into = Into::open(&wanted.output, is_trace).map_err(|e| failed(&e))?;
    let mut bytes = 0;
    let ended = record(socket, &wanted.request, &|| stop.is_set(), |some| {
        bytes += some.len() as u64;
        into.take(some)
    });
    let ended = match ended {
        Ok(ended) => ended,
        // The reader of the pipe has closed it.
        Err(RecordError::Taker(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
        Err(error) => {
            into.remove();
            let text = match &error {
                RecordError::Call(_) => format!("{}: {error}", socket.display()),
                _ => error.to_string(),
            };
            return Err(Failure::Server(text));
        }
    };
    let to_pipe = into.is_pipe();
    into.finish().map_err(|e| failed(&e))?;
    let what = if is_trace { "events" } else { "calls" };
    let total = if json {
        json_line(&Outcome { ended, bytes })
    } else {
        format!(
            "Total: {} {what} (dropped {}), {} KiB data{}\n",
            ended.recorded,
            ended.dropped,
            bytes.div_ceil(1024),
            reason(ended.why),
        )
    };
    // With a pipe, standard output has the records.
    if to_pipe {
        complain(format_args!("{}", total.trim_end()));
    } else {
        say(&total)?;
    }
    if ended.dropped > 0 {
        let remedy = if is_trace { "a larger buffer (-b)" } else { "a larger --max-bytes" };
        complain(format_args!("{} {what} were dropped; {remedy} keeps them", ended.dropped));
    }
    Ok(())
}

fn failed(error: &io::Error) -> Failure {
    Failure::Recording(error.to_string())
}

/// Returns why the recording ended, or an empty text if the user has ended it.
fn reason(why: Why) -> &'static str {
    match why {
        Why::Time | Why::Asked | Why::Gone => "",
        Why::Size => "; it has reached its size",
        Why::Server => "; the server has ended",
    }
}

/// The destination of the bytes.
enum Into {
    Pipe(io::Stdout),
    /// One file of all bytes.
    Whole(Target),
    /// One file for each CPU.
    ByCpu(ByCpu),
}

impl Into {
    fn open(output: &str, by_cpu: bool) -> io::Result<Self> {
        match output {
            "-" => Ok(Self::Pipe(io::stdout())),
            path if by_cpu => ByCpu::new(path.to_owned()).map(Self::ByCpu),
            path => Target::open(path.into()).map(Self::Whole),
        }
    }

    fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(out) => {
                out.write_all(bytes)?;
                out.flush()
            }
            Self::Whole(file) => file.begin()?.write_all(bytes),
            Self::ByCpu(files) => files.take(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Pipe(_) => Ok(()),
            Self::Whole(mut file) => file.begin()?.flush(),
            Self::ByCpu(files) => files.finish(),
        }
    }

    /// Removes an incomplete log, but not a file that a refused recording has left untouched. An incomplete trace is
    /// kept, since it can be read.
    fn remove(self) {
        match self {
            Self::Pipe(_) => {}
            Self::Whole(file) => file.remove(),
            Self::ByCpu(files) => files.files.into_iter().for_each(Target::remove_untouched),
        }
    }
}

/// A file whose contents are kept until the recording has begun.
struct Target {
    path: PathBuf,
    file: BufWriter<File>,
    is_new: bool,
    has_begun: bool,
}

impl Target {
    fn open(path: PathBuf) -> io::Result<Self> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let file = file.map_err(named).map(BufWriter::new)?;
        Ok(Self { path, file, is_new, has_begun: false })
    }

    /// Truncates the file and returns its writer.
    fn begin(&mut self) -> io::Result<&mut BufWriter<File>> {
        if !self.has_begun {
            self.has_begun = true;
            // Pipes and devices cannot be truncated.
            if self.path.metadata().is_ok_and(|it| it.is_file()) {
                self.file.get_ref().set_len(0)?;
            }
        }
        Ok(&mut self.file)
    }

    /// Removes the file if this recording has written it.
    fn remove(self) {
        if (self.is_new || self.has_begun) && self.path.metadata().is_ok_and(|it| it.is_file()) {
            // The caller reports that the recording has failed.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Removes the file if it was created here and nothing was recorded.
    fn remove_untouched(self) {
        if !self.has_begun {
            self.remove();
        }
    }
}

/// Files as blktrace writes them: `PREFIX.blktrace.CPU`.
struct ByCpu {
    prefix: String,
    files: Vec<Target>,
    /// The beginning of an incomplete record.
    rest: Vec<u8>,
}

impl ByCpu {
    fn new(prefix: String) -> io::Result<Self> {
        let mut files = Self { prefix, files: Vec::new(), rest: Vec::new() };
        // Opening the first file refuses an impossible name before the recording begins.
        files.files.push(Target::open(files.path(0))?);
        Ok(files)
    }

    fn path(&self, cpu: usize) -> PathBuf {
        PathBuf::from(format!("{}.blktrace.{cpu}", self.prefix))
    }

    /// The file of a CPU, creating those of lower numbers, which readers expect.
    fn file(&mut self, cpu: usize) -> io::Result<&mut BufWriter<File>> {
        while self.files.len() <= cpu {
            let file = Target::open(self.path(self.files.len()))?;
            self.files.push(file);
        }
        self.files[cpu].begin()
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        while let Ok(Some((Record { cpu, .. }, length))) = Record::decode(&all[at..], 0) {
            self.file(cpu as usize)?.write_all(&all[at..at + length])?;
            at += length;
        }
        all.drain(..at);
        self.rest = all;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        for file in &mut self.files {
            file.begin()?.flush()?;
        }
        if !self.rest.is_empty() {
            let text = format!("{} bytes at the end are no record", self.rest.len());
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        // Files of an earlier trace with the same prefix and more CPUs would be read as part of this trace.
        let mut cpu = self.files.len();
        while self.path(cpu).exists() {
            std::fs::remove_file(self.path(cpu))?;
            cpu += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_trace::record::records;

    fn record(cpu: u32, sector: u64) -> Vec<u8> {
        let (sequence, time, bytes, action, pid, device, error) = (1, 0, 512, 1 << 16 | 1, 0, 0, 0);
        let mut out = Vec::new();
        let record =
            Record { sequence, time, sector, bytes, action, pid, device, cpu, error, payload: &[] };
        record.encode(&mut out);
        out
    }

    #[test]
    fn a_refused_recording_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let there = |name: &str| std::fs::read(path(name)).ok();
        for name in ["run.log", "t.blktrace.0"] {
            std::fs::write(path(name), b"of an earlier run").expect("a file");
        }
        for (output, by_cpu) in [("run.log", false), ("t", true), ("new.log", false), ("n", true)] {
            Into::open(&path(output), by_cpu).expect("a file").remove();
        }
        let earlier = Some(b"of an earlier run".to_vec());
        assert_eq!([there("run.log"), there("t.blktrace.0")], [earlier.clone(), earlier]);
        assert_eq!([there("new.log"), there("n.blktrace.0")], [None, None]);
        let mut half = Into::open(&path("run.log"), false).expect("a file");
        half.take(b"half").expect("room");
        half.remove();
        assert_eq!(there("run.log"), None, "half a log is none");
        let mut whole = Into::open(&path("t"), true).expect("a file");
        whole.take(&record(0, 1)).expect("room");
        whole.finish().expect("whole");
        assert_eq!(there("t.blktrace.0"), Some(record(0, 1)));
    }

    #[test]
    fn records_go_into_the_file_of_their_cpu_however_they_are_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let prefix = folder.path().join("t").to_string_lossy().into_owned();
        std::fs::write(format!("{prefix}.blktrace.3"), b"of an earlier trace").expect("a file");
        let all = [record(0, 1), record(2, 2), record(0, 3)].concat();
        let mut files = ByCpu::new(prefix.clone()).expect("files");
        all.chunks(7).for_each(|some| files.take(some).expect("records"));
        files.finish().expect("whole records");
        let sectors = |cpu: u32| -> Vec<u64> {
            let bytes = std::fs::read(format!("{prefix}.blktrace.{cpu}")).expect("a file");
            records(&bytes).map(|it| it.expect("whole").sector).collect()
        };
        assert_eq!([sectors(0), sectors(1), sectors(2)], [vec![1, 3], vec![], vec![2]]);
        assert!(!Path::new(&format!("{prefix}.blktrace.3")).exists());
        let mut files = ByCpu::new(prefix).expect("files");
        files.take(&all[..50]).expect("a record");
        assert!(files.finish().is_err(), "half a record is told");
    }
}
