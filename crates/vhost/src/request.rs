//! The requests of virtio-blk: a header of 16 bytes, data, and a byte for the status.
//!
//! Version 1 of virtio allows any division into descriptors, so a header is gathered from as many as it has.

use crate::config::SECTOR;
use crate::memory::Memory;
use crate::ring::{Chain, RingError};

/// The length in bytes of a header, and of the range of a discard or a write of zeroes.
pub const HEADER: usize = 16;
const ID: u64 = 20;
const RANGE: usize = 16;
/// The flag of a write of zeroes that may deallocate.
const UNMAP: u32 = 1;

/// The status of a request, as the driver reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request has succeeded.
    Ok = 0,
    /// The request has failed, or is impossible.
    IoError = 1,
    /// The disk does not support the request.
    Unsupported = 2,
}

/// A request. Offsets and lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Reads into the data.
    Read {
        /// The first byte.
        at: u64,
        /// The length.
        len: u64,
    },
    /// Writes the data.
    Write {
        /// The first byte.
        at: u64,
        /// The length.
        len: u64,
    },
    /// Makes completed writes durable.
    Flush,
    /// Returns the name of the disk.
    GetId,
    /// Discards a range.
    Discard {
        /// The first byte.
        at: u64,
        /// The length.
        len: u64,
    },
    /// Zeroes a range.
    WriteZeroes {
        /// The first byte.
        at: u64,
        /// The length.
        len: u64,
        /// Whether the range must stay allocated.
        no_hole: bool,
    },
}

/// A request with its priority in the format of Linux's `ioprio`: the class in bits 13 to 15 and the level in bits 0 to
/// 2. Drivers of other systems send 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The request, or the status with which it must be refused.
    pub request: Result<Request, Status>,
    /// The priority.
    pub ioprio: u16,
}

/// Parses the request of a chain.
///
/// # Errors
/// If the header is incomplete, or the byte for the status is missing.
pub fn parse(chain: &Chain, memory: &Memory) -> Result<Asked, RingError> {
    let mut header = [0; HEADER];
    if !chain.read(memory, 0, &mut header) || chain.writable() == 0 {
        return Err(RingError::Request);
    }
    let number = |at: usize| -> [u8; 4] { header[at..at + 4].try_into().expect("four bytes") };
    let (kind, ioprio) = (u32::from_le_bytes(number(0)), u32::from_le_bytes(number(4)));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    let (out, into) = (chain.readable() - HEADER as u64, chain.writable() - 1);
    let at = sector.checked_mul(SECTOR).ok_or(Status::IoError);
    let whole = |len: u64| {
        let is_whole = len > 0 && len.is_multiple_of(SECTOR);
        if is_whole { Ok(len) } else { Err(Status::IoError) }
    };
    let request = match kind {
        0 => at.and_then(|at| Ok(Request::Read { at, len: whole(into)? })),
        1 => at.and_then(|at| Ok(Request::Write { at, len: whole(out)? })),
        4 => Ok(Request::Flush),
        8 if into >= ID => Ok(Request::GetId),
        8 => Err(Status::IoError),
        11 | 13 => range(chain, memory, out).and_then(|(at, len, flags)| match (kind, flags) {
            (11, 0) => Ok(Request::Discard { at, len }),
            (13, 0 | UNMAP) => Ok(Request::WriteZeroes { at, len, no_hole: flags == 0 }),
            _ => Err(Status::Unsupported),
        }),
        _ => Err(Status::Unsupported),
    };
    // Linux's priorities have 16 bits.
    Ok(Asked { request, ioprio: ioprio as u16 })
}

/// Reads the range of a discard or a write of zeroes: first byte, length, flags. The disk announces one range for each
/// request.
fn range(chain: &Chain, memory: &Memory, len: u64) -> Result<(u64, u64, u32), Status> {
    let mut bytes = [0; RANGE];
    if len != RANGE as u64 || !chain.read(memory, HEADER as u64, &mut bytes) {
        return Err(Status::IoError);
    }
    let sector = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (sectors, flags) = (u64::from(number(8)), number(12));
    let at = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    Ok((at, sectors * SECTOR, flags))
}

/// Writes the status of a request. Returns the number of bytes written into guest memory: `data` and the status. If the
/// driver has removed the memory of the status, the status is lost.
#[must_use]
pub fn answer(chain: &Chain, memory: &Memory, status: Status, data: u64) -> u32 {
    let at = chain.writable() - 1;
    if chain.write(memory, at, &[status as u8]) {
        u32::try_from(data + 1).unwrap_or(u32::MAX)
    } else {
        0
    }
}
