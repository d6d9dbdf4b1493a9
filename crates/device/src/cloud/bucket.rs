//! A limit on a rate, with credits for bursts: one for I/Os, one for bytes.
//!
//! A token bucket in front of the disk: tokens drip in at the present rate, the bucket holds those of a short time,
//! and a request passes when there are tokens for all of it. Credits only raise the rate.

use blkmq_core::{Instant, Nanos};

const SECOND: u128 = 1_000_000_000;

/// The allowance: a rate that lasts, and a higher one while there are credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// Units per second that may be used for ever, and that credits grow by while they are not.
    pub rate: u64,
    /// Units per second while there are credits; not below `rate`.
    pub burst: u64,
    /// Units that are saved up at most; 0 for no bursts.
    pub credits: u64,
}

/// The state of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    allowed: Allowance,
    /// The time's worth of tokens that the bucket holds.
    depth: Nanos,
    /// The time at which the tokens of all requests so far have dripped in.
    free: Instant,
    /// Units saved, times a second in nanoseconds, at the time `counted`.
    saved: u128,
    counted: Instant,
}

impl Bucket {
    /// Full, and with all its credits.
    pub(super) fn new(allowed: Allowance, depth: Nanos) -> Self {
        let saved = u128::from(allowed.credits) * SECOND;
        Self { allowed, depth, free: Instant::ZERO, saved, counted: Instant::ZERO }
    }

    /// The time at which a request of `units` that arrives at `now` has passed, behind all earlier ones.
    pub(super) fn pass(&mut self, now: Instant, units: u64) -> Instant {
        let begin = self.free.max(now);
        let grown = u128::from(begin.since(self.counted).0) * u128::from(self.allowed.rate);
        let most = u128::from(self.allowed.credits) * SECOND;
        self.saved = (self.saved + grown).min(most);
        self.counted = begin;
        let wanted = u128::from(units) * SECOND;
        let bursts = self.saved >= wanted && self.allowed.credits > 0;
        let rate = if bursts { self.allowed.burst } else { self.allowed.rate };
        let takes = (wanted / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 1));
        self.free = begin + Nanos(takes as u64);
        if bursts {
            self.saved -= wanted;
        } else {
            // A request uses the credits that grow while it passes at the lasting rate.
            self.counted = self.free;
        }
        self.free.saturating_sub(self.depth).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000);

    /// Seconds, rounded, in which `units` pass one by one.
    fn seconds(bucket: &mut Bucket, units: u64) -> u64 {
        let mut last = START;
        (0..units).for_each(|_| last = bucket.pass(START, 1));
        (last.since(START).0 + 500_000_000) / 1_000_000_000
    }

    #[test]
    fn without_credits_the_rate_is_the_rate() {
        let mut bucket = Bucket::new(Allowance { rate: 100, burst: 100, credits: 0 }, Nanos::ZERO);
        assert_eq!(seconds(&mut bucket, 1_000), 10);
    }

    #[test]
    fn a_full_bucket_lets_pass_what_it_holds() {
        let allowed = Allowance { rate: 100, burst: 100, credits: 0 };
        let mut bucket = Bucket::new(allowed, Nanos::from_millis(50));
        let waits: Vec<u64> =
            (0..8).map(|_| bucket.pass(START, 1).since(START).0 / 1_000_000).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 10, 20, 30]);
    }

    #[test]
    fn a_burst_lasts_until_the_credits_are_used_and_comes_back_with_rest() {
        // 900 credits at 400 a second, while 100 a second grow again: three seconds, and 1200 I/Os.
        let allowed = Allowance { rate: 100, burst: 400, credits: 900 };
        let mut bucket = Bucket::new(allowed, Nanos::ZERO);
        assert_eq!(seconds(&mut bucket, 1_200), 3);
        assert_eq!(seconds(&mut bucket, 1_000), 13);
        // After nine seconds of rest, all credits are there again.
        let rested = bucket.free + Nanos::from_secs(9);
        let mut last = rested;
        (0..400).for_each(|_| last = bucket.pass(rested, 1));
        assert_eq!(last.since(rested), Nanos::from_secs(1));
    }
}
