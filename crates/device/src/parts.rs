//! [`Parts`]: the result of a model's builder. Only `device.rs` knows all models, and makes a device from the parts.

use crate::{ArrivalLog, OccupancyLog};
use blkmq_engine::DeviceShape;

/// The parts of a device, including those of its model.
pub(crate) struct Parts<M> {
    /// The shape of the device for the engine.
    pub(crate) shape: DeviceShape,
    /// Whether the device requests the scheduler `none` unless the user names one.
    pub(crate) no_sched: bool,
    /// Notes for the user, a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) log: Option<ArrivalLog>,
    pub(crate) occupancy: Option<OccupancyLog>,
    pub(crate) model: M,
}
