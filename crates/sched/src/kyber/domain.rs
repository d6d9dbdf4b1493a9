//! The kinds of I/O that are limited apart, what is fixed about each, and where each has its tokens, counters and
//! values.

use super::latency::{BUCKETS, FINE};
use blkmq_core::{Instant, Nanos, Op};

/// A kind of I/O; its number is that of its pool of tokens (`spec/kyber.md` section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Domain {
    Read = 0,
    /// Sync and async alike.
    Write = 1,
    Discard = 2,
    /// Everything else. Neither measured nor resized.
    Other = 3,
}

/// Domains in all.
pub(super) const DOMAINS: usize = Domain::ALL.len();
/// Domains whose latencies are measured.
pub(super) const MEASURED: usize = Domain::MEASURED.len();

/// Tokens of each domain at first; without `adaptive` also at most.
pub(super) const DEPTHS: [u32; DOMAINS] = [256, 128, 64, 16];

/// The target of discards, which nobody can set.
pub(super) const DISCARD_TARGET: Nanos = Nanos::from_secs(5);

impl Domain {
    /// In the order in which they take turns.
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Other];
    /// Those with a latency target.
    pub(super) const MEASURED: [Self; 3] = [Self::Read, Self::Write, Self::Discard];

    pub(super) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush | Op::WriteZeroes => Self::Other,
        }
    }

    /// Whose turn is next.
    pub(super) const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % DOMAINS]
    }

    /// Is it one of those that make room for reads?
    pub(super) const fn makes_room(self) -> bool {
        matches!(self, Self::Write | Self::Discard)
    }

    /// Requests in a turn.
    pub(super) const fn batch(self) -> u32 {
        match self {
            Self::Read => 16,
            Self::Write => 8,
            Self::Discard | Self::Other => 1,
        }
    }
}

/// Which latency.
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

/// The counter of a bucket of latencies, which are relative to the target.
pub(super) const fn bucket_counter(domain: usize, kind: Kind, bucket: usize) -> usize {
    (domain * Kind::ALL.len() + kind as usize) * BUCKETS + bucket
}

const FINE_FROM: usize = MEASURED * Kind::ALL.len() * BUCKETS;

/// The counter of a fine bucket of latencies at the device; only with `adaptive`, as all below.
pub(super) const fn fine_counter(domain: usize, bucket: usize) -> usize {
    FINE_FROM + domain * FINE + bucket
}

/// The counter of refused tokens.
pub(super) const fn refused_counter(domain: usize) -> usize {
    FINE_FROM + MEASURED * FINE + domain
}

/// The counter of completions of requests that were issued before the device was to be measured.
pub(super) const OLD_COUNTER: usize = FINE_FROM + MEASURED * FINE + MEASURED;

/// Counters in all.
pub(super) const COUNTERS: usize = OLD_COUNTER + 1;

/// The value that says since when requests are issued whose latency shows the unloaded device, in nanoseconds. The
/// values below are the targets of the measured domains. 0 when it is not being measured; that is before anything
/// was issued, so that no request is too old.
pub(super) const SINCE: usize = MEASURED;

/// The value that says how often those leave who make room for reads, in nanoseconds. 0: whenever there is a token.
pub(super) const PERIOD: usize = SINCE + 1;

/// The value that says until when nothing but reads leaves, in nanoseconds. 0 when they are not being measured.
pub(super) const ALONE_UNTIL: usize = PERIOD + 1;

/// Values in all.
pub(super) const VALUES: usize = ALONE_UNTIL + 1;

/// A [`SINCE`] after everything that is issued.
pub(super) const NOT_YET: u64 = Instant::MAX.as_nanos();
