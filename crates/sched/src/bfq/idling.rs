//! Whether to keep the device idle for a queue that is empty (`spec/bfq.md` section 10), and for how long.
//!
//! For two reasons: because the next request will be close and soon, which is faster; or because otherwise others would
//! take what is this queue's by its weight.

use super::{Bfq, rate};
use blkmq_core::Nanos;

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

/// Does the device take several requests at a time? Found out by looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    /// `None`: not known yet.
    pub(crate) queues: Option<bool>,
    samples: u32,
    /// The most requests that were in it.
    pub(crate) most: u32,
}

impl Device {
    /// More requests than this in the device: it queues.
    const THRESHOLD: u32 = 3;
    const SAMPLES: u32 = 32;

    pub(crate) const NEW: Self = Self { queues: None, samples: 0, most: 0 };

    /// It may queue, as far as is known.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        self.queues != Some(false)
    }

    /// A request has completed, that is counted as in the device still. `waiting` is what the scheduler holds;
    /// `sparse` is the number of requests of a queue in service that thinks little.
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
    /// Is the device to be kept idle for `q`, should it be empty?
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

    /// Is it the faster thing to do?
    pub(super) fn idling_boosts(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        let serial = !self.device.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.rotational && serial) || ((self.rotational || serial) && sequential);
        boosts && self.raised_busy == 0
    }

    /// Would `q` get less than its share without it?
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

    /// Do queues have different claims, so that serving them evenly would be unfair? Not to the one with the least.
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

    /// How long the device waits for `q`.
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

    /// Queues that are busy.
    #[inline]
    pub(super) fn busy_queues(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Is there a queue besides the one in service that is busy?
    #[inline]
    pub(super) fn others_are_busy(&self) -> bool {
        self.busy_queues() > 1
    }
}

/// How many queues there are of each weight, among those that are busy or in the device and not raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights([u32; 8]);

impl Weights {
    pub(crate) const NEW: Self = Self([0; 8]);

    /// Weights are 10, 20 up to 80.
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
