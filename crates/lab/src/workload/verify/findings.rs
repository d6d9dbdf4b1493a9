//! What verification found: how much was compared, how many blocks were wrong, and how the first one was.

use super::Method;
use std::fmt;

/// What a thread has verified so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Bytes that were compared with what was written, wrong ones included.
    pub verified: u64,
    /// Blocks that were wrong.
    pub errors: u64,
    /// The first of them.
    pub first: Option<Mismatch>,
}

/// A block that is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Its first byte on the device.
    pub offset: u64,
    /// Its number in the thread's region, from 0.
    pub block: u64,
    /// Its length in bytes.
    pub len: u32,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a block. `expected` is what a right one has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It does not begin as a header does.
    NoHeader {
        /// The first four bytes.
        expected: u32,
        /// The first four bytes.
        found: u32,
    },
    /// The checksum of the header.
    Header {
        /// Of the bytes that are there.
        expected: u32,
        /// As stored.
        found: u32,
    },
    /// Written with another `verify`; `None` for none that is known.
    Method {
        /// This job's.
        expected: Method,
        /// As stored.
        found: Option<Method>,
    },
    /// Written with another `verify_interval`, in bytes.
    Length {
        /// This job's.
        expected: u32,
        /// As stored.
        found: u32,
    },
    /// It belongs elsewhere: the offset, in bytes.
    Offset {
        /// Where it was read.
        expected: u64,
        /// As stored.
        found: u64,
    },
    /// Which write of this block it is, from 1.
    Generation {
        /// The latest.
        expected: u32,
        /// As stored.
        found: u32,
    },
    /// What it was filled from; another `randseed` makes another one.
    Seed {
        /// Of this block and generation.
        expected: u64,
        /// As stored.
        found: u64,
    },
    /// The checksum of the data.
    Checksum {
        /// Which write of this block it is.
        generation: u32,
        /// As stored.
        expected: u64,
        /// Of the bytes that are there.
        found: u64,
    },
    /// A byte of a pattern.
    Pattern {
        /// Its place in the block.
        at: u32,
        /// As the pattern has it.
        expected: u8,
        /// As it was read.
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
