//! [`Shared`]: an inbox behind its mutex, and the means to wake its reactor; and [`Lanes`]: all inboxes of a reactor,
//! of which each thread uses one.
//!
//! All foreign code runs outside the lock: the wakers of futures, and the waker of a reactor that is a task. [`Inbox`]
//! has the transitions.
//!
//! A reactor with its own thread has one inbox. On a runtime it has one for each worker if possible, so that the tasks
//! of a worker share a mutex that no other thread takes, and their I/Os stay on that worker.

use super::inbox::{Call, Inbox};
use crate::planted::{self, Planted};
use crate::port::{Mutex, MutexGuard};
use crate::waiting::Threads;
use blkmq_core::SubmitterId;
use std::sync::Arc;
use std::task::Waker;

/// How a reactor is woken.
enum Sleeper {
    /// A thread, by the bell of its submitter.
    Thread(Arc<Threads>, SubmitterId),
    /// A task, by the waker in the inbox.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    Task,
}

/// The mutex, and the means to wake the reactor behind it.
pub(super) struct Shared<P> {
    inbox: Mutex<Inbox<P>>,
    sleeper: Sleeper,
}

impl<P> Shared<P> {
    /// For a reactor with its own thread, which waits as this submitter.
    pub(super) fn of_thread(depth: u32, threads: Arc<Threads>, reactor: SubmitterId) -> Arc<Self> {
        Self::new(depth, Sleeper::Thread(threads, reactor))
    }

    /// For a reactor that is a task.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(super) fn of_task(depth: u32) -> Arc<Self> {
        Self::new(depth, Sleeper::Task)
    }

    fn new(depth: u32, sleeper: Sleeper) -> Arc<Self> {
        Arc::new(Self { inbox: Mutex::new(Inbox::new(depth)), sleeper })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox<P>> {
        self.inbox.lock().expect("no code of others runs under the lock")
    }

    /// Wakes the reactor without a reason.
    #[cfg(all(test, shuttle))]
    pub(super) fn call_for_nothing(&self) {
        self.call(Some(Call(None)));
    }

    /// Wakes the reactor. The lock must be free.
    fn call(&self, call: Option<Call>) {
        let Some(Call(task)) = call else { return };
        match &self.sleeper {
            Sleeper::Thread(threads, reactor) => threads.wake_submitter(*reactor),
            #[cfg(all(target_os = "linux", feature = "tokio"))]
            Sleeper::Task => {}
        }
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Cancels the I/O of a future that still waits for it, if that is possible.
    pub(super) fn cancel(&self, ticket: u32) {
        let mut inbox = self.lock();
        let waker = inbox.cancel(ticket);
        let call = inbox.rouse_to_cancel();
        drop(inbox);
        self.call(call);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Cancels the oldest I/O with this cookie and a callback, if that is possible. Returns whether there is one.
    pub(super) fn cancel_call(&self, cookie: u64) -> bool {
        let mut inbox = self.lock();
        let is_here = inbox.cancel_call(cookie);
        let call = inbox.rouse_to_cancel();
        drop(inbox);
        self.call(call);
        is_here
    }

    /// Returns a permit, or leaves the line for one. The place goes to the next in line.
    pub(super) fn give_back_permit(&self, ticket: u32) {
        let mut inbox = self.lock();
        let remains = inbox.forsake(ticket);
        let mut woken = Vec::new();
        inbox.move_up(|waker| woken.push(waker));
        // An I/O that was in line may be in the inbox's queue now.
        self.unlock_and_ring(inbox);
        drop(remains);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Unlocks the inbox after an I/O was put in, and wakes the reactor if it is asleep.
    pub(super) fn unlock_and_ring(&self, mut inbox: MutexGuard<'_, Inbox<P>>) {
        let call = inbox.rouse().filter(|_| !planted::is(Planted::PutsInSilently));
        drop(inbox);
        self.call(call);
    }

    /// Closes the inbox. I/Os that have a place continue; I/Os in line are returned.
    pub(super) fn close(&self) {
        let mut inbox = self.lock();
        let wakers = inbox.close();
        self.unlock_and_ring(inbox);
        wakers.into_iter().for_each(Waker::wake);
    }
}

pub(super) struct Lanes<P>(Arc<[Arc<Shared<P>>]>);

impl<P> Clone for Lanes<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P> Lanes<P> {
    /// The lanes of these inboxes, at least one.
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

    /// Cancels an I/O with this cookie and a callback, the oldest of its inbox, if possible.
    pub(super) fn cancel_call(&self, cookie: u64) {
        self.0.iter().any(|inbox| inbox.cancel_call(cookie));
    }

    /// Closes every inbox.
    pub(super) fn close(&self) {
        self.0.iter().for_each(|inbox| inbox.close());
    }
}

/// The number of the calling thread among the workers of its runtime. Other threads are numbered separately.
#[cfg(all(target_os = "linux", feature = "tokio"))]
fn this_thread() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // The thread-local value is gone while other thread-local values are dropped.
    let number = || NUMBER.try_with(|number| *number).unwrap_or(0);
    tokio::runtime::worker_index().unwrap_or_else(number)
}

#[cfg(not(all(target_os = "linux", feature = "tokio")))]
fn this_thread() -> usize {
    0
}
