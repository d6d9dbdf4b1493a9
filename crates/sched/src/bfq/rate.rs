//! The peak rate of the device (`spec/bfq.md` section 11), and the values derived from it: the longest budget, and
//! the time for which a starting application is preferred.
//!
//! Rates are in sectors per microsecond, times 2^16. A separate state machine, fed with dispatches and completions.

use blkmq_core::{Instant, Nanos};

const SHIFT: u32 = 16;
/// A window with fewer samples, or a shorter one, is not used.
const SAMPLES: u64 = 32;
const SHORTEST: Nanos = Nanos::from_millis(300);
/// A window is closed after this time.
const WINDOW: Nanos = Nanos::from_secs(1);
/// After a pause of this length in dispatches, a new window begins.
const PAUSE: Nanos = Nanos::from_millis(100);
/// A device that waited for less than this counts as busy.
pub(crate) const AT_ONCE: Nanos = Nanos::from_millis(2);
/// A rate above any device's: 20 sectors per microsecond.
const ABSURD: u64 = 20 << SHIFT;

/// A reference device: its rate, and the milliseconds for which a starting application is preferred there.
const ROTATIONAL: (u64, u64) = (14_000, 7_000);
const SOLID: (u64, u64) = (33_000, 2_500);

/// A dispatch, as input for the rate.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch {
    /// The time.
    pub now: Instant,
    /// The length.
    pub sectors: u32,
    /// Whether the dispatch was far from the previous one.
    pub far: bool,
    /// Requests in the device without this one.
    pub in_driver: u32,
    /// The time of the device's last completion.
    pub last_completion: Instant,
}

/// The estimate.
#[derive(Clone, Debug)]
pub struct PeakRate {
    reference: (u64, u64),
    peak: u64,
    samples: u64,
    sequential: u64,
    sectors: u64,
    /// The longest of the last requests, at most 32.
    longest: u32,
    first: Instant,
    last: Instant,
}

impl PeakRate {
    /// Begins with two thirds of the reference device's rate.
    #[must_use]
    pub fn new(rotational: bool) -> Self {
        let reference = if rotational { ROTATIONAL } else { SOLID };
        Self {
            reference,
            peak: reference.0 * 2 / 3,
            samples: 0,
            sequential: 0,
            sectors: 0,
            longest: 0,
            first: Instant::ZERO,
            last: Instant::ZERO,
        }
    }

    /// The estimated rate.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// The sectors that the device serves in `time` at that rate.
    #[must_use]
    pub fn sectors_in(&self, time: Nanos) -> u64 {
        (self.peak * (time.0 / 1_000_000) * 1_000) >> SHIFT
    }

    /// The time for which an interactive application is preferred: the time that the device takes to read a starting
    /// application, 3 to 25 seconds.
    #[must_use]
    pub fn preference(&self) -> Nanos {
        let (rate, millis) = self.reference;
        Nanos::from_millis((rate * millis / self.peak).clamp(3_000, 25_000))
    }

    /// A request goes to the device. Returns whether the rate has changed.
    #[inline]
    pub fn dispatched(&mut self, d: &Dispatch) -> bool {
        let mut changed = false;
        if self.samples == 0 {
            self.begin(d);
        } else if d.now.since(self.last) > PAUSE && d.in_driver == 0 {
            changed = self.close(d.last_completion);
            self.begin(d);
        } else {
            self.samples += 1;
            let busy = d.in_driver > 0 || d.now.since(d.last_completion) < AT_ONCE;
            self.sequential += u64::from(busy && !d.far);
            self.sectors += u64::from(d.sectors);
            let fresh = self.samples.is_multiple_of(32);
            self.longest = if fresh { d.sectors } else { self.longest.max(d.sectors) };
            if d.now.since(self.first) >= WINDOW {
                self.last = d.now;
                changed = self.close(d.last_completion);
                self.begin(d);
            }
        }
        self.last = d.now;
        changed
    }

    /// A request has completed, `since` after the previous one. If requests are slow and small, the window does not
    /// measure the device. Returns whether the rate has changed.
    pub fn completed(&mut self, now: Instant, since: Nanos) -> bool {
        let micros = since.0 / 1_000;
        if since <= AT_ONCE || self.samples == 0 {
            return false;
        }
        let slow = (u64::from(self.longest) << SHIFT) / micros < 1 << (SHIFT - 10);
        if !slow {
            return false;
        }
        let changed = self.close(now);
        self.samples = 0;
        changed
    }

    fn begin(&mut self, d: &Dispatch) {
        (self.samples, self.sequential) = (1, 0);
        (self.sectors, self.longest) = (d.sectors.into(), d.sectors);
        (self.first, self.last) = (d.now, d.now);
    }

    /// Adds the window to the estimate, if it is usable.
    fn close(&mut self, last_completion: Instant) -> bool {
        let window = self.last.max(last_completion).since(self.first);
        if self.samples < SAMPLES || window < SHORTEST {
            return false;
        }
        let rate = (self.sectors << SHIFT) / (window.0 / 1_000);
        let mostly_sequential = self.sequential >= self.samples * 3 / 4;
        if (!mostly_sequential && rate <= self.peak) || rate > ABSURD {
            return false;
        }
        // The window counts for a tenth, and for up to a half if it is long and sequential.
        let weight = 9 * self.sequential / self.samples;
        let weight = (weight.saturating_mul(window.0) / WINDOW.0).min(8);
        let parts = 10 - weight;
        self.peak = (self.peak * (parts - 1) / parts + rate / parts).max(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(rate: &mut PeakRate, requests: u64, sectors: u32, every: Nanos, far: bool) {
        for i in 0..requests {
            let now = Instant::from_nanos(i * every.0);
            let last_completion = now;
            rate.dispatched(&Dispatch { now, sectors, far, in_driver: 1, last_completion });
        }
    }

    #[test]
    fn the_start_is_two_thirds_of_the_reference() {
        let (disk, flash) = (PeakRate::new(true), PeakRate::new(false));
        assert_eq!((disk.peak(), flash.peak()), (9_333, 22_000));
        assert_eq!(disk.sectors_in(Nanos::from_millis(125)), 17_801);
        assert_eq!(disk.preference(), Nanos::from_millis(10_500));
        assert_eq!(flash.preference(), Nanos::from_millis(3_750));
    }

    #[test]
    fn a_sequential_second_pulls_the_estimate_towards_what_it_measured() {
        let mut rate = PeakRate::new(false);
        // 8 sectors every 4 us: two sectors a microsecond.
        feed(&mut rate, 250_001, 8, Nanos::from_micros(4), false);
        let measured = 2 << 16;
        assert!(rate.peak() > 22_000 && rate.peak() <= measured, "{}", rate.peak());
        assert!(rate.peak() > measured / 2, "eight parts or so of ten: {}", rate.peak());
        assert_eq!(rate.preference(), Nanos::from_secs(3), "clamped");
    }

    #[test]
    fn a_window_that_is_half_sequential_counts_for_half_as_much() {
        let mut rate = PeakRate::new(false);
        for i in 0..=250_000 {
            let now = Instant::from_nanos(i * 4_000);
            let d =
                Dispatch { now, sectors: 8, far: i % 2 == 0, in_driver: 1, last_completion: now };
            rate.dispatched(&d);
        }
        // A part of ten, and four of the eight that a sequential window has more: a sixth is measured.
        assert_eq!(rate.peak(), 22_000 * 5 / 6 + (2 << 16) / 6);
    }

    /// Samples, and sequential ones among them, after a dispatch at zero and one `micros` later, with `in_driver`
    /// requests in the device, which has completed one `waited` before.
    fn second(micros: u64, in_driver: u32, waited: Nanos, far: bool) -> (u64, u64) {
        let mut rate = PeakRate::new(false);
        let begin = Instant::ZERO;
        let (now, sectors) = (begin + Nanos::from_micros(micros), 8);
        let last_completion = begin;
        rate.dispatched(&Dispatch { now: begin, sectors, far: false, in_driver, last_completion });
        let last_completion = now.saturating_sub(waited);
        rate.dispatched(&Dispatch { now, sectors, far, in_driver, last_completion });
        (rate.samples, rate.sequential)
    }

    #[test]
    fn a_window_ends_at_a_pause_of_an_idle_device_and_counts_what_keeps_it_busy() {
        let soon = Nanos(AT_ONCE.0 - 1);
        assert_eq!(second(100_000, 0, soon, false), (2, 1));
        assert_eq!(second(100_001, 0, soon, false), (1, 0), "a new window");
        assert_eq!(second(100_001, 1, soon, false), (2, 1), "it was not idle");
        assert_eq!(second(50_000, 0, soon, true), (2, 0), "far");
        assert_eq!(second(50_000, 0, AT_ONCE, false), (2, 0), "it waited");
        assert_eq!(second(50_000, 1, AT_ONCE, false), (2, 1));
    }

    #[test]
    fn a_completion_that_is_late_for_its_length_ends_the_window() {
        let late = |sectors, micros| {
            let mut rate = PeakRate::new(false);
            let (now, last_completion) = (Instant::ZERO, Instant::ZERO);
            rate.dispatched(&Dispatch { now, sectors, far: false, in_driver: 1, last_completion });
            let since = Nanos::from_micros(micros);
            rate.completed(now + since, since);
            rate.samples == 0
        };
        // Below 1/1024 of a sector in a microsecond.
        assert_eq!([late(2, 3_000), late(3, 3_000)], [true, false]);
        assert_eq!([late(3, 3_072), late(3, 3_073)], [false, true]);
    }

    #[test]
    fn a_window_counts_from_32_samples_and_300_ms_on_and_a_low_rate_if_it_is_sequential() {
        let counts = |samples, sequential, sectors, millis| {
            let last = Instant::ZERO + Nanos::from_millis(millis);
            let mut rate = PeakRate { samples, sequential, sectors, last, ..PeakRate::new(false) };
            rate.close(Instant::ZERO)
        };
        assert!(counts(32, 32, 300_000, 300));
        assert!(!counts(31, 31, 300_000, 300) && !counts(32, 32, 300_000, 299));
        assert!(counts(40, 30, 3_000, 300) && !counts(40, 29, 3_000, 300), "three quarters");
        assert!(counts(40, 30, 6_000_000, 300) && !counts(40, 30, 6_000_005, 300), "20 sectors");
    }

    #[test]
    fn random_windows_only_raise_the_estimate() {
        let mut rate = PeakRate::new(false);
        feed(&mut rate, 2_000, 8, Nanos::from_millis(1), true);
        assert_eq!(rate.peak(), 22_000);
        let mut rate = PeakRate::new(false);
        feed(&mut rate, 300_000, 8, Nanos::from_micros(4), true);
        assert!(rate.peak() > 22_000);
    }

    #[test]
    fn short_windows_and_absurd_rates_say_nothing() {
        let mut rate = PeakRate::new(false);
        feed(&mut rate, 31, 8, Nanos::from_millis(20), false);
        assert!(!rate.completed(Instant::from_nanos(700_000_000), Nanos::from_millis(80)));
        feed(&mut rate, 200, 2_000_000, Nanos::from_millis(10), false);
        assert_eq!(rate.peak(), 22_000);
    }

    #[test]
    fn a_slow_trickle_closes_the_window_and_counts_if_it_is_sequential() {
        let mut rate = PeakRate::new(true);
        feed(&mut rate, 40, 8, Nanos::from_millis(10), false);
        let now = Instant::from_nanos(400_000_000);
        assert!(rate.completed(now, Nanos::from_millis(10)));
        assert!(rate.peak() < 9_333);
        assert!(!rate.completed(now, Nanos::from_millis(10)), "the window is closed");
    }
}
