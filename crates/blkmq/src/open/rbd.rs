//! Images of Ceph clusters, which the feature `rbd` adds.

use super::error::Cause;
use super::opened::Opened;
use super::{Device, DeviceState, OpenError, Opener};
use crate::Layers;
use blkmq_rbd::{RBD, RbdDevice};

pub(super) const OPENER: Opener = Opener {
    names: || vec![RBD.name],
    open: |_, wrapped, _| {
        let Some(image) = RBD.description(wrapped.inside) else { return Ok(None) };
        let image = RbdDevice::parse(image).map_err(OpenError::Rbd)?;
        Ok(Some(Device::Rbd(wrapped.around(image))))
    },
};

impl Opened for Layers<RbdDevice> {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        let (bytes, is_read_only) = (self.device.state().size, self.device.is_read_only());
        DeviceState { bytes, is_read_only, ..as_opened }
    }
}

impl Cause for blkmq_rbd::OpenError {}
