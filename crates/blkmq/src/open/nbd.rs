//! Exports of NBD servers, which the feature `nbd` adds.

use super::error::Cause;
use super::opened::Opened;
use super::{Device, DeviceState, OpenError, Opener, Zeroing};
use crate::Layers;
use blkmq_core::Extent;
use blkmq_remote::NbdDevice;
use std::io;
use std::ops::Range;

pub(super) const OPENER: Opener = Opener {
    names: || vec![blkmq_remote::NBD.name],
    open: |_, wrapped, _| {
        let Some(export) = blkmq_remote::description(wrapped.inside) else { return Ok(None) };
        let export = NbdDevice::parse(export).map_err(OpenError::Nbd)?;
        Ok(Some(Device::Nbd(wrapped.around(export))))
    },
};

impl Opened for Layers<NbdDevice> {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        DeviceState { is_read_only: self.device.is_read_only(), ..as_opened }
    }

    fn zeroing(&self) -> Zeroing {
        Zeroing { is_fast: self.device.has_fast_zeroes(), keeps_room: false }
    }

    fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        Ok(self.device.extents(range, most))
    }

    fn asks_for_extents(&self) -> bool {
        true
    }
}

impl Device {
    /// Returns how many connections to the server have been lost and replaced; `None` if the device is not an NBD
    /// export.
    #[must_use]
    pub fn outages(&self) -> Option<blkmq_remote::Outages> {
        match self {
            Self::Nbd(export) => Some(export.device.outages()),
            // Other features add further variants.
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}

impl Cause for blkmq_remote::OpenError {}
