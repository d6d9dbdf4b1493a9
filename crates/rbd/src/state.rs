//! [`ImageState`]: changes and stalls of an image since it was opened.

use crate::sys::Image;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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

/// The state, and its writers: the hardware queues, and those that ask for it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    state: Mutex<ImageState>,
    /// The open images, one for each time that queues were made.
    images: Mutex<Vec<Weak<Image>>>,
}

/// No code panics under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    pub(crate) fn new(size: u64) -> Self {
        let state = Mutex::new(ImageState { size, ..ImageState::default() });
        Self { state, images: Mutex::default() }
    }

    /// The image has been opened.
    pub(crate) fn add(&self, image: &Arc<Image>) {
        let mut images = lock(&self.images);
        images.retain(|image| image.strong_count() > 0);
        images.push(Arc::downgrade(image));
    }

    /// The state, after a look at images that have been changed. The look may wait for the cluster, so it holds no lock
    /// that a hardware queue takes.
    pub(crate) fn read(&self) -> ImageState {
        let images = Vec::from_iter(lock(&self.images).iter().filter_map(Weak::upgrade));
        for image in images.iter().filter(|image| image.take_change()) {
            if let Some(size) = image.size() {
                self.with(|state| {
                    state.resized += u64::from(state.size != size);
                    state.size = size;
                });
            }
        }
        self.with(|state| *state)
    }

    /// Rare events only: it takes a lock.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut ImageState) -> R) -> R {
        change(&mut lock(&self.state))
    }
}
