//! The requests that have left the elevator and that a pump knows of, for a report.

use super::{Pump, Tag};
use blkmq_core::RequestId;

impl<P> Pump<P> {
    /// Requests that the device refused, or wants again later.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (RequestId, Tag)> {
        self.stuck.iter().chain(&self.later).map(|rq| (rq.id, rq.tag))
    }

    /// How many requests are at the device.
    pub(crate) fn inside(&self) -> u32 {
        self.at_device
    }
}
