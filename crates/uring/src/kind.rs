//! The device as programs offer it by name.

use crate::options::PARAMETERS;
use blkmq_core::RealDevice;

/// For programs that offer devices by name.
pub const URING: RealDevice = RealDevice {
    name: "uring",
    target: "PATH",
    summary: "a file or block device through io_uring, past the page cache",
    doc: include_str!("../doc/uring.md"),
    parameters: PARAMETERS,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_parameter() {
        assert_eq!(URING.undocumented(), None);
    }
}
