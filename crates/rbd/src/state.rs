//! [`ImageState`]: changes and stalls of an image since it was opened.

use std::sync::Mutex;
use std::sync::PoisonError;

/// Changes and stalls of an image since it was opened, of all queues around the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ImageState {
    /// Its size in bytes, as last seen.
    pub size: u64,
    /// How often another client has changed the size. Queues keep the size that they began with: bytes beyond are
    /// not served, and I/O behind a new end fails.
    pub resized: u64,
    /// Requests that have been at the cluster for 30 s, counted anew every 30 s.
    pub stalled: u64,
    /// Queues that went away while the cluster had requests of theirs. Their memory, and the image, stay allocated.
    pub given_up: u64,
}

/// The state, and its writers: the hardware queues.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<ImageState>);

impl Watched {
    pub(crate) fn new(size: u64) -> Self {
        Self(Mutex::new(ImageState { size, ..ImageState::default() }))
    }

    pub(crate) fn read(&self) -> ImageState {
        self.with(|state| *state)
    }

    /// Rare events only: it takes a lock.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut ImageState) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
