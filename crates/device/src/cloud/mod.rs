//! The cloud device: a network disk as providers rent them, with limits on I/Os and bytes, credits, and a latency.
//!
//! Its page (`doc/cloud.md`) describes the model, its limits, and how near it comes to published results. All times
//! are computed in whole nanoseconds, so that a run repeats on every machine. It stores no data.

mod bucket;
mod params;
mod presets;
mod queue;
mod read;
mod tables;
#[cfg(test)]
mod tests;

pub use bucket::Allowance;
pub use params::{CloudParams, Terms};

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{ArrivalLog, DeviceError, MachineShape};
use blkmq_engine::DeviceQueues;
use queue::CloudQueue;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "cloud",
    summary: "a network disk: limits on I/Os and bytes, credits, a latency; stores nothing",
    doc: include_str!("../../doc/cloud.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
};

/// The device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<CloudParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = CloudParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queue of a disk, with all its credits.
pub(crate) fn queues<P: 'static>(
    params: &CloudParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    vec![Box::new(CloudQueue::new(params, log.cloned()))]
}
