//! The ties of a thread to other threads: the end with them (`exitall`), the beginning behind them (`wait_for`), and a
//! share of the I/Os of all (`flow`).

use super::{Exit, FlowShare};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ties of one thread. Most threads have none.
#[derive(Debug, Default)]
pub struct Ties {
    /// Shared with the threads that end when one of them ends.
    pub exit: Option<Exit>,
    /// The threads that have to end before this one begins.
    pub after: Option<Awaited>,
    /// This thread as one of those that others wait for.
    pub awaited: Vec<Member>,
    /// The thread's share of the I/Os of its flow.
    pub flow: Option<FlowShare>,
}

/// Threads that another thread waits for. Clones are the same threads.
#[derive(Clone, Debug, Default)]
pub struct Awaited(Arc<AtomicU32>);

impl Awaited {
    /// One more thread.
    #[must_use]
    pub fn member(&self) -> Member {
        self.0.fetch_add(1, Ordering::Relaxed);
        Member(Some(Arc::clone(&self.0)))
    }

    /// Returns whether all threads have ended.
    pub(super) fn are_over(&self) -> bool {
        // Their counts are read after their threads were joined.
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// One of the threads of an [`Awaited`]. It counts as ended at the latest when this is dropped, so that no other
/// thread waits for one that has panicked.
#[derive(Debug)]
pub struct Member(Option<Arc<AtomicU32>>);

impl Member {
    /// The thread has ended.
    pub(super) fn end(&mut self) {
        if let Some(threads) = self.0.take() {
            threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_twice_or_is_lost_counts_once() {
        let all = Awaited::default();
        let (mut first, second) = (all.member(), all.member());
        assert!(!all.are_over());
        first.end();
        first.end();
        assert!(!all.are_over());
        drop(second);
        assert!(all.are_over());
    }
}
