//! Whether, and for how long, to keep the device idle for an empty queue (`spec/bfq.md` section 10).
//!
//! There are two reasons: the next request will be close and soon, so that idling is faster; or other queues would
//! take the share that this queue has by its weight.

use super::device::Device;
use super::queues::Queues;
use super::rate;
use super::tunables::Tunables;
use blkmq_core::Nanos;

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

/// The grounds on which the device is kept idle.
#[derive(Clone, Copy)]
pub(super) struct Idling<'a> {
    pub(super) queues: &'a Queues,
    pub(super) device: &'a Device,
    pub(super) tunables: &'a Tunables,
}

impl Idling<'_> {
    /// Returns whether the device should be kept idle for `q`, if `q` is empty.
    pub(super) fn is_better(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        if self.tunables.strict {
            return true;
        }
        if self.tunables.slice_idle == Nanos::ZERO || !queue.sync || self.queues.is_idle_class(q) {
            return false;
        }
        self.boosts(q) || self.is_needed(q)
    }

    /// Returns whether idling increases throughput.
    pub(super) fn boosts(self, q: u32) -> bool {
        let queue = &self.queues[q];
        let serial = !self.device.hw_tag.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.device.rotational && serial)
            || ((self.device.rotational || serial) && sequential);
        boosts && self.queues.raised_busy == 0
    }

    /// Returns whether `q` would get less than its share without idling.
    pub(super) fn is_needed(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        let busy = self.queues.busy_queues();
        let exposed = queue.raising.is_raised()
            && (self.queues.raised_busy < busy || self.device.in_driver >= queue.dispatched + 4);
        exposed || self.queues.is_asymmetric(q) || busy == 1
    }

    /// The time for which the device is kept idle for `q`.
    pub(super) fn span(self, q: u32) -> Nanos {
        let queue = &self.queues[q];
        let span = self.tunables.slice_idle;
        if queue.raising.is_raised() {
            span.max(RAISED_IDLE)
        } else if queue.seeks.is_seeky() && !self.queues.is_asymmetric(q) {
            span.min(rate::AT_ONCE)
        } else {
            span
        }
    }
}
