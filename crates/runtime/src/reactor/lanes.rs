//! [`Lanes`]: all inboxes of a reactor, and which of them the calling thread puts its I/Os into.
//!
//! A reactor with a thread of its own has one. On a runtime it has one for each worker if it can, so that the tasks of a
//! worker meet at a mutex that no other thread wants, and their I/Os stay on that worker.

use super::shared::Shared;
use std::sync::Arc;

pub(super) struct Lanes<P>(Arc<[Arc<Shared<P>>]>);

impl<P> Clone for Lanes<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P> Lanes<P> {
    /// Of these inboxes, of which there is at least one.
    pub(super) fn new(inboxes: impl IntoIterator<Item = Arc<Shared<P>>>) -> Self {
        let inboxes = Arc::from_iter(inboxes);
        assert!(!inboxes.is_empty(), "a reactor has an inbox");
        Self(inboxes)
    }

    /// The inbox of the calling thread.
    #[inline]
    pub(super) fn here(&self) -> &Arc<Shared<P>> {
        match &*self.0 {
            [only] => only,
            many => &many[this_thread() % many.len()],
        }
    }

    /// Cancels an I/O with this cookie and a callback, the oldest of its inbox, if that is possible.
    pub(super) fn cancel_call(&self, cookie: u64) {
        self.0.iter().any(|inbox| inbox.cancel_call(cookie));
    }

    /// Closes every inbox.
    pub(super) fn close(&self) {
        self.0.iter().for_each(|inbox| inbox.close());
    }
}

/// The number of the calling thread among the workers of its runtime. Threads that are no workers have numbers of their own.
#[cfg(all(target_os = "linux", feature = "tokio"))]
fn this_thread() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // The thread-local value is gone while the thread's others are dropped.
    let number = || NUMBER.try_with(|number| *number).unwrap_or(0);
    tokio::runtime::worker_index().unwrap_or_else(number)
}

#[cfg(not(all(target_os = "linux", feature = "tokio")))]
fn this_thread() -> usize {
    0
}
