//! The device as it is observed: the requests in it, its last position and completion, whether it takes several
//! requests at a time, and its peak rate (`spec/bfq.md` section 11) with the values derived from it: the longest
//! budget, and the time for which a starting application is preferred.
//!
//! Rates are in sectors per microsecond, times 2^16. [`PeakRate`] is a separate state machine, whose input is
//! dispatches and completions.

use super::QueueRef;
use super::habits::{self, Warmth};
use super::tunables::Tunables;
use blkmq_core::{Instant, IoMeta, Nanos};

/// Whether the device takes several requests at a time, learned by observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HwTag {
    /// `None` if unknown.
    pub(crate) queues: Option<bool>,
    samples: u32,
    /// The most requests seen in it.
    pub(crate) most: u32,
}

impl HwTag {
    /// With more requests than this in the device, it queues.
    const THRESHOLD: u32 = 3;
    const SAMPLES: u32 = 32;

    pub(crate) const NEW: Self = Self { queues: None, samples: 0, most: 0 };

    /// Returns whether the device queues requests, or that is unknown.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.queues != Some(false)
    }

    /// Samples at a completion; `in_driver` still counts the completed request. `waiting` is the number of requests
    /// in the scheduler; `sparse` is the number of requests of the queue in service, if its think time is short.
    #[inline]
    pub(crate) fn sample(&mut self, in_driver: u32, waiting: u32, sparse: Option<u32>) {
        self.most = self.most.max(in_driver);
        let too_little = in_driver + waiting <= Self::THRESHOLD;
        let kept_back = sparse.is_some_and(|n| n < Self::THRESHOLD) && in_driver < Self::THRESHOLD;
        if self.queues == Some(true) || too_little || kept_back {
            return;
        }
        self.samples += 1;
        if self.samples > Self::SAMPLES {
            self.queues = Some(self.most > Self::THRESHOLD);
            (self.samples, self.most) = (0, 0);
        }
    }
}

/// The device.
pub(super) struct Device {
    pub(super) rotational: bool,
    /// Requests in it.
    pub(super) in_driver: u32,
    /// The end of the last dispatched request.
    pub(super) last_position: u64,
    pub(super) last_completion: Instant,
    /// The queue of the last completed request.
    pub(super) last_completed: Option<QueueRef>,
    pub(super) hw_tag: HwTag,
    pub(super) rate: PeakRate,
    pub(super) warmth: Warmth,
    /// The longest budget, from the rate.
    auto_budget: u64,
}

impl Device {
    pub(super) fn new(rotational: bool) -> Self {
        Self {
            rotational,
            in_driver: 0,
            last_position: 0,
            last_completion: Instant::ZERO,
            last_completed: None,
            hw_tag: HwTag::NEW,
            rate: PeakRate::new(rotational),
            warmth: Warmth::default(),
            auto_budget: habits::DEFAULT,
        }
    }

    /// Returns whether a request is far from the one that ended at `last_end`.
    #[inline]
    pub(super) fn is_far(&self, last_end: u64, meta: &IoMeta) -> bool {
        habits::is_far(last_end, meta.sector, meta.sectors, self.rotational)
    }

    /// Counts a request that goes to the device.
    #[inline]
    pub(super) fn dispatched(&mut self, meta: &IoMeta, now: Instant, timeout: Nanos) {
        let changed = self.rate.dispatched(&Dispatch {
            now,
            sectors: meta.sectors,
            far: self.is_far(self.last_position, meta),
            in_driver: self.in_driver,
            last_completion: self.last_completion,
        });
        if changed {
            self.adapt_budget(timeout);
        }
        self.last_position = meta.end();
        self.in_driver += 1;
    }

    /// Samples at a completion whether it queues; see [`HwTag::sample`].
    #[inline]
    pub(super) fn sample(&mut self, waiting: u32, sparse: Option<u32>) {
        if self.rotational {
            self.hw_tag.sample(self.in_driver, waiting, sparse);
        } else {
            self.hw_tag.most = self.hw_tag.most.max(self.in_driver);
        }
    }

    /// Counts a completed request of `queue`.
    #[inline]
    pub(super) fn completed(&mut self, queue: QueueRef, at: Instant, timeout: Nanos) {
        self.in_driver -= 1;
        if self.rate.completed(at, at.since(self.last_completion)) {
            self.adapt_budget(timeout);
        }
        self.last_completion = self.last_completion.max(at);
        self.last_completed = Some(queue);
    }

    /// Adapts the longest budget to the rate and to the duration of a slot.
    pub(super) fn adapt_budget(&mut self, timeout: Nanos) {
        // Budgets stay far below the values at which virtual time would overflow.
        self.auto_budget = self.rate.sectors_in(timeout).clamp(1, i32::MAX as u64);
    }

    /// The longest budget of any queue.
    #[inline]
    pub(super) fn max_budget(&self, tunables: &Tunables) -> u64 {
        if tunables.max_budget > 0 {
            tunables.max_budget
        } else if self.warmth.is_warm() {
            self.auto_budget
        } else {
            habits::DEFAULT
        }
    }
}

const SHIFT: u32 = 16;
/// The fewest samples and the least length of a window that is used.
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

/// The estimate of the peak rate.
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

    /// Adds a request that goes to the device. Returns whether the rate has changed.
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

    /// Adds a request that has completed, `since` after the previous one. If requests are slow and small, the window
    /// does not measure the device. Returns whether the rate has changed.
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

    #[test]
    fn the_33rd_valid_sample_decides_and_a_queueing_device_stays_one() {
        let mut device = HwTag::NEW;
        (0..100).for_each(|_| device.sample(1, 2, None));
        assert_eq!(device.queues, None, "too little to do: no sample");
        (0..32).for_each(|_| device.sample(2, 2, Some(3)));
        assert!(device.may_queue() && device.queues.is_none());
        device.sample(2, 2, None);
        assert_eq!(device.queues, Some(false));
        (0..33).for_each(|_| device.sample(4, 0, None));
        assert_eq!(device.queues, Some(true));
        (0..100).for_each(|_| device.sample(1, 9, None));
        assert_eq!(device.queues, Some(true));
    }

    #[test]
    fn a_queue_that_keeps_the_device_to_itself_says_nothing_about_it() {
        let mut device = HwTag::NEW;
        (0..100).for_each(|_| device.sample(2, 9, Some(2)));
        assert_eq!(device.queues, None);
        (0..33).for_each(|_| device.sample(3, 9, Some(2)));
        assert_eq!(
            device.queues,
            Some(false),
            "with three in the device it does not keep others back"
        );
    }

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
        // A window counts for one part in ten, and here four of the other nine are left out: a sixth is measured.
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
