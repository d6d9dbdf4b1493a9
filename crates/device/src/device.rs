//! [`Device`]: a model with its parameters decided, ready to be given to a queue.
//!
//! It is a description; [`Device::queues`] makes the parts that do something.

use crate::disk::{self, DiskParams};
use crate::faults::{FaultsParams, Faulty};
use crate::flash::{self, FlashDrive, FlashParams};
use crate::memory::{self, MemoryParams, MemoryStore};
use crate::null::{self, NullParams};
use crate::{ArrivalLog, OccupancyLog};
use blkmq_core::Payload;
use blkmq_engine::{BlockDevice, Config, DeviceQueues, DeviceShape};
use std::io;

/// What a device's defaults depend on. Given by the caller, so that a run can pretend to be on another
/// machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineShape {
    /// CPUs that may be used, at least 1.
    pub cpus: u16,
    /// NUMA nodes, at least 1.
    pub nodes: u16,
}

/// A device, described.
#[derive(Clone, Debug)]
pub struct Device {
    /// What the engine must know.
    pub shape: DeviceShape,
    /// It asks not to be given a scheduler unless the user names one.
    pub no_sched: bool,
    /// What was rounded, clamped, replaced, or accepted without a meaning: one sentence each, for the user.
    pub notes: Vec<String>,
    /// Where arrivals are recorded, if they are.
    pub log: Option<ArrivalLog>,
    /// Where it is recorded what its parts are busy with, if it models parts and was asked to.
    pub occupancy: Option<OccupancyLog>,
    pub(crate) model: Model,
}

/// What it is a model of.
#[derive(Clone, Debug)]
pub(crate) enum Model {
    Null(NullParams),
    Memory(MemoryParams, MemoryStore),
    Disk(DiskParams),
    Flash(FlashParams, FlashDrive),
    /// Around another device.
    Faults(FaultsParams, Box<Device>),
}

impl Device {
    /// Its hardware queues, `shape.hw_queues` of them, for payloads of type `P`.
    ///
    /// Every call powers the device on anew: nothing in flight, a full bandwidth budget, faults from the
    /// beginning of their seed. The arrival log goes on, and so does what is stored, all of it durable.
    #[must_use]
    pub fn queues<P: Payload>(&self) -> DeviceQueues<P> {
        match &self.model {
            Model::Null(params) => null::queues(params, self.log.as_ref()),
            Model::Memory(params, store) => memory::queues(params, store, self.log.as_ref()),
            Model::Disk(params) => disk::queues(params, self.log.as_ref(), self.occupancy.as_ref()),
            Model::Flash(params, drive) => {
                flash::queues(params, drive, self.log.as_ref(), self.occupancy.as_ref())
            }
            Model::Faults(params, inner) => Faulty::wrap(params, &self.shape, inner.queues()),
        }
    }

    /// What it stores, if it or the one inside it does; to look at it, or to pull its plug. Clones of a device share it.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        match &self.model {
            Model::Null(_) | Model::Disk(_) | Model::Flash(..) => None,
            Model::Memory(_, store) => Some(store),
            Model::Faults(_, inner) => inner.memory(),
        }
    }

    /// Does it, or the one inside it, take the time that hardware would take? Otherwise it is as fast as the
    /// processor, but for what it was told to take.
    #[must_use]
    pub fn is_model(&self) -> bool {
        match &self.model {
            Model::Null(_) | Model::Memory(..) => false,
            Model::Disk(_) | Model::Flash(..) => true,
            Model::Faults(_, inner) => inner.is_model(),
        }
    }

    /// What it wrote and moved, if it or the one inside it is a flash device. Clones of a device share it.
    #[must_use]
    pub fn flash(&self) -> Option<&FlashDrive> {
        match &self.model {
            Model::Null(_) | Model::Memory(..) | Model::Disk(_) => None,
            Model::Flash(_, drive) => Some(drive),
            Model::Faults(_, inner) => inner.flash(),
        }
    }

    /// The configuration of a queue around it: everything but the device at its default.
    #[must_use]
    pub fn config<P: Payload>(&self) -> Config<P> {
        Config::new(self.shape, self.queues())
    }

    /// As [`BlockDevice::default_scheduler`]: `none` as well if the device asks for it (`no_sched`).
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
