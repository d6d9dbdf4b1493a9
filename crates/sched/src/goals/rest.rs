//! The rest of an infeasible goal, and the signs that it is feasible again.
//!
//! While a goal rests, nothing is taken for it, and its I/Os show the device uncontrolled. If the slow ones become much
//! faster than they usually were in this rest, the device or a neighbour has changed, and the goal is tried again. The
//! mean is no sign: a device that answers some I/Os late does as many of them, and has a queue that is as much shorter.
//! Without a sign the goal is tried again after a time that doubles with each failure, and halves with each minute in
//! which the goal is kept.
//!
//! The neighbours keep a part of what the device usually does. A cache that takes a burst makes that seem more than the
//! device can do, so hardly anything was left to take. If the device then does less than a quarter of that, the goal is
//! tried again, after a time that doubles with each such trial.

use blkmq_core::{Instant, Nanos};

/// The shortest rest, whatever the signs.
const LEAST: Nanos = Nanos::from_secs(5);
/// The time after the begin of a rest in which I/Os are ignored: they still show the effect of taking.
const SETTLES: Nanos = Nanos::from_secs(3);
/// A goal is tried again if the device does less than this part of the assumed cost a second: others kept most of it.
const LESS: u64 = 4;
/// The time without a sign until the first trial, and the longest until a later one.
const FIRST: Nanos = Nanos::from_secs(120);
const LONGEST: Nanos = Nanos::from_secs(960);
/// The next rest of a goal is half as long for each such time for which it is kept.
const KEPT: Nanos = Nanos::from_secs(60);
/// A percentile is taken over at least this time and so many I/Os.
const SPELL: Nanos = Nanos::from_secs(1);
const ENOUGH: u32 = 5;
/// The number of good percentiles in a row that are a sign.
const SIGNS: u8 = 3;
/// The usual percentile changes by this part of the difference to the last one.
const SLOWLY: u64 = 8;

pub(super) struct Rest {
    /// The length of the next rest without a sign.
    length: Nanos,
    began: Instant,
    until: Instant,
    /// The I/Os since the time `since`, and the largest percentile of a window.
    seen: (u32, Nanos),
    since: Instant,
    /// The usual percentile in this rest, as a moving mean; zero before the first.
    usual: Nanos,
    /// Good percentiles in a row.
    good: u8,
    /// The percentile at the sign for the last trial. The next sign has to be below half of it.
    tried: Option<Nanos>,
    /// The usual cost a second of the device at the begin of the rest, of which others kept a part.
    assumed: u64,
    /// The shortest rest before a trial because the device does less.
    doubt: Nanos,
    /// The time since which the goal is kept.
    kept: Option<Instant>,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            length: FIRST,
            began: Instant::ZERO,
            until: Instant::ZERO,
            seen: (0, Nanos::ZERO),
            since: Instant::ZERO,
            usual: Nanos::ZERO,
            good: 0,
            tried: None,
            assumed: 0,
            doubt: LEAST,
            kept: None,
        }
    }
}

impl Rest {
    /// Begins a rest, after a trial that left others a part of the cost `usual` a second.
    pub(super) fn begin(&mut self, now: Instant, usual: u64) {
        self.assumed = usual;
        (self.began, self.until) = (now, now + self.length);
        self.length = Nanos((2 * self.length.0).min(LONGEST.0));
        // The first seconds still show the effect of taking.
        (self.since, self.seen) = (now + SETTLES, (0, Nanos::ZERO));
        (self.usual, self.good, self.kept) = (Nanos::ZERO, 0, None);
    }

    /// Counts a window in which the goal was met, or had no I/O.
    pub(super) fn keeps(&mut self, now: Instant) {
        let since = *self.kept.get_or_insert(now);
        if now.since(since) >= KEPT {
            self.kept = Some(now);
            (self.tried, self.doubt) = (None, LEAST);
            self.length = Nanos((self.length.0 / 2).max(FIRST.0));
        }
    }

    /// Counts a window in which the goal was missed.
    pub(super) fn breaks(&mut self) {
        self.kept = None;
    }

    /// Counts a window of a resting goal: the I/Os that ended, their percentile, the goal, and the usual cost a second
    /// of the device. Returns whether the goal is tried again.
    pub(super) fn is_over(
        &mut self,
        now: Instant,
        (ios, p99): (u32, Nanos),
        (goal, usual): (Nanos, u64),
    ) -> bool {
        if now >= self.until {
            self.tried = None;
            return true;
        }
        if now.since(self.began) >= self.doubt && usual < self.assumed / LESS {
            self.doubt = Nanos((2 * self.doubt.0).min(LONGEST.0));
            return true;
        }
        if now < self.since {
            return false;
        }
        self.seen = (self.seen.0 + ios, self.seen.1.max(p99));
        if now.since(self.since) < SPELL || self.seen.0 < ENOUGH {
            return false;
        }
        let (_, p99) = self.seen;
        (self.since, self.seen) = (now, (0, Nanos::ZERO));
        let is_new = self.tried.is_none_or(|tried| p99.0 < tried.0 / 2);
        let is_good = is_new && (p99.0 < self.usual.0 / 2 || p99 <= goal);
        self.good = if is_good { self.good + 1 } else { 0 };
        self.usual = match self.usual {
            Nanos::ZERO => p99,
            usual => Nanos(usual.0 - usual.0 / SLOWLY + p99.0 / SLOWLY),
        };
        if self.good >= SIGNS && now.since(self.began) >= LEAST {
            self.tried = Some(p99);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Nanos = Nanos::from_millis(6);
    const RATE: u64 = 1_000_000;

    /// Begins a rest at the second `from`, with percentiles of `of(second)` ms. Returns the second of its end.
    fn over(rest: &mut Rest, from: u64, of: impl Fn(u64) -> u64) -> u64 {
        let at = |tenth: u64| Instant::from_nanos(tenth * 100_000_000);
        rest.begin(at(from * 10), RATE);
        let mut tenths = (from * 10 + 1)..;
        let ends = |tenth: &u64| {
            rest.is_over(at(*tenth), (2, Nanos::from_millis(of(tenth / 10))), (GOAL, RATE))
        };
        tenths.find(ends).expect("it ends") / 10
    }

    #[test]
    fn it_ends_soon_after_the_device_is_as_before() {
        let mut rest = Rest::default();
        for spell in 0..10 {
            let from = spell * 100;
            let healthy = from + 20;
            let ends = over(&mut rest, from, |at| if at < healthy { 190 } else { 48 });
            assert!((healthy + 1..=healthy + 3).contains(&ends), "{spell}: {ends}");
            (0..70).for_each(|at| rest.keeps(Instant::from_nanos((ends + at) * 1_000_000_000)));
        }
    }

    #[test]
    fn it_ends_for_a_device_that_does_a_quarter_of_what_was_assumed() {
        let mut rest = Rest::default();
        let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);
        let slow = (100, Nanos::from_millis(90));
        rest.begin(at(0), 5 * RATE);
        assert!(!rest.is_over(at(4), slow, (GOAL, RATE)), "too soon");
        assert!(!rest.is_over(at(5), slow, (GOAL, 2 * RATE)));
        assert!(rest.is_over(at(6), slow, (GOAL, RATE)));
        rest.begin(at(10), 5 * RATE);
        assert!(!rest.is_over(at(19), slow, (GOAL, RATE)), "such trials are ever fewer");
        assert!(rest.is_over(at(20), slow, (GOAL, RATE)));
    }

    #[test]
    fn without_a_sign_it_is_longer_each_time_and_shorter_with_each_minute_kept() {
        let mut rest = Rest::default();
        let mut from = 0;
        for length in [120, 240, 480, 960, 960] {
            let ends = over(&mut rest, from, |at| 40 + at % 30);
            assert_eq!(ends - from, length);
            from = ends;
        }
        (0..=120).for_each(|at| rest.keeps(Instant::from_nanos((from + at) * 1_000_000_000)));
        assert_eq!(over(&mut rest, from + 120, |_| 40), from + 120 + 240);
    }

    #[test]
    fn a_sign_that_misled_does_not_do_so_again() {
        let mut rest = Rest::default();
        let quiet = |at: u64| if at % 20 < 10 { 100 } else { 20 };
        let first = over(&mut rest, 0, quiet);
        assert!(first < 20, "{first}");
        assert_eq!(over(&mut rest, 20, quiet), 20 + 240, "the rest without a sign");
    }
}
