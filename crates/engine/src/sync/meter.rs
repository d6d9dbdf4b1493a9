//! A rate that several threads keep to together: each I/O is given the time at which it may go.
//!
//! The word `free_at` is the time at which the next I/O may go, in nanoseconds. A word in the unit of [`Instant`]
//! holds every time that there is, so that no uptime is too long for it.
//!
//! | `free_at` | `reserve(now, cost)` |
//! |---|---|
//! | earlier than `now` less the slack | `free_at` = `now` less the slack, plus the cost; *you* go at once |
//! | in between | `free_at` + cost; *you* go at once |
//! | later than `now` | `free_at` + cost; *you* go at the old `free_at` |
//!
//! The cost of an I/O beyond whole nanoseconds is added up in a second word, the carry: an I/O costs a nanosecond
//! more if its fraction makes the carry overflow. So fast rates are kept to as exactly as slow ones. The carry is a
//! plain sum, and it does not matter which of two threads pays a nanosecond.
//!
//! Invariant: over any stretch of time, the I/Os let go cost no more than the stretch, the slack, one I/O and a
//! nanosecond.
//!
//! Relaxed orderings are enough: these words hand nothing over, and each reservation is one compare-and-exchange, so
//! that no two get the same time. Up to the slack, unused time is not lost: that makes up for threads that come late,
//! and a long slack is the credit of a burst. The price and the slack are settings of their own; a thread that sees
//! the new one of one and the old one of the other reserves a time that is right for one of the two settings or
//! between them.

use super::{AtomicU64, Ordering};
use blkmq_core::{Instant, Nanos};

/// A nanosecond in the unit of prices, as a power of two: as fine as a word can hold the highest price, which is a
/// second for a unit (below 2^30 ns).
const FRACTION: u32 = 34;
/// Unused time that later I/Os may make up for, at a rate without bursts.
pub(crate) const SLACK: Nanos = Nanos::from_millis(10);

/// A rate in units per second; without a limit at first.
pub(crate) struct Meter {
    /// The price of a unit, in 2^-34 ns; 0 without a limit.
    price: AtomicU64,
    /// In nanoseconds.
    free_at: AtomicU64,
    /// Fractions of a nanosecond that are not in `free_at` yet, in 2^-64 ns.
    carry: AtomicU64,
    /// In nanoseconds.
    slack: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let [price, free_at, carry, slack] = [0; 4].map(AtomicU64::new);
        Self { price, free_at, carry, slack }
    }

    /// From now on up to `rate` units go in a second; `None` for any number. Earlier reservations stand. Up to `slack`
    /// of unused time is not lost.
    pub(crate) fn set_rate(&self, rate: Option<u64>, slack: Nanos) {
        let second = Nanos::from_secs(1).0 << FRACTION;
        let price = |rate: u64| (second / rate.max(1)).max(1);
        self.slack.store(slack.0, Ordering::Relaxed);
        self.price.store(rate.map_or(0, price), Ordering::Relaxed);
    }

    /// Is there a limit?
    pub(crate) fn is_limited(&self) -> bool {
        self.price.load(Ordering::Relaxed) != 0
    }

    /// Reserves `units`, which may go from the returned time on: `now` or later. [`Instant::MAX`] is never.
    pub(crate) fn reserve(&self, now: Instant, units: u64) -> Instant {
        let price = self.price.load(Ordering::Relaxed);
        if price == 0 || units == 0 {
            return now;
        }
        let cost = self.whole(u128::from(units) * u128::from(price));
        let slack = Nanos(self.slack.load(Ordering::Relaxed));
        let least = now.saturating_sub(slack).as_nanos();
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
                Ok(_) => return now.max(Instant::from_nanos(start)),
                Err(other) => seen = other,
            }
        }
    }

    /// The whole nanoseconds of a cost, and one more when the carry overflows; the rest goes to the carry.
    fn whole(&self, cost: u128) -> u64 {
        let whole = u64::try_from(cost >> FRACTION).unwrap_or(u64::MAX);
        // The bits below the point, moved to the top of the word.
        let rest = (cost as u64) << (u64::BITS - FRACTION);
        // Whole costs, which are those of slow rates, leave the carry alone.
        if rest == 0 {
            return whole;
        }
        let before = self.carry.fetch_add(rest, Ordering::Relaxed);
        whole.saturating_add(before.checked_add(rest).is_none().into())
    }

    /// Forgets all reservations: for a meter that another group uses from now on.
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
    const SILENCE: u64 = 1_000_000_000;
    /// Uptimes: none, near those at which a count of nanoseconds with a fraction beside it would overflow, and the
    /// last day of the time scale.
    const BEGINS: [u64; 7] = [
        SILENCE,
        (1 << 54) - SILENCE / 10,
        (1 << 54) + SILENCE,
        (1 << 62) - SILENCE / 10,
        1 << 63,
        (1 << 63) + (1 << 54),
        u64::MAX - 86_400 * SILENCE,
    ];

    #[test]
    fn without_a_limit_everything_goes_at_once() {
        let meter = Meter::new();
        assert!(!meter.is_limited());
        assert_eq!(meter.reserve(at(5), u64::MAX), at(5));
    }

    #[test]
    fn a_rate_is_kept_to_the_nanosecond_once_the_slack_is_used() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Some(1_000), SLACK);
            let times: Vec<u64> =
                (0..40).map(|_| meter.reserve(at(begin), 1).as_nanos() - begin).collect();
            // Ten milliseconds are ten I/Os ahead of time, and the first one waits for nothing.
            assert!(times[..11].iter().all(|time| *time == 0), "{begin}: {times:?}");
            for (n, time) in (1..).zip(&times[11..]) {
                assert!(time.abs_diff(n * 1_000_000) <= 1, "{begin}: {n}: {time}");
            }
        }
    }

    #[test]
    fn rates_of_millions_are_kept_to_a_thousandth() {
        for rate in [1_u64, 3, 999_983, 3_000_017, 40_000_000, 39_999_983, 7_000_000_000] {
            for begin in BEGINS {
                keeps_to(rate, begin);
            }
        }
    }

    fn keeps_to(rate: u64, begin: u64) {
        let meter = Meter::new();
        meter.set_rate(Some(rate), SLACK);
        let units = if rate > 1_000_000_000 { 4096 } else { 1 };
        // At least a fiftieth of a second, of which the slack is half.
        let ios = (rate / units / 50).max(1000);
        let mut last = at(begin);
        for _ in 0..=ios {
            last = meter.reserve(last, units);
        }
        let wanted = u128::from(ios * units) * 1_000_000_000 / u128::from(rate);
        let took = u128::from(last.as_nanos() - begin + SLACK.0);
        assert!(
            took.abs_diff(wanted) * 1000 <= wanted + 1000,
            "{rate} at {begin}: {took} for {wanted}"
        );
    }

    /// The time was once kept as ticks, `now << 10`. From an uptime of 208.5 days on its high bits were lost, each
    /// reservation was long past, and every limit was off.
    #[test]
    fn a_limit_holds_whatever_the_uptime_and_the_silence_before() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Some(100), SLACK);
            // Like a queue that has been used since its creation.
            meter.reserve(Instant::ZERO, 1);
            let went = (0..1000).filter(|_| meter.reserve(at(begin), 1) == at(begin)).count();
            assert_eq!(went, 2, "at {begin}");
            assert!(meter.reserve(at(begin), 1) > at(begin + 9_900_000_000), "at {begin}");
        }
    }

    #[test]
    fn nothing_overflows() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Some(1), SLACK);
            assert_eq!(meter.reserve(at(begin), u64::MAX), at(begin));
            assert_eq!(meter.reserve(at(begin), u64::MAX), Instant::MAX, "never");
            assert_eq!(meter.reserve(at(begin), 1), Instant::MAX, "nor what is behind it");
            meter.reset();
            assert_eq!(meter.reserve(at(begin), 1), at(begin));
        }
        let meter = Meter::new();
        meter.set_rate(Some(u64::MAX), SLACK);
        assert!(meter.is_limited(), "the price of a unit is never nothing");
        assert_eq!(meter.reserve(Instant::MAX, u64::MAX), Instant::MAX);
    }

    #[test]
    fn without_units_or_without_a_limit_by_now_nothing_is_waited_for() {
        let meter = Meter::new();
        meter.set_rate(Some(1), SLACK);
        assert!(meter.is_limited());
        meter.reserve(at(SILENCE), 100);
        assert!(meter.reserve(at(SILENCE), 1) > at(99 * SILENCE));
        assert_eq!(meter.reserve(at(SILENCE), 0), at(SILENCE), "as a discard of no bytes");
        meter.set_rate(None, SLACK);
        assert_eq!(meter.reserve(at(SILENCE), 1), at(SILENCE), "what was reserved does not count");
    }

    #[test]
    fn a_rate_of_none_is_one_in_a_second() {
        let meter = Meter::new();
        meter.set_rate(Some(0), SLACK);
        let times = [(); 3].map(|()| meter.reserve(at(SILENCE), 1));
        // The first one uses the slack.
        assert_eq!(times, [0, SILENCE - SLACK.0, 2 * SILENCE - SLACK.0].map(|ns| at(SILENCE + ns)));
    }

    #[test]
    fn a_long_slack_is_a_credit_that_fills_at_the_rate() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Some(1000), Nanos::from_millis(500));
            let at_once = |now| (0..5000).filter(|_| meter.reserve(now, 1) == now).count();
            // The credit, and one I/O that waits for nothing.
            assert_eq!(at_once(at(begin)), 501, "{begin}");
            meter.reset();
            meter.reserve(at(begin), 501);
            // A tenth of a second later there is that much credit.
            assert_eq!(at_once(at(begin + 100_000_000)), 100, "{begin}");
        }
    }

    #[test]
    fn fractions_of_a_nanosecond_add_up() {
        // Miri runs a thousand times slower.
        const UNITS: u64 = if cfg!(miri) { 3_000 } else { 300_000 };
        let meter = Meter::new();
        meter.set_rate(Some(3_000_000_000), SLACK);
        let begin = at(SILENCE);
        // The slack, and from there a third of a nanosecond each.
        meter.reserve(begin, 30_000_000);
        let first = meter.reserve(begin, 1);
        for _ in 0..UNITS {
            meter.reserve(begin, 1);
        }
        let took = meter.reserve(begin, 1) - first;
        assert!(took.0.abs_diff(UNITS / 3) <= 1, "{took}");
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
            meter.set_rate(Some(10), SLACK);
            let other = {
                let meter = Arc::clone(&meter);
                thread::spawn(move || reserve(&meter, Instant::ZERO, 1))
            };
            let mine = reserve(&meter, Instant::ZERO, 1);
            let other = other.join().expect("neither panics");
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
            let cost = meter.whole(u128::from(units) * u128::from(price));
            meter.free_at.store(start + cost, Ordering::Relaxed);
            now.max(Instant::from_nanos(start))
        });
    }
}
