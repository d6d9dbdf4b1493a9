//! The results of verification: the number of bytes compared, the number of wrong blocks, and the first wrong block.

use super::Method;
use std::fmt;

/// The results of a thread's verification so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Bytes that were compared with the expected data, wrong ones included.
    pub verified: u64,
    /// Wrong blocks.
    pub errors: u64,
    /// The first wrong block.
    pub first: Option<Mismatch>,
}

/// A block that does not hold the data written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Its first byte on the device.
    pub offset: u64,
    /// Its number in the thread's region, from 0.
    pub block: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The fault.
    pub fault: Fault,
}

/// The fault of a block. `expected` is the value in a right block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The block does not begin with a header.
    NoHeader {
        /// The first four bytes of a header.
        expected: u32,
        /// The first four bytes of the block.
        found: u32,
    },
    /// The checksum of the header is wrong.
    Header {
        /// The checksum of the bytes read.
        expected: u32,
        /// The stored checksum.
        found: u32,
    },
    /// The block was written with another `verify`; `None` for an unknown one.
    Method {
        /// The method of this job.
        expected: Method,
        /// The stored method.
        found: Option<Method>,
    },
    /// The block was written with another `verify_interval`, in bytes.
    Length {
        /// The interval of this job.
        expected: u32,
        /// The stored length.
        found: u32,
    },
    /// The block belongs to another offset, in bytes.
    Offset {
        /// The offset at which it was read.
        expected: u64,
        /// The stored offset.
        found: u64,
    },
    /// The block is of another write: the number of the write of this block, from 1.
    Generation {
        /// The latest write.
        expected: u32,
        /// The stored number.
        found: u32,
    },
    /// The seed of the data is wrong; it depends on `randseed`.
    Seed {
        /// The seed for this block and generation.
        expected: u64,
        /// The stored seed.
        found: u64,
    },
    /// The checksum of the data is wrong.
    Checksum {
        /// The number of the write of this block.
        generation: u32,
        /// The stored checksum.
        expected: u64,
        /// The checksum of the bytes read.
        found: u64,
    },
    /// A byte of a pattern is wrong.
    Pattern {
        /// Its offset in the block.
        at: u32,
        /// The byte of the pattern.
        expected: u8,
        /// The byte read.
        found: u8,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, block, len, fault } = self;
        write!(f, "offset {offset} (block {block} of {len} bytes): {fault}")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoHeader { expected, found } => {
                write!(f, "no header, expected {expected:#010x}, found {found:#010x}")
            }
            Self::Header { expected, found } => {
                write!(f, "checksum of the header, expected {expected:#010x}, found {found:#010x}")
            }
            Self::Method { expected, found } => {
                let found = found.map_or_else(|| "nothing known".into(), |m| m.to_string());
                write!(f, "verify, expected {expected}, found {found}")
            }
            Self::Length { expected, found } => {
                write!(f, "verify_interval, expected {expected}, found {found}")
            }
            Self::Offset { expected, found } => {
                write!(f, "a block from elsewhere, expected offset {expected}, found {found}")
            }
            Self::Generation { expected, found } => {
                let age = if found < expected { "an older write" } else { "another write" };
                write!(f, "{age}, expected generation {expected}, found {found}")
            }
            Self::Seed { expected, found } => {
                write!(f, "seed, expected {expected:#018x}, found {found:#018x}")
            }
            Self::Checksum { generation, expected, found } => write!(
                f,
                "checksum of generation {generation}, expected {expected:#x}, found {found:#x}"
            ),
            Self::Pattern { at, expected, found } => {
                write!(f, "byte {at} of the pattern, expected {expected:#04x}, found {found:#04x}")
            }
        }
    }
}
