//! The description of the device for lists and help.

use crate::options::PARAMETERS;
use crate::{OpenError, Options, UringDevice};
use blkmq_core::Parameter;
use std::fmt;

/// Opens a device from pairs of names and values.
pub type Open = fn(pairs: &[(String, String)]) -> Result<UringDevice, OpenError>;

/// The description of the device, and the function that opens one.
pub struct UringFactory {
    /// Its name, as used with `--device`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// Its page of documentation.
    pub doc: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Opens a device from pairs of names and values, `path` among them; of two pairs with one name the later counts.
    /// The error names the pair and the accepted values.
    pub open: Open,
}

impl fmt::Debug for UringFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringFactory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// For programs that offer devices by name.
pub const FACTORY: UringFactory = UringFactory {
    name: "uring",
    summary: "a file or block device through io_uring, past the page cache",
    doc: include_str!("../doc/uring.md"),
    parameters: PARAMETERS,
    open,
};

fn open(pairs: &[(String, String)]) -> Result<UringDevice, OpenError> {
    let (path, options) = Options::from_pairs(pairs)?;
    UringDevice::open(path, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_parameter() {
        for parameter in FACTORY.parameters {
            let name = format!("`{}`", parameter.name);
            assert!(FACTORY.doc.contains(&name), "{name} is not on the page");
        }
    }
}
