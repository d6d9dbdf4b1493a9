//! [`FlashDrive`]: the handle to a flash device, for its hardware queues and for whoever wants to look at it.

use super::backend::Backend;
use super::ftl::FlashStats;
use super::params::FlashParams;
use crate::OccupancyLog;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// What a flash device consists of, shared by its hardware queues and whoever looks at it; clones are the same device.
///
/// One mutex around all of it. The tables are made when hardware queues are made for the first time, so that a device
/// that is only described costs nothing.
#[derive(Clone)]
pub struct FlashDrive(Arc<OnceLock<Mutex<Backend>>>);

impl FlashDrive {
    pub(super) fn new() -> Self {
        Self(Arc::new(OnceLock::new()))
    }

    /// Switches it on: makes it, or begins anew with what it holds.
    pub(super) fn power_on(&self, params: &FlashParams, occupancy: Option<&OccupancyLog>) {
        let make = || Mutex::new(Backend::new(params, occupancy.cloned()));
        if self.0.get().is_some() {
            self.backend().restart();
        } else {
            // Two threads may meet here; then one of them has made it.
            self.0.get_or_init(make);
        }
    }

    pub(super) fn backend(&self) -> MutexGuard<'_, Backend> {
        let backend = self.0.get().expect("hardware queues are made when it has been switched on");
        backend.lock().expect("nobody panics while holding the device")
    }

    /// What it has written and moved since it was made, as far as it has been told the time. All zero before its
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
