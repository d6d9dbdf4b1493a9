//! [`Kept`]: a device that was opened for the choice, and is kept for the first run. A server that accepts one client
//! must not see two.

use blkmq::Device;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A slot for an open device, shared by copies of a choice.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Option<Device>>>);

impl Kept {
    /// Keeps `device`, unless opening it again costs nothing.
    pub fn keep(&self, device: Device) {
        #[cfg(target_os = "linux")]
        if matches!(device, Device::Nbd(_)) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
        }
        #[cfg(not(target_os = "linux"))]
        drop(device);
    }

    /// Takes the device, if one is kept.
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
