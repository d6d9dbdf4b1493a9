//! The disk device: a rotating disk's mechanism, caches and command queue, with the figures of real drives.
//!
//! Its page (`doc/disk.md`) describes the model, its limits, and how near it comes to the published results of those
//! drives. All times are computed in whole nanoseconds, so that a run repeats on every machine. It stores no data.

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

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use blkmq_engine::DeviceQueues;
use drive::Drive;
use mechanics::Mechanics;
use queue::DiskQueue;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "disk",
    summary: "a rotating disk: seeks, rotation, caches, command queueing; stores nothing",
    doc: include_str!("../../doc/disk.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
};

/// The device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<DiskParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = DiskParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: params,
    })
}

/// The hardware queue of a disk. Powers it on: the arm is at the outermost track, the caches are empty.
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
