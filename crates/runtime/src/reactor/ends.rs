//! [`Ends`]: counts the threads and tasks of a reactor, for callers that wait until all have ended.

use blkmq_core::Nanos;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The number of threads and tasks that have not ended.
#[derive(Default)]
pub(super) struct Ends {
    running: Mutex<Running>,
    none_left: Condvar,
}

#[derive(Default)]
struct Running {
    left: usize,
    /// The waker of the future that waits for the last end.
    waker: Option<Waker>,
}

impl Ends {
    /// Counts a thread or task in, until the guard is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Entered {
        self.lock().left += 1;
        Entered(Arc::clone(self))
    }

    /// Waits until all have ended.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(super) fn wait(&self) {
        drop(self.none_left.wait_while(self.lock(), |running| running.left > 0));
    }

    /// Waits until all have ended, for `within` at most. Returns whether all have ended.
    pub(super) fn wait_for(&self, within: Nanos) -> bool {
        let within = Duration::from_nanos(within.0);
        let over = self.none_left.wait_timeout_while(self.lock(), within, |it| it.left > 0);
        over.expect(COUNTS).0.left == 0
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().expect(COUNTS)
    }
}

/// The reason why the count is never poisoned.
const COUNTS: &str = "counting does not panic";

/// The guard of a thread or task that has not ended.
pub(super) struct Entered(Arc<Ends>);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut running = self.0.lock();
        running.left -= 1;
        if running.left == 0 {
            self.0.none_left.notify_all();
            let waker = running.waker.take();
            drop(running);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// The end of a reactor; see [`Reactor::closed`](crate::Reactor::closed). Ready when every answer is delivered and
/// every thread or task has ended. Dropping the future does not affect them.
#[must_use = "a future does nothing unless it is awaited; the reactor is closed all the same"]
pub struct Closed(pub(super) Arc<Ends>);

impl std::fmt::Debug for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closed").field("left", &self.0.lock().left).finish()
    }
}

impl Future for Closed {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Foreign code, so it is called outside the lock.
        let waker = cx.waker().clone();
        let mut running = self.0.lock();
        if running.left == 0 {
            return Poll::Ready(());
        }
        let old = running.waker.replace(waker);
        drop(running);
        drop(old);
        Poll::Pending
    }
}
