//! [`Hardware`] where the feature `models` is off: there is none.

use crate::{ArrivalLog, OccupancyLog};
use blkmq_engine::DeviceQueues;

/// A model of hardware.
#[derive(Clone, Debug)]
pub(crate) enum Hardware {}

impl Hardware {
    pub(crate) fn queues<P>(
        &self,
        _: Option<&ArrivalLog>,
        _: Option<&OccupancyLog>,
    ) -> DeviceQueues<P> {
        match *self {}
    }
}
