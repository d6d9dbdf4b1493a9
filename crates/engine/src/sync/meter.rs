//! A rate that several threads keep to together: each I/O is given the time at which it may go.
//!
//! The word is the time at which the next one may go, in ticks of 2^-10 ns.
//!
//! | `free_at` | `reserve(now, cost)` |
//! |---|---|
//! | earlier than `now` less the slack | `free_at` = `now` less the slack, plus the cost; *you* go at once |
//! | in between | `free_at` + cost; *you* go at once |
//! | later than `now` | `free_at` + cost; *you* go when it was |
//!
//! Invariant: over any stretch of time, what is let go costs no more than the stretch, the slack and one I/O.
//!
//! Relaxed orderings are enough: nothing is handed over by this word, and each reservation is one
//! compare-and-exchange, so that no two get the same time. The slack makes up for threads that come late: time that
//! nobody used is not lost, up to so much.

use super::{AtomicU64, Ordering};
use blkmq_core::{Instant, Nanos};

/// Ticks in a nanosecond, as a power of two. Finer than a nanosecond, so that a million I/Os per second and more
/// are kept to within a thousandth; 2^64 of them are still 208 days.
const TICKS: u32 = 10;
/// Time that nobody used and that may be made up for.
pub(crate) const SLACK: Nanos = Nanos::from_millis(10);

/// A rate of something; without a limit at first.
pub(crate) struct Meter {
    /// Ticks that a unit costs, in 2^-20 of them; 0 without a limit.
    price: AtomicU64,
    free_at: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self { price: AtomicU64::new(0), free_at: AtomicU64::new(0) }
    }

    /// From now on so many units go in a second; `None` for any number. What was reserved before stands.
    pub(crate) fn set_rate(&self, rate: Option<u64>) {
        let second = u128::from(Nanos::from_secs(1).0) << (TICKS + 20);
        let price =
            |rate: u64| (second / u128::from(rate.max(1))).min(u64::MAX.into()).max(1) as u64;
        self.price.store(rate.map_or(0, price), Ordering::Relaxed);
    }

    /// Is there a limit?
    pub(crate) fn is_limited(&self) -> bool {
        self.price.load(Ordering::Relaxed) != 0
    }

    /// Has so many units go, from the time that it says, which is `now` or later.
    pub(crate) fn reserve(&self, now: Instant, units: u64) -> Instant {
        let price = self.price.load(Ordering::Relaxed);
        if price == 0 || units == 0 {
            return now;
        }
        let cost =
            ((u128::from(units) * u128::from(price)) >> 20).min(u128::from(u64::MAX >> 1)) as u64;
        let ticks = now.as_nanos() << TICKS;
        let least = ticks.saturating_sub(SLACK.0 << TICKS);
        let mut seen = self.free_at.load(Ordering::Relaxed);
        loop {
            let start = seen.max(least);
            let next = start.saturating_add(cost);
            match self.free_at.compare_exchange_weak(
                seen,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                // Rounded up: not a nanosecond too early.
                Ok(_) => return now.max(Instant::from_nanos(start.div_ceil(1 << TICKS))),
                Err(other) => seen = other,
            }
        }
    }

    /// Forgets what was reserved: for somebody else who is to keep to it from now on.
    pub(crate) fn reset(&self) {
        self.free_at.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// After a second of silence, so that the slack is full; the times are relative to that.
    const BEGIN: u64 = 1_000_000_000;

    #[test]
    fn without_a_limit_everything_goes_at_once() {
        let meter = Meter::new();
        assert!(!meter.is_limited());
        assert_eq!(meter.reserve(at(5), u64::MAX), at(5));
    }

    #[test]
    fn a_rate_is_kept_to_the_nanosecond_once_the_slack_is_used() {
        let meter = Meter::new();
        meter.set_rate(Some(1_000));
        let times: Vec<u64> =
            (0..40).map(|_| meter.reserve(at(BEGIN), 1).as_nanos() - BEGIN).collect();
        // Ten milliseconds are ten I/Os ahead of time, and the first one waits for nobody.
        assert!(times[..11].iter().all(|time| *time == 0), "{times:?}");
        for (n, time) in (1..).zip(&times[11..]) {
            assert!(time.abs_diff(n * 1_000_000) <= 1, "{n}: {time}");
        }
    }

    #[test]
    fn rates_of_millions_are_kept_to_a_thousandth() {
        for rate in [1_u64, 3, 999_983, 3_000_017, 40_000_000, 7_000_000_000] {
            let meter = Meter::new();
            meter.set_rate(Some(rate));
            let units = if rate > 1_000_000_000 { 4096 } else { 1 };
            // A fifth of a second at least, of which the slack is a twentieth.
            let ios = (rate / units / 5).max(1000);
            let mut last = at(BEGIN);
            for _ in 0..=ios {
                last = meter.reserve(last, units);
            }
            let took = u128::from(last.as_nanos() - BEGIN + SLACK.0);
            let wanted = u128::from(ios * units) * 1_000_000_000 / u128::from(rate);
            assert!(took.abs_diff(wanted) * 1000 <= wanted + 1000, "{rate}: {took} for {wanted}");
        }
    }

    #[test]
    fn nothing_overflows() {
        let meter = Meter::new();
        meter.set_rate(Some(1));
        assert_eq!(meter.reserve(at(BEGIN), u64::MAX), at(BEGIN));
        assert!(meter.reserve(at(BEGIN), u64::MAX) > at(u64::MAX >> 12));
        meter.reset();
        assert_eq!(meter.reserve(at(BEGIN), 1), at(BEGIN));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn no_two_get_the_same_time(reserve: fn(&Meter, Instant, u64) -> Instant) {
        loom::model(move || {
            let meter = Arc::new(Meter::new());
            meter.set_rate(Some(10));
            let other = {
                let meter = Arc::clone(&meter);
                thread::spawn(move || reserve(&meter, Instant::ZERO, 1))
            };
            let mine = reserve(&meter, Instant::ZERO, 1);
            let other = other.join().expect("nobody panics");
            assert_eq!(mine.max(other).as_nanos(), 100_000_000, "both go at once");
            assert_eq!(mine.min(other), Instant::ZERO);
        });
    }

    #[test]
    fn loom_no_two_get_the_same_time() {
        no_two_get_the_same_time(Meter::reserve);
    }

    #[test]
    #[should_panic(expected = "both go at once")]
    fn loom_planted_reserve_that_stores() {
        no_two_get_the_same_time(|meter, now, units| {
            let price = meter.price.load(Ordering::Relaxed);
            let start = meter.free_at.load(Ordering::Relaxed);
            meter.free_at.store(start + ((units * price) >> 20), Ordering::Relaxed);
            now.max(Instant::from_nanos(start >> TICKS))
        });
    }
}
