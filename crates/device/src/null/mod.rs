//! The null device: completes every request and stores no data, with null_blk's parameters.
//!
//! Its page (`doc/null.md`) describes the model and its limits. It has two kinds of hardware queue: inline ones for
//! `irqmode=0` with every feature off, which benchmarks of the block layer run on and which must cost nothing, and
//! modelled ones for all other settings.

mod bandwidth;
mod faults;
mod inline;
mod params;
mod queue;
mod read;
mod tables;
#[cfg(test)]
mod tests;
mod times;

pub use crate::service::IrqMode;
pub use faults::FaultPlan;
pub use params::NullParams;
pub use times::{DEV_RESOURCE_DELAY, REQUEST_TIMEOUT};

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{ArrivalLog, DeviceError, MachineShape};
use bandwidth::Bandwidth;
use blkmq_core::HwQueue;
use blkmq_engine::DeviceQueues;
use inline::InlineQueue;
use queue::NullQueue;
use std::sync::{Arc, Mutex};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "null",
    summary: "answers everything, stores nothing; null_blk's parameters, faults on demand",
    doc: include_str!("../../doc/null.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
};

/// The device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<NullParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = NullParams::parse(&given.pairs, host).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: params.no_sched,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queues of a null device.
pub(crate) fn queues<P: Send + 'static>(
    params: &NullParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    let hws = (0..params.submit_queues).map(HwQueue);
    if params.is_plain() {
        return hws.map(|_| Box::new(InlineQueue) as _).collect();
    }
    let limited = params.mbps > 0;
    let bandwidth = limited.then(|| Arc::new(Mutex::new(Bandwidth::new(params.mbps))));
    hws.map(|hw| Box::new(NullQueue::new(params, hw, bandwidth.clone(), log.cloned())) as _)
        .collect()
}
