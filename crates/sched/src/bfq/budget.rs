//! The length of a queue's next budget, by the table of `spec/bfq.md` section 8, and the charge for a slow slot.
//!
//! Pure arithmetic, in sectors unless stated otherwise. `serve.rs` decides when a slot expires.

use blkmq_core::Nanos;

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
