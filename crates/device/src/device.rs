//! [`Device`]: a model with its final parameters, ready for a queue.
//!
//! It is a description; [`Device::queues`] makes the hardware queues.

use crate::cloud::{self, CloudParams};
use crate::description::Parts;
use crate::disk::{self, DiskParams};
use crate::faults::{FaultsParams, Faulty};
use crate::flash::{self, FlashDrive, FlashParams};
use crate::memory::{self, MemoryParams, MemoryStore};
use crate::null::{self, NullParams};
use crate::{ArrivalLog, OccupancyLog};
use blkmq_core::Payload;
use blkmq_engine::{BlockDevice, Config, DeviceQueues, DeviceShape};
use std::io;

/// A device with its final parameters.
#[derive(Clone, Debug)]
pub struct Device {
    /// The shape of the device for the engine.
    pub shape: DeviceShape,
    /// Whether the device requests the scheduler `none` unless the user names one.
    pub no_sched: bool,
    /// Notes for the user, a sentence each, on values that were rounded, clamped, replaced, or accepted without effect.
    pub notes: Vec<String>,
    /// The arrival log, if arrivals are recorded.
    pub log: Option<ArrivalLog>,
    /// The occupancy log, if the device models parts and records their work.
    pub occupancy: Option<OccupancyLog>,
    pub(crate) model: Model,
}

/// The model of a device, with its parameters.
#[derive(Clone, Debug)]
pub(crate) enum Model {
    Null(NullParams),
    Memory(MemoryParams, MemoryStore),
    Disk(DiskParams),
    Flash(FlashParams, FlashDrive),
    Cloud(CloudParams),
    /// Faults around another device.
    Faults(FaultsParams, Box<Device>),
}

impl Device {
    /// Builds a device from the result of a model's builder.
    pub(crate) fn of<M>(parts: Parts<M>, model: impl FnOnce(M) -> Model) -> Self {
        let Parts { shape, no_sched, notes, log, occupancy, model: own } = parts;
        Self { shape, no_sched, notes, log, occupancy, model: model(own) }
    }

    /// Wraps `inner` with faults.
    pub(crate) fn around(params: FaultsParams, mut notes: Vec<String>, mut inner: Self) -> Self {
        notes.append(&mut inner.notes);
        Self {
            shape: params.shape(&inner.shape),
            no_sched: inner.no_sched,
            notes,
            log: inner.log.clone(),
            occupancy: inner.occupancy.clone(),
            model: Model::Faults(params, Box::new(inner)),
        }
    }

    /// Returns the hardware queues, `shape.hw_queues` of them, for payloads of type `P`.
    ///
    /// Every call powers the device on again: nothing in flight, a full bandwidth budget, and the faults from the start
    /// of their seed. The arrival log and the stored data are kept, and all data is durable.
    #[must_use]
    pub fn queues<P: Payload>(&self) -> DeviceQueues<P> {
        let (log, occupancy) = (self.log.as_ref(), self.occupancy.as_ref());
        match &self.model {
            Model::Null(params) => null::queues(params, log),
            Model::Memory(params, store) => memory::queues(params, store, log),
            Model::Disk(params) => disk::queues(params, log, occupancy),
            Model::Flash(params, drive) => flash::queues(params, drive, log, occupancy),
            Model::Cloud(params) => cloud::queues(params, log),
            Model::Faults(params, inner) => Faulty::wrap(params, &self.shape, inner.queues()),
        }
    }

    /// The store, if the device or its inner device has one, to read the contents or simulate a crash. Clones of a
    /// device share it.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        match &self.model {
            Model::Memory(_, store) => Some(store),
            Model::Faults(_, inner) => inner.memory(),
            _ => None,
        }
    }

    /// Returns whether the device, or its inner device, models the service times of hardware. If not, the device is as
    /// fast as the processor, apart from the times in its parameters.
    #[must_use]
    pub fn is_model(&self) -> bool {
        match &self.model {
            Model::Null(_) | Model::Memory(..) => false,
            Model::Disk(_) | Model::Flash(..) | Model::Cloud(_) => true,
            Model::Faults(_, inner) => inner.is_model(),
        }
    }

    /// The counters of written and moved units, if the device or its inner device is a flash device. Clones of a device
    /// share them.
    #[must_use]
    pub fn flash(&self) -> Option<&FlashDrive> {
        match &self.model {
            Model::Flash(_, drive) => Some(drive),
            Model::Faults(_, inner) => inner.flash(),
            _ => None,
        }
    }

    /// The configuration of a queue on the device, with all other settings at their defaults.
    #[must_use]
    pub fn config<P: Payload>(&self) -> Config<P> {
        Config::new(self.shape, self.queues()).default_scheduler(self.default_scheduler())
    }

    /// Like [`BlockDevice::default_scheduler`], but `none` if the device requests it (`no_sched`).
    #[must_use]
    pub fn default_scheduler(&self) -> &'static str {
        if self.no_sched { "none" } else { self.shape.default_scheduler() }
    }
}

impl<P: Payload> BlockDevice<P> for Device {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    /// Never fails.
    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(self.queues())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn default_scheduler(&self) -> &'static str {
        self.default_scheduler()
    }
}
