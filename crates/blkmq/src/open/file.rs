//! Files and block devices on Linux, which the feature `uring` adds.

use super::error::Cause;
use super::opened::Opened;
use super::{Device, DeviceState, OpenError, Opener, Zeroing};
use crate::Layers;
use blkmq_buf::BufferPool;
use blkmq_core::Extent;
use blkmq_uring::UringDevice;
use std::io;
use std::ops::Range;

/// A file or block device, and the fault layers around it.
pub type FileDevice = Layers<UringDevice>;

pub(super) const OPENER: Opener = Opener {
    names: || vec![blkmq_uring::URING.name, blkmq_uring::THREADS.name],
    open: |_, wrapped, _| {
        let file = UringDevice::described(wrapped.inside).transpose().map_err(OpenError::File)?;
        Ok(file.map(|file| Device::File(wrapped.around(file))))
    },
};

impl Opened for FileDevice {
    fn state(&self, _: DeviceState) -> DeviceState {
        let now = self.device.state();
        DeviceState {
            bytes: now.bytes,
            is_read_only: now.is_read_only,
            is_removed: now.is_removed,
            has_volatile_cache: now.has_volatile_cache,
        }
    }

    fn zeroing(&self) -> Zeroing {
        Zeroing { is_fast: self.device.has_fast_zeroes(), keeps_room: true }
    }

    fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        self.device.extents(range, most)
    }

    fn register(&mut self, pool: &BufferPool) {
        self.device.register(pool);
    }
}

impl Cause for blkmq_uring::OpenError {
    fn is_unavailable(&self) -> bool {
        self.is_unavailable()
    }

    fn is_busy(&self) -> bool {
        self.is_busy()
    }
}
