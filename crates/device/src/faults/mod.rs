//! Faults around any device: errors, refusals, requeues, late, lost and reordered answers.
//!
//! Their page (`doc/faults.md`) gives the meaning and the limits of each. The inner device does not see them; all
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

use crate::DeviceError;
use crate::description::{About, Argument, Description};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "faults",
    summary: "errors, busy answers, requeues, late and lost answers around any other device",
    doc: include_str!("../../doc/faults.md"),
    argument: Argument::Device,
    parameters: tables::PARAMETERS,
};

/// The parameters that `given` has, and notes on them.
pub(crate) fn parameters(
    given: &Description<'_>,
) -> Result<(FaultsParams, Vec<String>), DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    FaultsParams::parse(&given.pairs).map_err(refused)
}
