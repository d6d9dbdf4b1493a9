//! [`Kept`]: a device that was opened to choose it, until a run takes it. A server that takes one client must not see another.

use blkmq::Device;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A place for an open device. Copies of a choice share it.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Option<Device>>>);

impl Kept {
    /// Keeps `device`, unless it is one that costs nothing to open again.
    pub fn keep(&self, device: Device) {
        #[cfg(target_os = "linux")]
        if matches!(device, Device::Nbd(_)) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
        }
        #[cfg(not(target_os = "linux"))]
        drop(device);
    }

    /// The device, if one is kept.
    pub fn take(&self) -> Option<Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Choices are compared by their descriptions.
impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Kept {}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}
