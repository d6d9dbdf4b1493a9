//! What a pump knows of the requests that have left the elevator: for a report.

use super::{Pump, Tag};
use blkmq_core::RequestId;

impl<P> Pump<P> {
    /// What the device refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (RequestId, Tag)> {
        self.stuck.iter().chain(&self.later).map(|rq| (rq.id, rq.tag))
    }

    /// How many requests are at the device.
    pub(crate) fn inside(&self) -> u32 {
        self.at_device
    }
}
