//! Whether, and for how long, to keep the device idle for an empty queue (`spec/bfq.md` section 10).
//!
//! There are two reasons: the next request will be close and soon, so that idling is faster; or other queues would
//! take the share that this queue has by its weight.

use super::{Bfq, rate};
use blkmq_core::Nanos;

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

/// Whether the device takes several requests at a time, learned by observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    /// `None`: not known yet.
    pub(crate) queues: Option<bool>,
    samples: u32,
    /// The most requests seen in it.
    pub(crate) most: u32,
}

impl Device {
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

impl Bfq {
    /// Returns whether the device should be kept idle for `q`, if `q` is empty.
    pub(super) fn better_to_idle(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        if self.tunables.strict {
            return true;
        }
        if self.tunables.slice_idle == Nanos::ZERO || !queue.sync || self.is_idle_class(q) {
            return false;
        }
        self.idling_boosts(q) || self.idling_needed(q)
    }

    /// Returns whether idling increases throughput.
    pub(super) fn idling_boosts(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        let serial = !self.device.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.rotational && serial) || ((self.rotational || serial) && sequential);
        boosts && self.raised_busy == 0
    }

    /// Returns whether `q` would get less than its share without idling.
    pub(super) fn idling_needed(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        let busy = self.busy_queues();
        let exposed = queue.raising.is_raised()
            && (self.raised_busy < busy || self.in_driver >= queue.dispatched + 4);
        exposed || self.is_asymmetric(Some(q)) || busy == 1
    }

    /// Returns whether queues have different claims, so that serving them evenly would be unfair. It is not unfair to
    /// the queue with the least claim.
    #[inline]
    pub(super) fn is_asymmetric(&self, q: Option<u32>) -> bool {
        if self.groups.pending() > 1 {
            return true;
        }
        if self.busy.iter().filter(|n| **n > 0).count() > 1 {
            return true;
        }
        let counted = q.and_then(|q| self.queues[q].counted_weight);
        let lowest = self.weights.lowest();
        self.weights.differ() && (counted.is_none() || counted != lowest)
    }

    /// The time for which the device is kept idle for `q`.
    pub(super) fn idle_span(&self, q: u32) -> Nanos {
        let queue = &self.queues[q];
        let span = self.tunables.slice_idle;
        if queue.raising.is_raised() {
            span.max(RAISED_IDLE)
        } else if queue.seeks.is_seeky() && !self.is_asymmetric(Some(q)) {
            span.min(rate::AT_ONCE)
        } else {
            span
        }
    }

    /// The number of busy queues.
    #[inline]
    pub(super) fn busy_queues(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Returns whether another queue is busy besides the one in service.
    #[inline]
    pub(super) fn others_are_busy(&self) -> bool {
        self.busy_queues() > 1
    }
}

/// The number of queues of each weight, among those that are busy or have requests in the device and are not raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights([u32; 8]);

impl Weights {
    pub(crate) const NEW: Self = Self([0; 8]);

    /// The index of a weight; weights are 10, 20 up to 80.
    pub(crate) fn index(weight: u32) -> u8 {
        (weight / 10 - 1).min(7) as u8
    }

    pub(crate) fn add(&mut self, index: u8) {
        self.0[usize::from(index)] += 1;
    }

    pub(crate) fn remove(&mut self, index: u8) {
        self.0[usize::from(index)] -= 1;
    }

    pub(crate) fn differ(&self) -> bool {
        self.0.iter().filter(|n| **n > 0).count() > 1
    }

    pub(crate) fn lowest(&self) -> Option<u8> {
        self.0.iter().position(|n| *n > 0).map(|at| at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_33rd_valid_sample_decides_and_a_queueing_device_stays_one() {
        let mut device = Device::NEW;
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
        let mut device = Device::NEW;
        (0..100).for_each(|_| device.sample(2, 9, Some(2)));
        assert_eq!(device.queues, None);
        (0..33).for_each(|_| device.sample(3, 9, Some(2)));
        assert_eq!(
            device.queues,
            Some(false),
            "with three in the device it does not keep others back"
        );
    }

    #[test]
    fn weights_differ_when_two_are_there() {
        let mut weights = Weights::NEW;
        weights.add(Weights::index(40));
        weights.add(Weights::index(40));
        assert!(!weights.differ());
        weights.add(Weights::index(10));
        assert!(weights.differ());
        assert_eq!(weights.lowest(), Some(0));
        weights.remove(0);
        assert!(!weights.differ());
    }
}
