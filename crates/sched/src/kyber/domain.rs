//! The kinds of I/O that are limited separately, their constants, and the numbers of their tokens, counters and
//! values.

use super::latency::{BUCKETS, FINE};
use blkmq_core::{Instant, Nanos, Op};

/// A kind of I/O; its number is that of its token pool (`spec/kyber.md` section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Domain {
    Read = 0,
    /// Sync and async alike.
    Write = 1,
    Discard = 2,
    /// All other operations. Neither measured nor resized.
    Other = 3,
}

/// The number of domains.
pub(super) const DOMAINS: usize = Domain::ALL.len();
/// The number of domains with measured latencies.
pub(super) const MEASURED: usize = Domain::MEASURED.len();

/// Initial tokens of each domain; without `adaptive` also the maximum.
pub(super) const DEPTHS: [u32; DOMAINS] = [256, 128, 64, 16];

/// The target of discards, which cannot be set.
pub(super) const DISCARD_TARGET: Nanos = Nanos::from_secs(5);

impl Domain {
    /// In the order in which they take turns.
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Other];
    /// The domains with a latency target.
    pub(super) const MEASURED: [Self; 3] = [Self::Read, Self::Write, Self::Discard];

    pub(super) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush | Op::WriteZeroes => Self::Other,
        }
    }

    /// The domain that has the next turn.
    pub(super) const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % DOMAINS]
    }

    /// Returns whether this domain makes room for reads.
    pub(super) const fn makes_room(self) -> bool {
        matches!(self, Self::Write | Self::Discard)
    }

    /// The number of requests in a turn.
    pub(super) const fn batch(self) -> u32 {
        match self {
            Self::Read => 16,
            Self::Write => 8,
            Self::Discard | Self::Other => 1,
        }
    }
}

/// A kind of latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// From the arrival of the oldest part to completion.
    Total = 0,
    /// From leaving the scheduler to completion.
    Device = 1,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Total, Self::Device];
}

/// The counter of a latency bucket; buckets are relative to the target.
pub(super) const fn bucket_counter(domain: usize, kind: Kind, bucket: usize) -> usize {
    (domain * Kind::ALL.len() + kind as usize) * BUCKETS + bucket
}

const FINE_FROM: usize = MEASURED * Kind::ALL.len() * BUCKETS;

/// The counter of a fine bucket of device latency; like all counters below, only with `adaptive`.
pub(super) const fn fine_counter(domain: usize, bucket: usize) -> usize {
    FINE_FROM + domain * FINE + bucket
}

/// The counter of refused tokens.
pub(super) const fn refused_counter(domain: usize) -> usize {
    FINE_FROM + MEASURED * FINE + domain
}

/// The counter of completions of requests that were issued before the measurement of the device began.
pub(super) const OLD_COUNTER: usize = FINE_FROM + MEASURED * FINE + MEASURED;

/// The number of counters.
pub(super) const COUNTERS: usize = OLD_COUNTER + 1;

/// The value that holds the start of the measurement, in nanoseconds: the latencies of requests issued since then
/// show the unloaded device. The values below this index are the targets of the measured domains. 0 when no
/// measurement is under way; that is before any request was issued, so that no request counts as too old.
pub(super) const SINCE: usize = MEASURED;

/// The value that holds the period of the bursts of the domains that make room for reads, in nanoseconds. 0: they
/// leave whenever there is a token.
pub(super) const PERIOD: usize = SINCE + 1;

/// The value that holds the time until which only reads leave, in nanoseconds. 0 when reads are not being measured.
pub(super) const ALONE_UNTIL: usize = PERIOD + 1;

/// The number of values.
pub(super) const VALUES: usize = ALONE_UNTIL + 1;

/// A [`SINCE`] later than the issue of any request.
pub(super) const NOT_YET: u64 = Instant::MAX.as_nanos();
