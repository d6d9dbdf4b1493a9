//! Conclusions from a queue's past: habits of its process (the think time between I/Os, the share of distant requests,
//! and whether it does anything but I/O), the length of its next budget by the table of `spec/bfq.md` section 8, and
//! the charge for a slow slot.
//!
//! Plain values and arithmetic without access to the queue; service is in sectors unless stated otherwise. The naive
//! twin uses the habits as well. `serve.rs` decides when a slot expires.

use blkmq_core::{Instant, Nanos};

/// A request more than this many sectors away is far from its predecessor.
const FAR: u64 = 800;
/// A request of this many sectors is worth a jump on a device without moving parts.
pub(crate) const LARGE: u32 = 64;

/// Returns whether a request at `sector` is far from `last_end`, the end of the previous one. Nothing is far from 0,
/// which stands for "no previous request".
#[must_use]
pub fn is_far(last_end: u64, sector: u64, sectors: u32, rotational: bool) -> bool {
    last_end != 0 && last_end.abs_diff(sector) > FAR && (rotational || sectors < LARGE)
}

/// For each of the last 32 requests, whether it was far from its predecessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seeks(u32);

impl Seeks {
    /// The state of a queue without requests so far.
    pub const NEW: Self = Self(1);
    /// More than this many of 32 make a queue seeky.
    const MANY: u32 = 19;

    /// Adds one request.
    pub fn push(&mut self, far: bool) {
        self.0 = self.0 << 1 | u32::from(far);
    }

    /// Returns whether most of the requests were far.
    #[must_use]
    pub fn is_seeky(self) -> bool {
        self.0.count_ones() > Self::MANY
    }

    /// Returns whether all of the requests were far.
    #[must_use]
    pub fn is_totally_seeky(self) -> bool {
        self.0 == u32::MAX
    }
}

/// The time that a process takes from the completion of its last I/O to the next one: a moving average.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinkTime {
    /// The completion time of the last request.
    pub last_end: Instant,
    samples: u64,
    total: u64,
    mean: Nanos,
}

impl ThinkTime {
    /// Up to this weight of samples, the average has no meaning. It corresponds to two samples.
    const TOO_FEW: u64 = 80;

    /// The state of a queue created at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { last_end: now + Nanos(1), samples: 0, total: 0, mean: Nanos::ZERO }
    }

    /// Adds the arrival of a request at an empty queue.
    pub fn arrived(&mut self, now: Instant, slice_idle: Nanos) {
        let took = now.since(self.last_end).0.min(slice_idle.0.saturating_mul(2));
        self.samples = (7 * self.samples + 256) / 8;
        // `took` is within the range of the clock, so an eighth of that range is the most that this can be.
        self.total = (7 * self.total).saturating_add(took.saturating_mul(256)) / 8;
        self.mean = Nanos((self.total + 128) / self.samples);
    }

    /// Returns whether the think time is known to be longer than `limit`.
    #[must_use]
    pub fn exceeds(&self, limit: Nanos) -> bool {
        self.samples > Self::TOO_FEW && self.mean > limit
    }
}

/// Whether a process does little but I/O: the share of idle time in a window of the recent past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoShare {
    since: Instant,
    idle: Nanos,
    bound: bool,
}

impl IoShare {
    /// A window longer than this is halved.
    const WINDOW: Nanos = Nanos::from_millis(200);

    /// The state of a queue created at `now`: it counts as doing nothing but I/O until shown otherwise.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { since: now, idle: Nanos::ZERO, bound: true }
    }

    /// Adds the arrival of a request. `idle` is the time for which none was waiting or in the device.
    pub fn arrived(&mut self, now: Instant, idle: Nanos) {
        // A request that is taken back ends no idleness, so the same time may be counted more than once.
        self.idle = Nanos(self.idle.0.saturating_add(idle.0));
        let window = now.since(self.since);
        self.bound = self.idle.0.saturating_mul(5) <= window.0;
        if window > Self::WINDOW {
            self.since = now.saturating_sub(Nanos(window.0 / 2));
            self.idle = Nanos(self.idle.0 / 2);
        }
    }

    /// Adds `n` arrivals at one time, at least one. `idle` is the time without a request before the first of them.
    pub fn arrived_together(&mut self, now: Instant, idle: Nanos, n: u32) {
        let mut since = self.since;
        self.arrived(now, idle);
        for _ in 1..n {
            if self.since == since {
                // The window was not halved: another request at the same time finds and leaves the same.
                return;
            }
            since = self.since;
            self.arrived(now, Nanos::ZERO);
        }
    }

    /// Returns whether the process was idle for at most a fifth of the time.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Adds the state of another process.
    pub fn join(&mut self, other: &Self) {
        self.bound |= other.bound;
    }
}

/// The longest budget until the rate of the device is known.
pub const DEFAULT: u64 = 16 * 1_024;
/// The warmth from which on budgets adapt at expiry. Below it, the default applies.
const WARM: u32 = 194;

/// A slot shorter than this says little about the speed of the queue.
const SHORT: Nanos = Nanos::from_millis(1);
/// From this length on, the slot itself shows whether the queue is slow.
const TELLING: Nanos = Nanos::from_millis(20);
/// The assumed time of a jump, in a slot too short to measure it.
const JUMP: Nanos = Nanos::from_millis(2);
const JUMP_ROTATIONAL: Nanos = Nanos::from_millis(8);

/// The reason why a slot ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No request arrived while the device was kept idle for the queue.
    TooIdle,
    /// The time of the slot is over.
    Timeout,
    /// The next request exceeds the rest of the budget.
    Exhausted,
    /// The queue is empty, and no request is worth waiting for.
    NoMore,
    /// Another queue must be served immediately.
    Preempted,
}

/// The input of the feedback.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The reason why it ended.
    pub reason: Reason,
    /// Whether the queue is a sync queue.
    pub sync: bool,
    /// Whether the weight of the queue is raised.
    pub raised: bool,
    /// Whether the queue has requests in the device.
    pub in_flight: bool,
    /// The service it received.
    pub service: u64,
    /// Its longest budget so far.
    pub budget: u64,
    /// The longest budget of any queue.
    pub max: u64,
}

impl Slot {
    /// The shortest budget of any queue.
    #[must_use]
    pub const fn min(&self) -> u64 {
        self.max / 32
    }

    /// The next longest budget of the queue.
    #[must_use]
    pub fn next_budget(&self) -> u64 {
        let (old, min, max) = (self.budget, self.min(), self.max);
        if !self.sync {
            // No submitter waits for it, so the longest budget is best for throughput.
            return max;
        }
        match self.reason {
            _ if self.raised => 2 * min,
            Reason::Preempted => old,
            Reason::TooIdle if self.in_flight => (2 * old).min(max),
            Reason::TooIdle if old > 5 * min => old - 4 * min,
            Reason::TooIdle => min,
            Reason::Timeout => (2 * old).min(max),
            Reason::Exhausted => (4 * old).min(max),
            Reason::NoMore => self.service.max(min),
        }
    }

    /// The charge for the time of a slow slot, which had `budget`; `None` if it is charged for its service. Without
    /// this charge, a queue of scattered requests would get too much of the device.
    #[must_use]
    pub fn charge_for_time(&self, pace: &Pace, budget: u64, timeout: Nanos) -> Option<u64> {
        let (slow, time) = self.slowness(pace);
        let wasted = self.reason == Reason::Timeout && much_left(budget, self.service);
        let charged = !self.raised && (slow || wasted);
        charged.then(|| charge_for_time(self.max, time, timeout).max(self.service))
    }

    /// Returns whether the queue was slow in this slot, and the time that the slot counts for the charge.
    fn slowness(&self, pace: &Pace) -> (bool, Nanos) {
        let Pace { time, seeky, rotational } = *pace;
        if !self.sync {
            (false, time)
        } else if time < SHORT {
            (seeky, if rotational { JUMP_ROTATIONAL } else { JUMP })
        } else if time > TELLING {
            (self.service < self.max / 2, time)
        } else {
            (seeky, time)
        }
    }
}

/// The pace of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Its length.
    pub time: Nanos,
    /// Whether the requests of the queue are scattered.
    pub seeky: bool,
    /// Whether the device has moving parts.
    pub rotational: bool,
}

/// Returns whether at least a third of the budget is left.
#[must_use]
pub fn much_left(budget: u64, service: u64) -> bool {
    budget.saturating_sub(service) >= budget / 3
}

/// The charge for a slow slot: the fraction of the longest budget that `time` is of the longest slot.
#[must_use]
pub fn charge_for_time(max: u64, time: Nanos, timeout: Nanos) -> u64 {
    // At most `max`, so the result fits in 64 bits again.
    (u128::from(max) * u128::from(time.min(timeout).0) / u128::from(timeout.0.max(1))) as u64
}

/// Counts slots until the device is known well enough to adapt budgets to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Warmth(u32);

impl Warmth {
    /// Counts one more slot.
    pub fn another(&mut self) {
        self.0 = (7 * self.0 + 256) / 8;
    }

    /// Returns whether there have been enough slots.
    #[must_use]
    pub const fn is_warm(self) -> bool {
        self.0 >= WARM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_arrive_together_count_as_one_after_the_other() {
        for (ms, n) in
            [100, 300, 500, 3000].into_iter().flat_map(|ms| (1..=8).map(move |n| (ms, n)))
        {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            let mut together = IoShare::new(Instant::ZERO);
            let mut apart = together;
            together.arrived_together(now, Nanos::from_millis(90), n);
            apart.arrived(now, Nanos::from_millis(90));
            (1..n).for_each(|_| apart.arrived(now, Nanos::ZERO));
            assert_eq!(together, apart, "{n} after {ms} ms");
        }
    }

    #[test]
    fn twenty_far_requests_of_32_are_seeky() {
        let mut seeks = Seeks::NEW;
        (0..18).for_each(|_| seeks.push(true));
        assert!(!seeks.is_seeky(), "19 with the one that everybody begins with");
        seeks.push(true);
        assert!(seeks.is_seeky() && !seeks.is_totally_seeky());
        (0..31).for_each(|_| seeks.push(true));
        assert!(seeks.is_totally_seeky());
        seeks.push(false);
        assert!(seeks.is_seeky() && !seeks.is_totally_seeky());
    }

    #[test]
    fn far_is_more_than_800_sectors_and_large_requests_are_near_where_nothing_rotates() {
        assert!(is_far(1_000, 1_801, 8, false) && !is_far(1_000, 1_800, 8, false));
        assert!(is_far(2_000, 1_199, 8, true), "backwards as well");
        assert!(!is_far(1_000, 5_000, 64, false) && is_far(1_000, 5_000, 64, true));
        assert!(!is_far(0, 5_000, 8, true), "nobody has been anywhere");
    }

    #[test]
    fn think_time_is_valid_from_the_third_sample_and_capped_at_two_slices() {
        let slice = Nanos::from_millis(8);
        let mut think = ThinkTime::new(Instant::ZERO);
        think.last_end = Instant::ZERO;
        let late = Instant::ZERO + Nanos::from_secs(9);
        (0..2).for_each(|_| think.arrived(late, slice));
        assert!(!think.exceeds(Nanos::ZERO));
        think.arrived(late, slice);
        assert!(think.exceeds(Nanos::from_millis(15)) && !think.exceeds(Nanos::from_millis(17)));
    }

    #[test]
    fn a_fifth_of_idleness_is_the_limit_and_the_past_fades() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut share = IoShare::new(Instant::ZERO);
        share.arrived(at(100), Nanos::from_millis(20));
        assert!(share.is_bound());
        share.arrived(at(101), Nanos::from_millis(1));
        assert!(!share.is_bound());
        (0..6).for_each(|i| share.arrived(at(300 + 200 * i), Nanos::ZERO));
        assert!(share.is_bound());
    }

    #[test]
    fn no_idleness_is_too_long_to_be_counted() {
        let (late, age) = (Instant::from_nanos(u64::MAX), Nanos(u64::MAX));
        let mut think = ThinkTime::new(Instant::ZERO);
        (0..100).for_each(|_| think.arrived(late, age));
        assert!(think.exceeds(Nanos::from_secs(3600)));
        let mut share = IoShare::new(Instant::ZERO);
        (0..3).for_each(|_| share.arrived(late, age));
        assert!(!share.is_bound());
    }

    #[test]
    fn a_window_of_200_ms_is_not_halved_yet() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        for (window, bound) in [(200, true), (201, false)] {
            let mut share = IoShare::new(Instant::ZERO);
            share.arrived(at(window), Nanos::ZERO);
            share.arrived(at(250), Nanos::from_millis(50));
            assert_eq!(share.is_bound(), bound, "a fifth of 250 ms, and more than that of 150");
        }
    }

    #[test]
    fn a_think_time_that_is_the_limit_does_not_exceed_it() {
        let known = ThinkTime { samples: 256, mean: Nanos(5), ..ThinkTime::new(Instant::ZERO) };
        assert!(known.exceeds(Nanos(4)) && !known.exceeds(Nanos(5)));
    }

    #[test]
    fn of_a_window_that_is_halved_half_of_the_idle_time_is_left() {
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        for (idle, bound) in [(20_000_000, true), (20_000_001, false)] {
            let mut share = IoShare::new(Instant::ZERO);
            share.arrived(at(300), Nanos::from_millis(60));
            share.arrived(at(400), Nanos(idle));
            assert_eq!(share.is_bound(), bound, "30 ms and {idle} ns of 250 ms");
        }
    }

    #[test]
    fn two_processes_together_do_little_but_io_if_one_does() {
        let share = |bound| IoShare { bound, ..IoShare::new(Instant::ZERO) };
        let join = |one, two| {
            let mut joined = share(one);
            joined.join(&share(two));
            joined.is_bound()
        };
        let all = [join(false, false), join(false, true), join(true, false), join(true, true)];
        assert_eq!(all, [false, true, true, true]);
    }

    const SLOT: Slot = Slot {
        reason: Reason::NoMore,
        sync: true,
        raised: false,
        in_flight: false,
        service: 100,
        budget: 10_922,
        max: DEFAULT,
    };

    #[test]
    fn s19_05_the_feedback_table_row_by_row() {
        let of =
            |reason, in_flight, budget| Slot { reason, in_flight, budget, ..SLOT }.next_budget();
        assert_eq!(of(Reason::TooIdle, true, 4_000), 8_000);
        assert_eq!(of(Reason::TooIdle, true, 10_922), 16_384);
        assert_eq!(of(Reason::TooIdle, false, 10_922), 10_922 - 2_048);
        assert_eq!(of(Reason::TooIdle, false, 2_561), 513);
        assert_eq!(of(Reason::TooIdle, false, 2_560), 512);
        assert_eq!(of(Reason::Timeout, false, 5_000), 10_000);
        assert_eq!(of(Reason::Timeout, false, 10_922), 16_384);
        assert_eq!(of(Reason::Exhausted, false, 10_922), 16_384, "and not 43688");
        assert_eq!(of(Reason::Exhausted, false, 1_000), 4_000);
        assert_eq!(of(Reason::NoMore, false, 10_922), 512);
        assert_eq!(Slot { service: 3_000, ..SLOT }.next_budget(), 3_000);
        assert_eq!(of(Reason::Preempted, false, 777), 777);
        let all = [Reason::TooIdle, Reason::Timeout, Reason::Exhausted, Reason::NoMore];
        for reason in all.into_iter().chain([Reason::Preempted]) {
            assert_eq!(Slot { reason, raised: true, ..SLOT }.next_budget(), 1_024);
            assert_eq!(Slot { reason, sync: false, ..SLOT }.next_budget(), 16_384);
            assert_eq!(Slot { reason, sync: false, raised: true, ..SLOT }.next_budget(), 16_384);
        }
    }

    #[test]
    fn eleven_slots_make_it_warm() {
        let mut warmth = Warmth::default();
        (0..10).for_each(|_| warmth.another());
        assert!(!warmth.is_warm());
        warmth.another();
        assert!(warmth.is_warm());
    }

    #[test]
    fn time_is_charged_in_proportion_up_to_a_whole_budget() {
        let timeout = Nanos::from_millis(125);
        assert_eq!(charge_for_time(16_000, Nanos::from_millis(25), timeout), 3_200);
        assert_eq!(charge_for_time(16_000, Nanos::from_secs(1), timeout), 16_000);
        assert!(much_left(900, 600) && !much_left(900, 601) && !much_left(9, 20));
    }
}
