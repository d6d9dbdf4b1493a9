//! The two sides of the builder of a model: [`MachineShape`], the machine that defaults depend on, and [`Parts`], its
//! result. Only `device.rs` knows all models, and makes a device of the parts.

use crate::{ArrivalLog, OccupancyLog};
use blkmq_engine::DeviceShape;

/// The machine that a device's defaults depend on. The caller passes it, so that a run can pretend to be on another
/// machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineShape {
    /// CPUs that may be used, at least 1.
    pub cpus: u16,
    /// NUMA nodes, at least 1.
    pub nodes: u16,
}

/// The parts of a device, with those of its model.
pub(crate) struct Parts<M> {
    /// The shape of the device for the engine.
    pub(crate) shape: DeviceShape,
    /// The device asks for no scheduler unless the user names one.
    pub(crate) no_sched: bool,
    /// Notes for the user, a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) log: Option<ArrivalLog>,
    pub(crate) occupancy: Option<OccupancyLog>,
    pub(crate) model: M,
}
