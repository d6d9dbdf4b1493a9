//! Files on systems other than Linux, which the feature `uring` adds. Without io_uring, `uring:PATH` does not exist
//! there.

use super::error::Cause;
use super::opened::Opened;
use super::{Device, DeviceState, OpenError, Opener, Zeroing};
use crate::Layers;

/// A file, and the fault layers around it.
pub type FileDevice = Layers<blkmq_threads::FileDevice>;

pub(super) const OPENER: Opener = Opener {
    names: || vec![blkmq_threads::FILE.name],
    open: |_, wrapped, _| {
        let file = blkmq_threads::FileDevice::described(wrapped.inside)
            .transpose()
            .map_err(OpenError::File)?;
        Ok(file.map(|file| Device::File(wrapped.around(file))))
    },
};

impl Opened for FileDevice {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        let (bytes, is_read_only) = (self.device.bytes(), self.device.is_read_only());
        DeviceState { bytes, is_read_only, ..as_opened }
    }

    fn zeroing(&self) -> Zeroing {
        Zeroing { is_fast: false, keeps_room: false }
    }
}

impl Cause for blkmq_threads::OpenError {}
