//! The device as programs offer it by name.

use crate::options::PARAMETERS;
use blkmq_core::RealDevice;

/// For programs that offer devices by name.
pub const RBD: RealDevice = RealDevice {
    name: "rbd",
    target: "POOL/IMAGE[@SNAP]",
    summary: "an image of a Ceph cluster, through the librbd of this machine: POOL/IMAGE[@SNAP]",
    doc: include_str!("../doc/rbd.md"),
    parameters: PARAMETERS,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_parameter() {
        assert_eq!(RBD.undocumented(), None);
    }
}
