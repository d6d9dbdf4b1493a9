//! Test files, and a message where there is no io_uring, for both programs of tests.

use blkmq_uring::{OpenError, UringDevice};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The length of the blocks that tests move, in bytes.
pub const BLOCK: usize = 4096;

/// A file for one test, removed afterwards.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates the file with `bytes` zeroes. `name` is that of the test.
    pub fn new(name: &str, bytes: u64) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // A test may run a second time at the same time, without io_uring.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{name}-{}-{number}", std::process::id()));
        let file = std::fs::File::create(&path).expect("the build folder can be written to");
        file.set_len(bytes).expect("a small file");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("it is there")
    }

    /// The device on this file, where there is io_uring.
    pub fn try_open(&self, options: &str) -> Result<UringDevice, OpenError> {
        UringDevice::parse(&format!("{}{options}", self.0.display()))
    }

    /// The device on this file. `None`, and a line that names the test, if there is no io_uring here.
    pub fn open(&self, test: &str, options: &str) -> Option<UringDevice> {
        open(test, &format!("{}{options}", self.0.display())).transpose().expect("it opens")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

thread_local! {
    /// The tests of this thread are to run without io_uring.
    pub static WITHOUT_RINGS: Cell<bool> = const { Cell::new(false) };
}

/// Opens a device. `None`, and a line that names the test, if there is no io_uring here.
pub fn open(test: &str, text: &str) -> Option<Result<UringDevice, OpenError>> {
    match UringDevice::parse(text) {
        Ok(device) if device.has_threads() != WITHOUT_RINGS.get() => {
            eprintln!("skipped {test}: {}", device.notes.join(", "));
            None
        }
        Ok(device) => {
            device.notes.iter().for_each(|note| eprintln!("{test}: {note}"));
            Some(Ok(device))
        }
        refused => Some(refused),
    }
}
