//! The device as it is observed: the requests in it, its last position and completion, its rate with the longest budget
//! that follows from it, and whether it takes several requests at a time.

use super::QueueRef;
use super::budget::{self, Warmth};
use super::habits;
use super::rate::{Dispatch, PeakRate};
use super::tunables::Tunables;
use blkmq_core::{Instant, IoMeta, Nanos};

/// Whether the device takes several requests at a time, learned by observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HwTag {
    /// `None`: not known yet.
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

    /// The device queues, or it is not known yet.
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
            auto_budget: budget::DEFAULT,
        }
    }

    /// Returns whether a request is far from the one that ended at `last_end`.
    #[inline]
    pub(super) fn is_far(&self, last_end: u64, meta: &IoMeta) -> bool {
        habits::is_far(last_end, meta.sector, meta.sectors, self.rotational)
    }

    /// A request goes to the device.
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

    /// A request of `queue` is back.
    #[inline]
    pub(super) fn completed(&mut self, queue: QueueRef, at: Instant, timeout: Nanos) {
        self.in_driver -= 1;
        if self.rate.completed(at, at.since(self.last_completion)) {
            self.adapt_budget(timeout);
        }
        self.last_completion = self.last_completion.max(at);
        self.last_completed = Some(queue);
    }

    /// The rate, or the duration of a slot, has changed.
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
            budget::DEFAULT
        }
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
}
