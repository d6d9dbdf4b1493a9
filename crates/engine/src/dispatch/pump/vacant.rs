//! [`Vacant`]: the device of a pump that has none.

use crate::dispatch::device::{DeviceQueue, Enqueued, Finished};
use crate::{BioTable, Inflight};
use blkmq_core::Instant;

/// Stands in for a device that is yet to come, or that has gone to a later queue; likewise for the lane of a submitter that
/// has never been registered.
pub(crate) struct Vacant;

impl<P> DeviceQueue<P> for Vacant {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, _: Inflight) -> Enqueued {
        unreachable!("nothing is issued by a queue without its device")
    }

    fn reap(&mut self, _: Instant, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}
