//! Devices that exist only in this program, and faults around any device, which the feature `models` adds.

use super::opened::Opened;
use super::{Device, Opener};
use blkmq_core::{DeviceError, Extent};
use blkmq_device::registry;
use std::io;
use std::ops::Range;

pub(super) const OPENER: Opener = Opener {
    names: || registry::ALL.iter().map(|factory| factory.name).collect(),
    open: |text, _, machine| match registry::parse(text, machine) {
        Err(DeviceError::Unknown { .. }) => Ok(None),
        device => Ok(Some(Device::Virtual(device?))),
    },
};

impl Opened for blkmq_device::Device {
    fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        Ok(match self.memory() {
            Some(store) => store.extents(range, most),
            None => vec![Extent { end: range.end, is_hole: false }],
        })
    }

    fn moves_data(&self) -> bool {
        self.memory().is_some()
    }
}
