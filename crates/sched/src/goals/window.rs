//! The window of a goal: the latencies of one kind of I/O of a group since the controller's last step, counted by all
//! requests or by samples.
//!
//! At high rates, while nothing is taken, a part of the requests tells as much as all. A window with [`ENOUGH_SAMPLES`]
//! samples is judged by them, and the next one is sampled to have as many again at the same rate. If a window has too
//! few samples to be judged, every request is counted from the next look on.

use blkmq_core::{Instant, Nanos};

/// With fewer I/Os than this, a window continues until [`ENOUGH_TIME`].
const ENOUGH: u32 = 100;
const ENOUGH_TIME: Nanos = Nanos::from_secs(1);
/// One late I/O may be chance. It counts if it took more than so many times the goal, or after this time in a window
/// with few I/Os.
const FAR: u64 = 4;
const FEW_TIME: Nanos = Nanos::from_millis(500);
/// The number of buckets: four for each power of two of microseconds, up to two minutes.
const BUCKETS: usize = 4 * 27;

/// The judgement on a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The window continues.
    Open,
    /// The window continues. I/Os wait, and none has ended.
    Unknown,
    /// No I/O came.
    Idle,
    /// At most 1 % took longer than the goal.
    Met,
    /// More than 1 % took longer than the goal, or one waits for longer.
    Missed,
}

/// Counts of latencies.
pub(super) struct Window {
    /// I/Os counted, and those that took longer than the goal.
    ios: u32,
    over: u32,
    /// One took more than [`FAR`] times the goal.
    far: bool,
    /// All I/Os that have ended, and the longest latency from arrival on.
    ended: u32,
    slowest: Nanos,
    /// The sum of latencies, in nanoseconds.
    sum: u64,
    buckets: [u32; BUCKETS],
    /// The longest wait of an I/O that had not ended at the last judgement.
    waits: Nanos,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            ios: 0,
            over: 0,
            far: false,
            ended: 0,
            slowest: Nanos::ZERO,
            sum: 0,
            buckets: [0; BUCKETS],
            waits: Nanos::ZERO,
        }
    }
}

/// The bucket of a latency.
fn bucket(latency: Nanos) -> usize {
    let quarters = (latency.0 / 250).max(4);
    let power = quarters.ilog2();
    // `fine` is from 4 to 7.
    let fine = (quarters >> (power - 2)) as usize;
    (power as usize * 4 + fine - 12).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn upper(bucket: usize) -> Nanos {
    let (power, fine) = (bucket / 4, bucket as u64 % 4);
    Nanos(((4 + fine + 1) << power) * 250)
}

impl Window {
    /// Counts an I/O that ended `at`. If it came before the window began, only the time in the window counts, and only
    /// if that is longer than the goal: earlier steps are responsible for the rest.
    pub(super) fn count(&mut self, came: Instant, at: Instant, began: Instant, goal: Nanos) {
        self.ended += 1;
        self.slowest = self.slowest.max(at.since(came));
        let latency = at.since(came.max(began));
        if latency > goal {
            self.count_late(latency, goal);
        } else if came < began {
            return;
        }
        self.ios += 1;
        self.sum += latency.0;
        self.buckets[bucket(latency)] += 1;
    }

    #[cold]
    fn count_late(&mut self, latency: Nanos, goal: Nanos) {
        self.over += 1;
        self.far |= latency.0 / FAR > goal.0;
    }

    /// Judges the window after `elapsed`, with the longest wait of an I/O that has not ended.
    pub(super) fn verdict(&mut self, elapsed: Nanos, waits: Option<Nanos>, goal: Nanos) -> Verdict {
        self.waits = waits.unwrap_or_default();
        let late = u64::from(self.over) + u64::from(self.waits > goal);
        let too_many = late * 100 > u64::from(self.ios);
        let far = self.far || self.waits.0 / FAR > goal.0;
        if too_many && (late > 1 || far || self.ios < ENOUGH / 2 && elapsed >= FEW_TIME) {
            return Verdict::Missed;
        }
        match (self.ios, waits) {
            (0, None) => Verdict::Idle,
            (0, Some(_)) => Verdict::Unknown,
            (ios, _) if ios >= ENOUGH || elapsed >= ENOUGH_TIME => Verdict::Met,
            _ => Verdict::Open,
        }
    }

    /// The I/Os that were counted.
    pub(super) fn ios(&self) -> u32 {
        self.ios
    }

    /// The I/Os that have ended, and the latency of the slow ones: the 99th percentile of many, and of few the longest,
    /// from the arrival on even if that was before the window began.
    pub(super) fn whole(&self) -> (u32, Nanos) {
        let slow = if self.ios < ENOUGH { self.slowest } else { self.p99() };
        (self.ended, slow)
    }

    /// The mean latency in nanoseconds; without ended I/Os, the wait of the oldest.
    pub(super) fn mean(&self) -> u64 {
        if self.ios == 0 { self.waits.0 } else { self.sum / u64::from(self.ios) }
    }

    /// The 99th percentile, rounded up to the end of a bucket. An I/O that waits for longer counts as ended.
    pub(super) fn p99(&self) -> Nanos {
        let mut beyond = self.ios / 100;
        for place in (0..BUCKETS).rev() {
            let here = self.buckets[place];
            if here > beyond {
                return upper(place).max(self.waits);
            }
            beyond -= here;
        }
        self.waits
    }
}

/// The samples of a window. Where one request in 200 is late, 4 % of windows with so many seem to have more than one in
/// 100, and a tenth of windows with 100 requests.
const ENOUGH_SAMPLES: u32 = 500;
/// The most requests that a sample stands for.
pub(super) const MOST: u32 = 16;

/// If a goal had I/Os within this time, but none in the window, every request is counted.
const LATELY: Nanos = Nanos::from_secs(10);

/// The choice of samples: one stands for `stride` requests.
pub(super) struct Sampling {
    stride: u32,
    /// Samples since the window began, of all groups.
    samples: u32,
    /// A pseudorandom sequence. A fixed stride would match the pattern of plugs, whose last request waits longest.
    noise: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { stride: 1, samples: 0, noise: 1 }
    }
}

impl Sampling {
    pub(super) fn stride(&self) -> u32 {
        self.stride
    }

    /// The number of requests up to and including the next sample: from 1 to twice the stride less one.
    pub(super) fn next(&mut self) -> u32 {
        self.samples = self.samples.saturating_add(1);
        if self.stride == 1 {
            return 1;
        }
        // The upper bits of a linear congruential generator are the better ones.
        self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (self.noise >> 16) % (2 * self.stride - 1)
    }

    /// The stride with which the next window has [`ENOUGH_SAMPLES`] samples, if this one had `samples`.
    fn enough(&self, samples: u32) -> u32 {
        let stride = u64::from(self.stride) * u64::from(samples) / u64::from(ENOUGH_SAMPLES);
        stride.clamp(1, MOST.into()) as u32
    }

    /// The greatest stride after a look at a goal's window, which has `samples` samples.
    pub(super) fn wanted(&self, verdict: Verdict, samples: u32, idle_for: Nanos) -> u32 {
        match verdict {
            Verdict::Idle if idle_for >= LATELY => self.enough(self.samples),
            Verdict::Met => self.enough(samples),
            Verdict::Idle | Verdict::Open | Verdict::Unknown | Verdict::Missed => 1,
        }
    }

    pub(super) fn set(&mut self, stride: u32) {
        self.stride = stride;
    }

    /// Begins the next window.
    pub(super) fn restart(&mut self) {
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_quarter_wide() {
        for ns in [1, 999, 1_000, 1_250, 77_777, 1_000_000, 9_999_999, 60_000_000_000] {
            let end = upper(bucket(Nanos(ns))).0;
            assert!(end > ns && (end <= ns + ns / 4 || end <= 1_250), "{ns}: {end}");
        }
    }

    #[test]
    fn one_in_a_hundred_may_take_longer() {
        let mut window = Window::default();
        let (began, goal) = (Instant::ZERO, Nanos::from_millis(2));
        for n in 0..100 {
            let latency = if n == 7 { Nanos::from_millis(9) } else { Nanos::from_millis(1) };
            window.count(began, began + latency, began, goal);
        }
        assert_eq!(window.verdict(Nanos::from_millis(100), None, goal), Verdict::Met);
        assert!(window.p99() < goal, "{:?}", window.p99());
        window.count(began, began + Nanos::from_millis(3), began, goal);
        window.count(began, began + Nanos::from_millis(3), began, goal);
        assert_eq!(window.verdict(Nanos::from_millis(100), None, goal), Verdict::Missed);
        assert!(window.p99() >= Nanos::from_millis(3));
    }

    #[test]
    fn no_completions_while_some_wait_is_never_good() {
        let goal = Nanos::from_millis(2);
        let mut window = Window::default();
        let second = Nanos::from_secs(1);
        assert_eq!(window.verdict(second, None, goal), Verdict::Idle);
        assert_eq!(window.verdict(second, Some(goal), goal), Verdict::Unknown);
        assert_eq!(window.verdict(second, Some(Nanos(goal.0 + 1)), goal), Verdict::Missed);
        assert_eq!(window.verdict(Nanos(0), Some(Nanos(5 * goal.0)), goal), Verdict::Missed);
        let soon = Nanos::from_millis(400);
        assert_eq!(window.verdict(soon, Some(Nanos(goal.0 + 1)), goal), Verdict::Unknown);
    }

    #[test]
    fn samples_are_as_many_as_a_window_needs() {
        let mut sampling = Sampling::default();
        let met =
            |sampling: &Sampling, samples| sampling.wanted(Verdict::Met, samples, Nanos::ZERO);
        assert_eq!((sampling.next(), met(&sampling, 999)), (1, 1));
        sampling.set(met(&sampling, 2_500));
        assert_eq!(sampling.stride(), 5);
        assert_eq!(met(&sampling, 500), 5, "the rate is as before");
        assert_eq!(met(&sampling, 1_000), 10, "it is twice that");
        assert_eq!(met(&sampling, 2_000), MOST);
        for scarce in [Verdict::Open, Verdict::Unknown, Verdict::Missed] {
            assert_eq!(sampling.wanted(scarce, 99, Nanos::ZERO), 1);
        }
    }

    #[test]
    fn beside_a_goal_without_ios_samples_are_of_the_others() {
        let mut sampling = Sampling::default();
        (0..2_500).for_each(|_| assert_eq!(sampling.next(), 1));
        assert_eq!(sampling.wanted(Verdict::Idle, 0, Nanos(LATELY.0 - 1)), 1, "it had some lately");
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 5);
        sampling.restart();
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 1, "others had none either");
    }

    #[test]
    fn samples_are_of_every_place_in_a_plug() {
        let mut sampling = Sampling::default();
        sampling.set(8);
        let mut of_places = [0; 8];
        let mut at = 0;
        for _ in 0..8_000 {
            at += sampling.next() as usize;
            of_places[at % 8] += 1;
        }
        assert!((63_000..65_000).contains(&at), "one in eight on average: 8000 of {at}");
        assert!(of_places.iter().all(|n| (900..1_100).contains(n)), "{of_places:?}");
    }
}
