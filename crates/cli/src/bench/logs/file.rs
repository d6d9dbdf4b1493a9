//! The file of a log, and the buffer of one of the threads that write to it.

use blkmq_core::Nanos;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a thread collects before it writes them.
const PORTION: usize = 64 << 10;

/// A file, and the first error of writing to it.
pub(super) struct LogFile(Mutex<State>);

struct State {
    file: File,
    failure: Option<io::Error>,
}

/// A thread's buffered access to a file. Lines are written completely, in batches.
pub(super) struct Sink {
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
    pub(super) fn new(file: Arc<LogFile>) -> Self {
        Self { file, lines: String::with_capacity(PORTION + 4096), began: 0 }
    }

    /// Counting began at `began`, in milliseconds since the epoch, and lines have times since the epoch.
    pub(super) fn begin_at(&mut self, began: u64) {
        self.began = began;
    }

    /// The time of a line, in milliseconds: `at` is from the beginning of counting.
    pub(super) fn time(&self, at: Nanos) -> u64 {
        self.began + super::millis(at)
    }

    /// Adds a line.
    pub(super) fn line(&mut self, line: std::fmt::Arguments<'_>) {
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
