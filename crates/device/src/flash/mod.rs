//! The flash device: a solid-state drive with channels, dies, a write buffer and garbage collection.
//!
//! Its page (`doc/flash.md`) describes the model, lists the drives behind the presets, compares them, and names the
//! limits of the model. It stores no data. One device behind one mutex serves all hardware queues; it behaves the
//! same in virtual and in real time.

mod age;
mod backend;
mod blocks;
mod buffer;
mod channel;
mod die;
mod dies;
mod drain;
mod drive;
mod ftl;
mod geometry;
mod host;
mod mapping;
mod params;
mod presets;
mod queue;
mod read;
mod reclaim;
mod requests;
mod tables;
#[cfg(test)]
mod tests;
mod timers;
mod timing;

pub use age::Preconditioned;
pub use drive::FlashDrive;
pub use ftl::FlashStats;
pub use geometry::{Geometry, UNIT};
pub use params::FlashParams;
pub use reclaim::Watermarks;
pub use timing::{Rate, Timing};

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use blkmq_core::HwQueue;
use blkmq_engine::DeviceQueues;
use queue::FlashQueue;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "flash",
    summary: "a model of an SSD: dies, channels, write buffer, garbage collection; presets of real ones",
    doc: include_str!("../../doc/flash.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
};

/// The device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<(FlashParams, FlashDrive)>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = FlashParams::parse(&given.pairs, host).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: (params, FlashDrive::new()),
    })
}

/// The hardware queues of a flash device, all on one drive.
pub(crate) fn queues<P: Send + 'static>(
    params: &FlashParams,
    drive: &FlashDrive,
    log: Option<&ArrivalLog>,
    occupancy: Option<&OccupancyLog>,
) -> DeviceQueues<P> {
    drive.power_on(params, occupancy);
    let hws = (0..params.submit_queues).map(HwQueue);
    hws.map(|hw| Box::new(FlashQueue::new(params, hw, drive.clone(), log.cloned())) as _).collect()
}
