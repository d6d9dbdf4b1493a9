//! [`Hardware`]: the models of hardware, which the feature `models` has. `no_models.rs` takes the place of this file without it.

use crate::cloud::{self, CloudParams};
use crate::disk::{self, DiskParams};
use crate::flash::{self, FlashDrive, FlashParams};
use crate::{ArrivalLog, OccupancyLog};
use blkmq_core::Payload;
use blkmq_engine::DeviceQueues;

/// A model of hardware with its parameters.
#[derive(Clone, Debug)]
pub(crate) enum Hardware {
    Disk(DiskParams),
    Flash(FlashParams, FlashDrive),
    Cloud(CloudParams),
}

impl Hardware {
    /// Its hardware queues, powered on anew.
    pub(crate) fn queues<P: Payload>(
        &self,
        log: Option<&ArrivalLog>,
        occupancy: Option<&OccupancyLog>,
    ) -> DeviceQueues<P> {
        match self {
            Self::Disk(params) => disk::queues(params, log, occupancy),
            Self::Flash(params, drive) => flash::queues(params, drive, log, occupancy),
            Self::Cloud(params) => cloud::queues(params, log),
        }
    }

    /// The counters of a flash device.
    pub(crate) fn flash(&self) -> Option<&FlashDrive> {
        match self {
            Self::Disk(_) | Self::Cloud(_) => None,
            Self::Flash(_, drive) => Some(drive),
        }
    }
}
