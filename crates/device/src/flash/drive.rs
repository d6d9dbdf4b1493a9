//! [`FlashDrive`]: the handle to a flash device, for its hardware queues and for code that reads its counters.

use super::backend::Backend;
use super::ftl::FlashStats;
use super::params::FlashParams;
use crate::OccupancyLog;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A flash device, shared by its hardware queues and by code that reads its counters; clones are the same device.
///
/// One mutex protects all of it. The tables are allocated when the hardware queues are made for the first time, so
/// that a device that is only described costs nothing.
#[derive(Clone)]
pub struct FlashDrive(Arc<OnceLock<Mutex<Backend>>>);

impl FlashDrive {
    pub(super) fn new() -> Self {
        Self(Arc::new(OnceLock::new()))
    }

    /// Powers the device on: makes it the first time, restarts it with its contents later.
    pub(super) fn power_on(&self, params: &FlashParams, occupancy: Option<&OccupancyLog>) {
        let make = || Mutex::new(Backend::new(params, occupancy.cloned()));
        if self.0.get().is_some() {
            self.backend().restart();
        } else {
            // Two threads may meet here; then one of them makes the device.
            self.0.get_or_init(make);
        }
    }

    pub(super) fn backend(&self) -> MutexGuard<'_, Backend> {
        let backend = self.0.get().expect("hardware queues are made when it has been switched on");
        backend.lock().expect("nobody panics while holding the device")
    }

    /// Units written and moved since the device was made, up to the last time passed to it. All zero before its
    /// hardware queues are made.
    #[must_use]
    pub fn stats(&self) -> FlashStats {
        if self.0.get().is_some() { self.backend().stats() } else { FlashStats::default() }
    }
}

impl fmt::Debug for FlashDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlashDrive").field("stats", &self.stats()).finish()
    }
}
