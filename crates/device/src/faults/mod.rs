//! Faults around any device: errors, refusals, requeues, late, lost and reordered answers.
//!
//! What each of them means, and what it cannot show, is on its page (`doc/faults.md`). The device inside is
//! not told; whatever it says passes through here. Parameters are in `params.rs`, what befalls a request is
//! drawn in `draw.rs`, and `queue.rs` does it.

mod draw;
mod params;
mod queue;
mod tables;
#[cfg(test)]
mod tests;

pub use params::FaultsParams;
pub use queue::Faulty;

use crate::device::Model;
use crate::fault::Chance;
use crate::registry::{self, Argument, Description};
use crate::{Device, DeviceError, DeviceFactory, MachineShape};
use blkmq_engine::DeviceShape;

/// The registry line.
pub const FACTORY: DeviceFactory = DeviceFactory {
    name: "faults",
    summary: "errors, busy answers, requeues, late and lost answers around any other device",
    doc: include_str!("../../doc/faults.md"),
    argument: Argument::Device,
    parameters: tables::PARAMETERS,
    build,
};

fn build(given: &Description<'_>, host: &MachineShape) -> Result<Device, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: FACTORY.name, why };
    let (params, mut notes) = FaultsParams::parse(&given.pairs).map_err(refused)?;
    let mut inner = registry::parse(given.argument, host)?;
    notes.append(&mut inner.notes);
    let timeout = match params.timeout {
        Chance::NEVER => inner.shape.timeout,
        _ => params.timeout_nsec,
    };
    Ok(Device {
        shape: DeviceShape { timeout, ..inner.shape },
        rotational: inner.rotational,
        no_sched: inner.no_sched,
        notes,
        log: inner.log.clone(),
        model: Model::Faults(params, Box::new(inner)),
    })
}
