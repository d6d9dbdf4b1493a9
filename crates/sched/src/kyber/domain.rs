//! The kinds of I/O that are limited separately: their constants, the numbers of their tokens, counters and values,
//! their latencies, and the findings of a review for the rule that adjusts tokens.
//!
//! Latencies are counted in buckets: the bucket of a latency, and the percentile of a set of buckets.

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
    /// All domains, in the order in which they take turns.
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

/// The value that holds the start of the measurement, in nanoseconds: the latencies of requests issued since then show
/// the unloaded device. It is 0 without a measurement, so that no request counts as too old. The values below this
/// index are the targets of the measured domains.
pub(super) const SINCE: usize = MEASURED;

/// The value that holds the period of the bursts of the domains that make room for reads, in nanoseconds; 0 if they
/// leave whenever there is a token.
pub(super) const PERIOD: usize = SINCE + 1;

/// The value that holds the time until which only reads leave, in nanoseconds; 0 unless reads are measured.
pub(super) const ALONE_UNTIL: usize = PERIOD + 1;

/// The number of values.
pub(super) const VALUES: usize = ALONE_UNTIL + 1;

/// A [`SINCE`] later than the issue of any request.
pub(super) const NOT_YET: u64 = Instant::MAX.as_nanos();

/// Buckets of a latency relative to its target. The lower half is good.
pub(super) const BUCKETS: usize = 8;
/// The first bad bucket.
pub(super) const BAD: usize = BUCKETS / 2;

/// The percentile judged of device latencies.
pub(super) const DEVICE_PERCENT: u64 = 90;

/// The bucket of a latency (`spec/kyber.md` section 4): quarters of the target, the last one open. Good ones are at
/// most the target.
#[inline]
pub(super) fn bucket(latency: u64, target: u64) -> usize {
    let width = (target / 4).max(1);
    if latency <= width {
        // The usual case, and it avoids a division.
        return 0;
    }
    ((latency - 1) / width).min(BUCKETS as u64 - 1) as usize
}

/// Fine buckets divide each power of two of latency into four, so that the upper end of a bucket is less than a
/// quarter above its lower end. The first four are 256 ns wide each, and the last one is open, from 60 s on.
pub(super) const FINE: usize = 108;

/// The unit of fine buckets is 2^8 ns.
const FINE_SHIFT: u32 = 8;

/// The fine bucket of a latency.
#[inline]
pub(super) fn fine(latency: u64) -> usize {
    let units = (latency >> FINE_SHIFT).min((1 << 28) - 1);
    if units < 4 {
        return units as usize;
    }
    let magnitude = units.ilog2();
    (magnitude as usize - 1) * 4 + (units >> (magnitude - 2) & 3) as usize
}

/// The largest latency of a fine bucket, in nanoseconds.
pub(super) fn fine_upper(bucket: usize) -> u64 {
    let (group, quarter) = (bucket / 4, bucket as u64 % 4);
    let units = if group == 0 { quarter + 1 } else { (quarter + 5) << (group - 1) };
    (units << FINE_SHIFT) - 1
}

/// The bucket of the sample at or below which `percent` of all samples lie; `None` if there are none. O(buckets).
pub(super) fn percentile(counts: &[u64], percent: u64) -> Option<usize> {
    let samples = total(counts);
    if samples == 0 {
        return None;
    }
    let mut rank = (u128::from(samples) * u128::from(percent)).div_ceil(100);
    let found = counts.iter().position(|count| {
        let hit = rank <= u128::from(*count);
        rank = rank.saturating_sub((*count).into());
        hit
    });
    Some(found.expect("the rank is at most the number of samples"))
}

/// The 90th percentile of the samples, to within a quarter. The unloaded and the loaded device are judged by the same
/// percentile, or a target might be out of reach at any depth.
pub(super) fn tail(window: &[u64]) -> Option<u64> {
    percentile(window, DEVICE_PERCENT).map(fine_upper)
}

/// The number of samples.
pub(super) fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// The findings of a review.
pub(super) struct Findings {
    /// A domain is too slow at the device.
    pub(super) bad: bool,
    /// The bucket of the 90th percentile of device latency, for domains with enough samples.
    pub(super) device: [Option<usize>; MEASURED],
    /// The bucket of the 99th percentile of total latency; from an earlier review if `bad`.
    pub(super) total: [Option<usize>; MEASURED],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_table() {
        let target = 2_000_000;
        let quarter = target / 4;
        let table = [
            (0, 0),
            (1, 0),
            (quarter, 0),
            (quarter + 1, 1),
            (2 * quarter, 1),
            (2 * quarter + 1, 2),
            (3 * quarter, 2),
            (3 * quarter + 1, 3),
            (target, 3),
            (target + 1, 4),
            (7 * quarter, 6),
            (7 * quarter + 1, 7),
            (u64::MAX, 7),
        ];
        for (latency, expected) in table {
            assert_eq!(bucket(latency, target), expected, "{latency}");
        }
    }

    #[test]
    fn a_target_of_nothing_has_buckets_of_a_nanosecond() {
        for target in 0..8 {
            let buckets = [0, 1, 2, 3, 7, 8, 9].map(|latency| bucket(latency, target));
            assert_eq!(buckets, [0, 0, 1, 2, 6, 7, 7], "{target}");
        }
    }

    #[test]
    fn fine_buckets_follow_each_other_and_are_a_quarter_wide_at_most() {
        assert_eq!([0, 255, 256, 1_023, 1_024].map(fine), [0, 0, 1, 3, 4]);
        for index in 0..FINE - 1 {
            let upper = fine_upper(index);
            assert_eq!((fine(upper), fine(upper + 1)), (index, index + 1));
            if index >= 4 {
                let lower = fine_upper(index - 1) + 1;
                assert!((upper + 1 - lower) * 4 <= lower, "bucket {index}");
            }
        }
        assert_eq!(fine(u64::MAX), FINE - 1);
        assert!(fine_upper(FINE - 1) > 60_000_000_000);
    }

    #[test]
    fn percentiles_round_the_rank_up() {
        let mut counts = [0; BUCKETS];
        assert_eq!(percentile(&counts, 99), None);
        counts[1] = 1;
        assert_eq!(percentile(&counts, 90), Some(1));
        // 90 % of 10 is rank 9, of 11 rank 10.
        counts = [9, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(percentile(&counts, 90), Some(0));
        counts[5] = 2;
        assert_eq!(percentile(&counts, 90), Some(5));
        assert_eq!(percentile(&counts, 99), Some(5));
        counts = [0, 0, 0, 0, 0, 0, 0, 3];
        assert_eq!(percentile(&counts, 50), Some(7));
    }
}
