//! Faults around any device: errors, refusals, requeues, late, lost and reordered answers.
//!
//! Their page (`doc/faults.md`) gives the meaning and the limits of each. The inner device is not told of them; all
//! of its answers pass through here. Parameters are in `params.rs`; `draw.rs` draws the faults that strike a request,
//! and `queue.rs` carries them out.

mod draw;
mod params;
mod queue;
mod tables;
#[cfg(test)]
mod tests;

pub use params::FaultsParams;
pub use queue::Faulty;

use crate::description::check_nesting;
use crate::device::Model;
use crate::registry::{self, Argument, Description};
use crate::{Device, DeviceError, DeviceFactory, MachineShape};

/// The registry line.
pub const FACTORY: DeviceFactory = DeviceFactory {
    name: "faults",
    summary: "errors, busy answers, requeues, late and lost answers around any other device",
    doc: include_str!("../../doc/faults.md"),
    argument: Argument::Device,
    parameters: tables::PARAMETERS,
    build,
};

fn parameters(given: &Description<'_>) -> Result<(FaultsParams, Vec<String>), DeviceError> {
    let refused = |why| DeviceError::Parameter { device: FACTORY.name, why };
    FaultsParams::parse(&given.pairs).map_err(refused)
}

/// Faults around a device that is still a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Around<'a> {
    /// The parameters of the faults.
    pub params: FaultsParams,
    /// Notes on the parameters.
    pub notes: Vec<String>,
    /// The text of the inner device.
    pub inside: &'a str,
}

impl<'a> Around<'a> {
    /// Parses the faults around the device that `text` describes; `None` if it does not begin with faults.
    ///
    /// For devices that the registry does not know; the registry itself parses the inner device.
    ///
    /// # Errors
    /// If the parameters are not those of faults, there is no inner device, or too many faults are nested.
    pub fn parse(text: &'a str) -> Result<Option<Self>, DeviceError> {
        let end = text.find([',', ':']).unwrap_or(text.len());
        if text[..end].trim() != FACTORY.name {
            return Ok(None);
        }
        check_nesting(text)?;
        let given = FACTORY.describe(&text[end..])?;
        let (params, notes) = parameters(&given)?;
        Ok(Some(Self { params, notes, inside: given.argument }))
    }
}

fn build(given: &Description<'_>, host: &MachineShape) -> Result<Device, DeviceError> {
    let (params, mut notes) = parameters(given)?;
    let mut inner = registry::parse(given.argument, host)?;
    notes.append(&mut inner.notes);
    Ok(Device {
        shape: params.shape(&inner.shape),
        no_sched: inner.no_sched,
        notes,
        log: inner.log.clone(),
        occupancy: inner.occupancy.clone(),
        model: Model::Faults(params, Box::new(inner)),
    })
}
