//! [`Parts`], the result of the builder of a model. Only `device.rs` knows all models, and makes a device of the parts.

use crate::{ArrivalLog, OccupancyLog};
use blkmq_engine::DeviceShape;

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
