//! The disk device: a rotating disk's mechanism, caches and command queue, with the figures of real drives.
//!
//! What it models, how near that comes to what is published of those drives, and what it cannot show is on its page
//! (`doc/disk.md`). Everything that takes time is computed from whole nanoseconds, so that a run repeats on every
//! machine. It stores nothing.

mod answers;
mod commands;
mod destage;
mod dirty;
mod drive;
mod geometry;
mod mechanics;
mod params;
mod presets;
mod queue;
mod read;
mod read_ahead;
mod rotation;
mod seek;
mod segments;
mod stalls;
mod tables;
#[cfg(test)]
mod tests;
mod write_back;

pub use geometry::Tracks;
pub use params::{DiskParams, Figures};
pub use seek::SeekTimes;

use crate::device::Model;
use crate::registry::{Argument, Description};
use crate::{ArrivalLog, Device, DeviceError, DeviceFactory, MachineShape, OccupancyLog};
use blkmq_engine::DeviceQueues;
use drive::Drive;
use mechanics::Mechanics;
use queue::DiskQueue;

/// The registry line.
pub const FACTORY: DeviceFactory = DeviceFactory {
    name: "disk",
    summary: "a rotating disk: seeks, rotation, caches, command queueing; stores nothing",
    doc: include_str!("../../doc/disk.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
    build,
};

fn build(given: &Description<'_>, _: &MachineShape) -> Result<Device, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: FACTORY.name, why };
    let (params, notes) = DiskParams::parse(&given.pairs).map_err(refused)?;
    Ok(Device {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: Model::Disk(params),
    })
}

/// The hardware queue of a disk. Powers it on: the arm outside, the caches empty.
pub(crate) fn queues<P: 'static>(
    params: &DiskParams,
    log: Option<&ArrivalLog>,
    occupancy: Option<&OccupancyLog>,
) -> DeviceQueues<P> {
    let mechanics = Mechanics::new(&params.figures).expect("they were checked when they were read");
    let drive = Drive::new(params, mechanics, occupancy.cloned());
    let shape = params.shape();
    vec![Box::new(DiskQueue::new(drive, shape.hw_queue_depth, shape.cache, log.cloned()))]
}
