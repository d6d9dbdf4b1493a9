//! Every device by name. Adding a line here is all it takes to be offered, documented and tested.

use crate::{Device, DeviceError, MachineShape, Parameter, null};
use std::fmt;

/// Makes a device from pairs of names and values, for a machine like `host`.
pub type Build = fn(pairs: &[Pair], host: &MachineShape) -> Result<Device, DeviceError>;

/// A parameter's name and its value, as the user wrote them.
pub type Pair = (String, String);

/// One line of the registry. Everything that offers devices by name iterates over these.
pub struct DeviceFactory {
    /// As after `--device`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// The page that `blkmq doc NAME` prints.
    pub doc: &'static str,
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Makes one. Of two pairs with one name the later counts. The error
    /// names the pair and what would be accepted.
    pub build: Build,
}

impl fmt::Debug for DeviceFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All devices, in the order in which lists show them.
pub const ALL: &[&DeviceFactory] = &[&null::FACTORY];

/// The device called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static DeviceFactory> {
    ALL.iter().copied().find(|f| f.name == name)
}
