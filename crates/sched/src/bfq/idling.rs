//! Whether, and for how long, to keep the device idle for an empty queue (`spec/bfq.md` section 10).
//!
//! There are two reasons: the next request will be close and soon, so that idling is faster; or other queues would
//! take the share that this queue has by its weight.

use super::{Bfq, rate};
use blkmq_core::Nanos;

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

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
        let serial = !self.device.hw_tag.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.device.rotational && serial)
            || ((self.device.rotational || serial) && sequential);
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
            && (self.raised_busy < busy || self.device.in_driver >= queue.dispatched + 4);
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
