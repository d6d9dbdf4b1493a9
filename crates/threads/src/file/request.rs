//! [`Request`]: a request to a file, and its system calls. All `unsafe` of this crate is here.

use crate::{Source, Step, Work};
use blkmq_buf::IoBuf;
use blkmq_core::{IoError, IoFlags, IoResult, Op, SECTOR_SIZE};
use blkmq_engine::{BioTable, Inflight};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The answer of a read-only device to every operation that would change it.
pub(super) const READ_ONLY: IoError = IoError(30);
/// The capacity, in pieces of memory (16 bytes each), that the list of a free request keeps.
const KEPT: usize = 64;

/// The work for one request to a file.
pub(super) struct Request {
    rq: Option<Inflight>,
    op: Op,
    is_durable: bool,
    /// The offset in the file, in bytes.
    at: u64,
    /// The memory, in file order.
    pieces: Vec<*mut [u8]>,
}

// SAFETY: the pointers lead to payloads of the I/O that `rq` stands for. A thread reaches them only while it holds the
// request, and payloads may be sent between threads.
unsafe impl Send for Request {}

/// Creates the work of a file.
pub(super) struct Requests {
    pub(super) readonly: bool,
}

impl Source for Requests {
    type Work = Request;

    fn blank(&self) -> Request {
        Request { rq: None, op: Op::Flush, is_durable: false, at: 0, pieces: Vec::new() }
    }

    fn begin<P: IoBuf>(&self, work: &mut Request, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        if self.readonly && rq.op().is_write() {
            return Err(READ_ONLY);
        }
        (work.op, work.is_durable) = (rq.op(), rq.flags().contains(IoFlags::FUA));
        work.at = rq.sector() * u64::from(SECTOR_SIZE);
        work.pieces.clear();
        match rq.op() {
            Op::Flush => return Ok(()),
            Op::Read | Op::Write => {}
            Op::Discard | Op::WriteZeroes => return Err(IoError::NOT_SUPPORTED),
        }
        for bio in rq.bios(bios) {
            let from = work.pieces.len();
            work.pieces.extend(bio.payload.ranges().filter(|range| range.len() > 0));
            let bytes: usize = work.pieces[from..].iter().map(|range| range.len()).sum();
            if bytes as u64 != u64::from(bio.sectors) * u64::from(SECTOR_SIZE) {
                return Err(IoError::INVALID);
            }
        }
        Ok(())
    }
}

impl Work for Request {
    type Files = Arc<File>;

    fn token(&self) -> Option<&Inflight> {
        self.rq.as_ref()
    }

    fn token_mut(&mut self) -> &mut Option<Inflight> {
        &mut self.rq
    }

    fn perform(&mut self, file: &Arc<File>) -> Step {
        assert!(self.rq.is_some(), "a request without its token");
        let done = self.call(file);
        Step::Done(done.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => IoError::NO_SPACE,
            _ => IoError::IO,
        }))
    }

    fn rest(&mut self) {
        self.pieces.clear();
        self.pieces.shrink_to(KEPT);
    }
}

impl Request {
    fn call(&self, file: &File) -> io::Result<()> {
        let mut at = self.at;
        for piece in &self.pieces {
            // SAFETY: the piece belongs to a payload of the I/O whose token is in `self` (`perform` has checked). Until
            // the token is back in the engine, the bytes stay in place and only this device reaches them. `IoBuf`
            // promises both, and that the ranges do not overlap; `begin` has left out empty ranges.
            // that the ranges do not overlap; `begin` has left out empty ones.
            let bytes = unsafe { &mut **piece };
            match self.op {
                Op::Read => read(file, bytes, at)?,
                _ => write(file, bytes, at)?,
            }
            at += bytes.len() as u64;
        }
        if self.op == Op::Flush || self.is_durable { file.sync_data() } else { Ok(()) }
    }
}

/// Reads all of `bytes`.
fn read(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match read_at(file, bytes, at) {
            // The file was truncated.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(done) => {
                bytes = &mut bytes[done..];
                at += done as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
fn write(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match write_at(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(done) => {
                bytes = &bytes[done..];
                at += done as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, at)
}
