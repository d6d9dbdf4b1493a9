//! A rate that several threads share: each I/O is assigned the time at which it may proceed.
//!
//! The word `free_at` is the time at which the next I/O may proceed, in nanoseconds, and even; its lowest bit, the
//! *era*, says which of two prices applies. A word in the unit of [`Instant`] holds every possible time, so no uptime
//! is too long for it.
//!
//! | `free_at` | `reserve(now, cost)` | `set_rate(now)`, which flips the era |
//! |---|---|---|
//! | earlier than `now` less the slack | `free_at` = `now` less the slack, plus the cost; *you* proceed immediately | the time stays, within 2 ns |
//! | in between | `free_at` + cost; *you* proceed immediately | likewise |
//! | later than `now` | `free_at` + cost; *you* proceed at the old `free_at` | `now` + the rest, times the new price over the old one |
//! | any, without a limit before or after | unchanged; *you* proceed immediately | the time is 0 |
//!
//! The cost of an I/O beyond whole steps of 2 ns is added up in a second word, the carry: an I/O costs a step more if
//! its fraction makes the carry overflow. So fast rates are as exact as slow ones. The carry is a plain sum, and it
//! does not matter which of two threads pays a step.
//!
//! Invariant: over any time without a change of the rate, the I/Os that proceed cost no more than that time, the slack,
//! one I/O and a step.
//!
//! Up to the slack, unused time is not lost. The slack makes up for threads that come late, and a long slack is the
//! credit of a burst.
//!
//! # A change of the rate
//!
//! `set_rate` writes the price that is not in use, and then scales the time and flips the era in one exchange. A thread
//! that reserves uses the price of the era that it has seen, and its exchange fails if the era has changed since. So no
//! I/O adds a cost by one price to a debt by the other: after a correction from 1000 bytes per second to 10^9, that
//! would be an hour. The exchange that flips the era releases the price, and a thread that loads `free_at` acquires it,
//! also by way of later exchanges, which continue the release sequence. A word that was seen two changes ago does not
//! recur, because a change always moves the time, unless costs and a scaled debt add up to the same time.
//!
//! A [`Booking`] stores the price by which it was made. Its holder compares that with the current price, and has the
//! rest of its time scaled in the same way. It may notice a change late by as long as it has slept, so a thread that
//! changes rates wakes the sleepers (`submission/throttle.rs`).
//!
//! The other orderings are relaxed: the words hand nothing over, and each reservation is one compare-and-exchange, so
//! no two get the same time. The slack is stored separately; a thread that sees the new slack with the old price
//! reserves a time that is right for one of the two settings or between them.

use super::{AtomicU64, Ordering};
use blkmq_core::{Instant, Nanos};

/// A nanosecond in the unit of prices, as log2: the finest unit in which a word can hold the highest price, one second
/// per unit of the rate (below 2^30 ns).
const FRACTION: u32 = 34;
/// The bit of `free_at` that selects the price.
const ERA: u64 = 1;
/// A step of 2 ns in the unit of prices, as log2.
const STEP: u32 = FRACTION + 1;
/// Unused time that later I/Os may make up for, for a rate without bursts.
pub(crate) const SLACK: Nanos = Nanos::from_millis(10);

/// A rate in units per second, initially unlimited.
pub(crate) struct Meter {
    /// By era: the price of a unit, in 2^-34 ns; 0 for no limit.
    prices: [AtomicU64; 2],
    /// A time in nanoseconds, and the era.
    free_at: AtomicU64,
    /// Fractions of a step that are not in `free_at` yet, in 2^-63 ns.
    carry: AtomicU64,
    /// In nanoseconds.
    slack: AtomicU64,
}

/// A reservation: when an I/O may proceed, and the price by which that was computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Booking {
    /// [`Instant::MAX`] means never.
    pub(crate) at: Instant,
    price: u64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let [one, other, free_at, carry, slack] = [0; 5].map(AtomicU64::new);
        Self { prices: [one, other], free_at, carry, slack }
    }

    /// The price of the era of `word`, which was in `free_at`.
    fn price(&self, word: u64) -> u64 {
        self.prices[(word & ERA) as usize].load(Ordering::Relaxed)
    }

    fn price_of_today(&self) -> u64 {
        self.price(self.free_at.load(Ordering::Acquire))
    }

    /// Sets the rate to `rate` units per second; `None` for no limit. Scales the part of the reserved time that lies
    /// ahead. Up to `slack` of unused time is not lost. Called by one thread at a time.
    pub(crate) fn set_rate(&self, now: Instant, rate: Option<u64>, slack: Nanos) {
        let second = Nanos::from_secs(1).0 << FRACTION;
        // Rounded up, so that a rate is never exceeded.
        let new = rate.map_or(0, |rate| second.div_ceil(rate.max(1)));
        let old = self.price_of_today();
        self.slack.store(slack.0, Ordering::Relaxed);
        if old == new {
            return;
        }
        // Only this thread flips the era.
        let next = self.free_at.load(Ordering::Relaxed) & ERA ^ ERA;
        self.prices[next as usize].store(new, Ordering::Relaxed);
        let scale = |seen: u64| {
            let time = match (old, new) {
                (0, _) | (_, 0) => 0,
                _ => scaled(now, time(seen), old, new).as_nanos() & !ERA,
            };
            let is_same = old != 0 && time == seen & !ERA;
            let time = if is_same { time.checked_sub(2).unwrap_or(2) } else { time };
            Some(time | next)
        };
        let done = self.free_at.fetch_update(Ordering::Release, Ordering::Relaxed, scale);
        done.expect("there is always a next time");
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.price_of_today() != 0
    }

    /// Reserves `units`, which may proceed from the returned time on: `now` or later.
    pub(crate) fn reserve(&self, now: Instant, units: u64) -> Booking {
        let mut seen = self.free_at.load(Ordering::Acquire);
        let (mut price, mut cost) = (0, 0);
        loop {
            let by_now = self.price(seen);
            if by_now == 0 || units == 0 {
                return Booking { at: now, price: by_now };
            }
            if by_now != price {
                price = by_now;
                cost = self.whole(u128::from(units) * u128::from(price));
            }
            let slack = Nanos(self.slack.load(Ordering::Relaxed));
            let start = seen.max(now.saturating_sub(slack).as_nanos()) & !ERA;
            let next = start.saturating_add(cost) & !ERA | seen & ERA;
            match self.free_at.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => return Booking { at: now.max(time(start)), price },
                Err(other) => seen = other,
            }
        }
    }

    /// Returns whether the rate has been changed since the reservation.
    pub(crate) fn has_changed(&self, booking: Booking) -> bool {
        self.price_of_today() != booking.price
    }

    /// The reservation at the current price: the rest of its time is scaled by that price over the old one.
    pub(crate) fn revised(&self, now: Instant, booking: Booking) -> Booking {
        let price = self.price_of_today();
        Booking { at: scaled(now, booking.at, booking.price, price), price }
    }

    /// The nanoseconds of a cost in whole steps, plus a step if the carry overflows; the fraction goes to the carry.
    fn whole(&self, cost: u128) -> u64 {
        let steps = u64::try_from(cost >> STEP).unwrap_or(u64::MAX);
        // The bits below the point, moved to the top of the word.
        let rest = (cost as u64) << (u64::BITS - STEP);
        // Whole costs, which slow rates have, do not change the carry.
        let more = rest != 0 && {
            let before = self.carry.fetch_add(rest, Ordering::Relaxed);
            before.checked_add(rest).is_none()
        };
        steps.saturating_add(more.into()).saturating_mul(2)
    }
}

/// The time in a word of `free_at`. The highest word means never.
fn time(word: u64) -> Instant {
    if word | ERA == u64::MAX { Instant::MAX } else { Instant::from_nanos(word & !ERA) }
}

/// Scales the distance of `at` from `now` from the price `old` to `new`; a time in the past stays.
fn scaled(now: Instant, at: Instant, old: u64, new: u64) -> Instant {
    if at <= now || old == 0 {
        return at.min(now);
    }
    let left = u128::from((at - now).0) * u128::from(new) / u128::from(old);
    let left = u64::try_from(left).unwrap_or(u64::MAX);
    Instant::from_nanos(now.as_nanos().saturating_add(left))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    impl Meter {
        fn time_of(&self, now: Instant, units: u64) -> Instant {
            self.reserve(now, units).at
        }

        /// Forgets all reservations.
        fn reset(&self) {
            self.free_at.fetch_and(ERA, Ordering::Relaxed);
        }
    }

    /// After a second without I/O, so that the slack is full; the times are relative to that.
    const SILENCE: u64 = 1_000_000_000;
    /// Uptimes: zero, near those at which a count of nanoseconds with a fraction would overflow, and the last day of
    /// the time scale.
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
        assert_eq!(meter.time_of(at(5), u64::MAX), at(5));
    }

    #[test]
    fn a_rate_is_kept_to_the_nanosecond_once_the_slack_is_used() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Instant::ZERO, Some(1_000), SLACK);
            let times: Vec<u64> =
                (0..40).map(|_| meter.time_of(at(begin), 1).as_nanos() - begin).collect();
            // Ten milliseconds are ten I/Os ahead of time, and the first one does not wait.
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
        meter.set_rate(Instant::ZERO, Some(rate), SLACK);
        let units = if rate > 1_000_000_000 { 4096 } else { 1 };
        // At least a fiftieth of a second, of which the slack is half.
        let ios = (rate / units / 50).max(1000);
        let mut last = at(begin);
        for _ in 0..=ios {
            last = meter.time_of(last, units);
        }
        let wanted = u128::from(ios * units) * 1_000_000_000 / u128::from(rate);
        let took = u128::from(last.as_nanos() - begin + SLACK.0);
        assert!(
            took.abs_diff(wanted) * 1000 <= wanted + 1000,
            "{rate} at {begin}: {took} for {wanted}"
        );
    }

    /// Regression test: the time was kept as ticks, `now << 10`. From an uptime of 208.5 days on, its high bits were
    /// lost, each reservation was long past, and every limit was wrong.
    #[test]
    fn a_limit_holds_whatever_the_uptime_and_the_silence_before() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Instant::ZERO, Some(100), SLACK);
            // As in a queue that has been used since its creation.
            meter.time_of(Instant::ZERO, 1);
            let went = (0..1000).filter(|_| meter.time_of(at(begin), 1) == at(begin)).count();
            assert_eq!(went, 2, "at {begin}");
            assert!(meter.time_of(at(begin), 1) > at(begin + 9_900_000_000), "at {begin}");
        }
    }

    #[test]
    fn nothing_overflows() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Instant::ZERO, Some(1), SLACK);
            assert_eq!(meter.time_of(at(begin), u64::MAX), at(begin));
            assert_eq!(meter.time_of(at(begin), u64::MAX), Instant::MAX, "never");
            assert_eq!(meter.time_of(at(begin), 1), Instant::MAX, "nor what is behind it");
            meter.reset();
            assert_eq!(meter.time_of(at(begin), 1), at(begin));
        }
        let meter = Meter::new();
        meter.set_rate(Instant::ZERO, Some(u64::MAX), SLACK);
        assert!(meter.is_limited(), "the price of a unit is never nothing");
        assert_eq!(meter.time_of(Instant::MAX, u64::MAX), Instant::MAX);
    }

    #[test]
    fn without_units_or_without_a_limit_by_now_nothing_is_waited_for() {
        let meter = Meter::new();
        meter.set_rate(Instant::ZERO, Some(1), SLACK);
        assert!(meter.is_limited());
        meter.time_of(at(SILENCE), 100);
        assert!(meter.time_of(at(SILENCE), 1) > at(99 * SILENCE));
        assert_eq!(meter.time_of(at(SILENCE), 0), at(SILENCE), "as a discard of no bytes");
        meter.set_rate(Instant::ZERO, None, SLACK);
        assert_eq!(meter.time_of(at(SILENCE), 1), at(SILENCE), "what was reserved does not count");
    }

    #[test]
    fn a_rate_of_none_is_one_in_a_second() {
        let meter = Meter::new();
        meter.set_rate(Instant::ZERO, Some(0), SLACK);
        let times = [(); 3].map(|()| meter.time_of(at(SILENCE), 1));
        // The first one uses the slack.
        assert_eq!(times, [0, SILENCE - SLACK.0, 2 * SILENCE - SLACK.0].map(|ns| at(SILENCE + ns)));
    }

    #[test]
    fn a_long_slack_is_a_credit_that_fills_at_the_rate() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(Instant::ZERO, Some(1000), Nanos::from_millis(500));
            let at_once = |now| (0..5000).filter(|_| meter.time_of(now, 1) == now).count();
            // The credit, and one I/O that does not wait.
            assert_eq!(at_once(at(begin)), 501, "{begin}");
            meter.reset();
            meter.time_of(at(begin), 501);
            // A tenth of a second later that much credit is available.
            assert_eq!(at_once(at(begin + 100_000_000)), 100, "{begin}");
        }
    }

    #[test]
    fn fractions_of_a_nanosecond_add_up() {
        // Miri runs a thousand times slower.
        const UNITS: u64 = if cfg!(miri) { 3_000 } else { 300_000 };
        let meter = Meter::new();
        meter.set_rate(Instant::ZERO, Some(3_000_000_000), SLACK);
        let begin = at(SILENCE);
        // The slack, and after it a third of a nanosecond each.
        meter.time_of(begin, 30_000_000);
        let first = meter.time_of(begin, 1);
        for _ in 0..UNITS {
            meter.time_of(begin, 1);
        }
        let took = meter.time_of(begin, 1) - first;
        assert!(took.0.abs_diff(UNITS / 3) <= 1, "{took}");
    }

    const KIB: u64 = 1024;

    /// Regression test: after `wbps=1000`, meant as `1000m`, was corrected, the debt stayed as it was.
    #[test]
    fn what_was_reserved_is_scaled_by_the_new_price_over_the_old_one() {
        for begin in BEGINS {
            let meter = Meter::new();
            meter.set_rate(at(begin), Some(1000), SLACK);
            assert_eq!(meter.time_of(at(begin), 64 * KIB), at(begin));
            let held = meter.reserve(at(begin), 4 * KIB);
            assert!((held.at - at(begin)).0.abs_diff(65_526_000_000) <= 1, "{begin}: {held:?}");
            let now = at(begin + SILENCE);
            assert!(!meter.has_changed(held));
            meter.set_rate(now, Some(1_000_000_000), SLACK);
            assert!(meter.has_changed(held));
            let held = meter.revised(now, held);
            assert!((held.at - now).0.abs_diff(64_526) <= 1, "{begin}: {held:?}");
            assert!(!meter.has_changed(held));
            let behind = meter.time_of(now, 4 * KIB);
            assert!((behind - now).0.abs_diff(64_526 + 4 * KIB) <= 2, "{begin}: {behind:?}");
            // With the old rate again, it waits as long as it would have.
            meter.set_rate(now, Some(1000), SLACK);
            assert!((meter.revised(now, held).at - now).0.abs_diff(64_526_000_000) <= 1_000_000);
            meter.set_rate(now, None, SLACK);
            assert_eq!(meter.revised(now, held).at, now, "it is lifted");
            meter.set_rate(now, Some(1000), SLACK);
            assert_eq!(meter.time_of(now, 1), now, "no debt is left");
        }
    }

    #[test]
    fn a_meter_that_no_io_has_met_is_changed_as_well() {
        let meter = Meter::new();
        for rate in [Some(1), None, Some(5), Some(6), Some(5), None, Some(1)] {
            meter.set_rate(Instant::ZERO, rate, SLACK);
            assert_eq!(meter.is_limited(), rate.is_some());
        }
        assert_eq!(meter.time_of(at(SILENCE), 1), at(SILENCE));
    }

    #[test]
    fn a_change_keeps_unused_time_and_moves_no_time_that_has_come() {
        let meter = Meter::new();
        meter.set_rate(at(0), Some(1000), SLACK);
        meter.time_of(at(SILENCE), 5);
        let went = meter.reserve(at(SILENCE), 1);
        meter.set_rate(at(2 * SILENCE), Some(2000), SLACK);
        assert_eq!(meter.revised(at(2 * SILENCE), went).at, at(SILENCE));
        let times = [(); 22].map(|()| meter.time_of(at(2 * SILENCE), 1));
        assert!(times[..21].iter().all(|time| *time == at(2 * SILENCE)), "{times:?}");
        assert_eq!(times[21], at(2 * SILENCE + 500_000));
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
            meter.set_rate(Instant::ZERO, Some(10), SLACK);
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
        no_two_get_the_same_time(|meter, now, units| meter.reserve(now, units).at);
    }

    #[test]
    #[should_panic(expected = "both go at once")]
    fn loom_planted_reserve_that_stores() {
        no_two_get_the_same_time(|meter, now, units| {
            let start = meter.free_at.load(Ordering::Relaxed);
            let price = meter.price(start);
            let cost = meter.whole(u128::from(units) * u128::from(price));
            meter.free_at.store(start + cost, Ordering::Relaxed);
            now.max(time(start))
        });
    }

    /// A debt of a second, and a rate that becomes a million times as high while another thread reserves.
    fn no_old_price_is_left(reserve: fn(&Meter, Instant, u64)) {
        loom::model(move || {
            let meter = Arc::new(Meter::new());
            meter.set_rate(Instant::ZERO, Some(1), SLACK);
            meter.reserve(Instant::ZERO, 1);
            let other = {
                let meter = Arc::clone(&meter);
                thread::spawn(move || reserve(&meter, Instant::ZERO, 1))
            };
            meter.set_rate(Instant::ZERO, Some(1_000_000), SLACK);
            other.join().expect("neither panics");
            let debt = meter.reserve(Instant::ZERO, 1).at.as_nanos();
            assert_eq!(debt.div_ceil(1000), 2, "two units: {debt}");
        });
    }

    #[test]
    fn loom_no_io_is_paid_for_by_the_old_price() {
        no_old_price_is_left(|meter, now, units| {
            meter.reserve(now, units);
        });
    }

    /// Like [`Meter::reserve`], without checking the era when the cost is added.
    #[test]
    #[should_panic(expected = "two units")]
    fn loom_planted_reserve_that_does_not_look_at_the_era() {
        no_old_price_is_left(|meter, _, units| {
            let seen = meter.free_at.load(Ordering::Acquire);
            let cost = meter.whole(u128::from(units) * u128::from(meter.price(seen)));
            let add = |seen: u64| Some(seen + cost);
            let done = meter.free_at.fetch_update(Ordering::Relaxed, Ordering::Acquire, add);
            done.expect("there is always a next time");
        });
    }

    /// Like [`Meter::set_rate`], but the time is scaled after the price has changed.
    #[test]
    #[should_panic(expected = "two units")]
    fn loom_planted_change_in_two_steps() {
        loom::model(|| {
            let meter = Arc::new(Meter::new());
            meter.set_rate(Instant::ZERO, Some(1), SLACK);
            meter.reserve(Instant::ZERO, 1);
            let other = {
                let meter = Arc::clone(&meter);
                thread::spawn(move || {
                    meter.reserve(Instant::ZERO, 1);
                })
            };
            let era = meter.free_at.load(Ordering::Relaxed) & ERA;
            meter.prices[era as usize].store(1000 << FRACTION, Ordering::Relaxed);
            let scale = |seen: u64| Some((seen & !ERA) / 1_000_000 & !ERA | era);
            let done = meter.free_at.fetch_update(Ordering::Release, Ordering::Relaxed, scale);
            done.expect("there is always a next time");
            other.join().expect("neither panics");
            let debt = meter.reserve(Instant::ZERO, 1).at.as_nanos();
            assert_eq!(debt.div_ceil(1000), 2, "two units: {debt}");
        });
    }

    /// A booking that is revised while the rate changes.
    fn a_revision_knows_a_price(revised: fn(&Meter, Booking) -> Booking) {
        loom::model(move || {
            let meter = Arc::new(Meter::new());
            meter.set_rate(Instant::ZERO, Some(1), SLACK);
            meter.reserve(Instant::ZERO, 1);
            let held = meter.reserve(Instant::ZERO, 1);
            let other = {
                let meter = Arc::clone(&meter);
                thread::spawn(move || revised(&meter, held).at.as_nanos())
            };
            meter.set_rate(Instant::ZERO, Some(1_000_000), SLACK);
            let at = other.join().expect("neither panics");
            assert!([1000, 1_000_000_000].contains(&at), "neither price: {at}");
        });
    }

    #[test]
    fn loom_a_booking_is_revised_by_one_of_the_prices() {
        a_revision_knows_a_price(|meter, held| meter.revised(Instant::ZERO, held));
    }

    #[test]
    #[should_panic(expected = "neither price")]
    fn loom_planted_revision_that_acquires_nothing() {
        a_revision_knows_a_price(|meter, held| {
            let price = meter.price(meter.free_at.load(Ordering::Relaxed));
            Booking { at: scaled(Instant::ZERO, held.at, held.price, price), price }
        });
    }
}
