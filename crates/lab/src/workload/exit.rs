//! The end of several threads with the first of them: fio's `exitall`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A word that threads share: the first of them has ended. Clones are the same word.
#[derive(Clone, Debug, Default)]
pub struct Exit(Arc<AtomicBool>);

impl Exit {
    /// A thread has ended.
    pub(super) fn end(&self) {
        // Nothing else is read by those who see it.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Has one of the threads ended?
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
