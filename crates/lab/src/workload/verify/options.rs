//! The options of a job that verifies, and their errors.

use super::Pattern;
use blkmq_core::SECTOR_SIZE;
use std::fmt;

/// How a block shows that it holds the data written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// A header, and in it a CRC-32C of the rest (`crc32c`).
    Crc32c,
    /// A header, and in it an XXH64 of the rest (`xxhash`).
    Xxhash,
    /// A header, and behind it an MD5 of the rest (`md5`).
    Md5,
    /// A header, and behind it a SHA-256 of the rest (`sha256`).
    Sha256,
    /// A header, and no check of the rest (`meta`).
    Meta,
    /// No header: the whole block is `verify_pattern` (`pattern`). An older write cannot be distinguished from the
    /// latest.
    Pattern,
    /// All of the work except filling and comparing (`null`).
    Null,
}

impl Method {
    /// Each method with fio's words for it; the first is the one to print.
    pub const NAMES: [(Self, &'static [&'static str]); 7] = [
        (Self::Crc32c, &["crc32c", "crc32c-intel"]),
        (Self::Xxhash, &["xxhash"]),
        (Self::Md5, &["md5"]),
        (Self::Sha256, &["sha256"]),
        (Self::Meta, &["meta"]),
        (Self::Pattern, &["pattern"]),
        (Self::Null, &["null"]),
    ];

    /// The method called `word`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(_, words)| words.contains(&word));
        found.map(|(method, _)| *method)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(method, _)| method == self);
        f.pad(found.expect("every method has a name").1[0])
    }
}

/// The verification of a job. Fields carry the names of fio's options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verify {
    /// `verify`.
    pub method: Method,
    /// `verify_pattern`: the pattern that fills blocks; `None` is bytes drawn from a seed.
    pub pattern: Option<Pattern>,
    /// `verify_interval`: bytes in a block; `None` is the largest that divides every I/O of the job.
    pub interval: Option<u32>,
    /// `do_verify`: read the written blocks back.
    pub do_verify: bool,
    /// `verify_fatal`: the first mismatch ends the job.
    pub fatal: bool,
    /// `verify_backlog`: the number of writes after which they are read back; 0 reads back at the end.
    pub backlog: u32,
    /// `verify_only`: write nothing; check the blocks that an earlier run of the same job has written.
    pub only: bool,
    /// `verify_state_save`: keep the state of each block for a later run.
    pub state_save: bool,
    /// `verify_state_load`: with `only`, check the blocks against the state saved by an earlier run.
    pub state_load: bool,
}

impl Verify {
    /// `method` with all other options at fio's defaults.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self {
            method,
            pattern: None,
            interval: None,
            do_verify: true,
            fatal: false,
            backlog: 0,
            only: false,
            state_save: false,
            state_load: false,
        }
    }
}

/// A job that cannot be verified as asked. Messages name fio's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// `verify_interval` does not divide every I/O.
    #[error(
        "verify_interval={interval}; accepted are multiples of {SECTOR_SIZE} that divide {unit}, \
         which is what all block sizes have in common"
    )]
    Interval {
        /// Bytes, as given.
        interval: u32,
        /// Bytes that divide every I/O of the job.
        unit: u32,
    },
    /// `verify=pattern` without `verify_pattern`.
    #[error("verify=pattern needs a verify_pattern, such as 0xdeadbeef")]
    NoPattern,
    /// A job that only trims.
    #[error("verify of a job that only trims; accepted: one that reads or writes")]
    OnlyTrims,
    /// `verify_only` of a job that writes nothing.
    #[error(
        "verify_only repeats the writes of a job in thought, and this one has none; a job that \
         reads needs no more than verify"
    )]
    OnlyReads,
    /// `verify_only` of a job that ends by the clock.
    #[error(
        "verify_only of a job that ends by the clock, so that nobody knows what it has written; \
         accepted: without runtime, or with verify_state_load"
    )]
    Timed,
    /// `verify_only` of a job that does not read either.
    #[error("verify_only with do_verify=0; accepted: one of the two")]
    Nothing,
    /// `verify_state_load` of a job that writes.
    #[error(
        "verify_state_load without verify_only; accepted: both, or a job that reads, to check what the same \
         job has written with verify_state_save"
    )]
    StateOfWriter,
}
