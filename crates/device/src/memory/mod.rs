//! The memory device: stores data, with a volatile cache that a crash may lose, and bad blocks.
//!
//! Its page (`doc/memory.md`) describes the model, its limits, and the effects of a crash. One store behind one mutex
//! serves all hardware queues.

mod badblocks;
mod cache;
mod chunk;
mod command;
mod image;
mod page;
mod params;
mod queue;
mod read;
mod store;
mod tables;
#[cfg(test)]
mod tests;

pub use badblocks::BadBlocks;
pub(crate) use badblocks::FORM as BADBLOCKS_FORM;
pub use image::Image;
pub use page::PAGE;
pub use params::MemoryParams;
pub use store::MemoryStore;

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{ArrivalLog, DeviceError, MachineShape};
use blkmq_core::Payload;
use blkmq_engine::DeviceQueues;
use queue::MemoryQueue;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "memory",
    summary: "stores what is written; volatile cache, crashes and bad blocks to test with",
    doc: include_str!("../../doc/memory.md"),
    argument: Argument::None,
    parameters: tables::PARAMETERS,
};

/// The device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<(MemoryParams, MemoryStore)>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = MemoryParams::parse(&given.pairs, host).map_err(refused)?;
    let store = MemoryStore::new(&params);
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: (params, store),
    })
}

/// The hardware queues of a memory device, all on one store.
pub(crate) fn queues<P: Payload>(
    params: &MemoryParams,
    store: &MemoryStore,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    store.power_on();
    let queue = |_| Box::new(MemoryQueue::new(params, store.clone(), log.cloned())) as _;
    (0..params.submit_queues).map(queue).collect()
}
