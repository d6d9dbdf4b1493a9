//! Test files, and a message where there is no io_uring.

#![allow(dead_code, reason = "each test file uses a part")]

use blkmq_buf::AlignedBuf;
use blkmq_core::{IoResult, Op};
use blkmq_engine::{BlockDevice, Config, Io};
use blkmq_runtime::{Client, Service};
use blkmq_sched::registry;
use blkmq_uring::{OpenError, UringDevice};
use std::path::{Path, PathBuf};

/// Bytes in the blocks that tests move.
pub const BLOCK: usize = 4096;
/// The same in sectors.
pub const SECTORS: u32 = BLOCK as u32 / 512;

/// A file for one test, removed afterwards.
pub struct TempFile(PathBuf);

impl TempFile {
    /// Creates the file with `bytes` zeroes; `name` is the test's.
    pub fn new(name: &str, bytes: u64) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("{name}-{}", std::process::id()));
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

/// `None`, and a line that names the test, if there is no io_uring here.
pub fn open(test: &str, text: &str) -> Option<Result<UringDevice, OpenError>> {
    match UringDevice::parse(text) {
        Err(e) if e.is_unavailable() => {
            eprintln!("skipped {test}: {e}");
            None
        }
        Ok(device) => {
            device.notes.iter().for_each(|note| eprintln!("{test}: {note}"));
            Some(Ok(device))
        }
        refused => Some(refused),
    }
}

/// A service around the device, with mq-deadline.
pub fn service(device: &UringDevice, submitters: u16) -> Service<AlignedBuf> {
    start(device.config().expect("rings can be made"), submitters)
}

pub fn start(config: Config<AlignedBuf>, submitters: u16) -> Service<AlignedBuf> {
    let scheduler = registry::find("mq-deadline").expect("registered");
    let config = Config { submitters, ..config.scheduler(scheduler) };
    Service::start(config).expect("a valid configuration")
}

/// Fills a block with a word.
pub fn fill(buf: &mut AlignedBuf, word: u64) {
    buf.as_mut_slice().chunks_exact_mut(8).for_each(|at| at.copy_from_slice(&word.to_le_bytes()));
}

pub fn is_filled(bytes: &[u8], word: u64) -> bool {
    bytes.chunks_exact(8).all(|at| at == word.to_le_bytes())
}

/// A new block filled with `word`.
pub fn block(word: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK);
    fill(&mut buf, word);
    buf
}

/// Does one I/O and waits for it.
pub fn call(client: &mut Client<AlignedBuf>, io: Io<AlignedBuf>) -> (IoResult, AlignedBuf) {
    let now = client.clock().now();
    client.push_at(now, io).expect("it is taken");
    let mut answer = None;
    client.wait(1, 1, |done| answer = Some((done.result, done.payload)));
    answer.expect("waited for it")
}

/// An I/O of block `n`.
pub fn io(op: Op, n: u64, payload: AlignedBuf) -> Io<AlignedBuf> {
    Io::new(op, n * u64::from(SECTORS), SECTORS, n, payload)
}
