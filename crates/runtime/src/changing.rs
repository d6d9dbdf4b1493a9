//! [`Changing`]: a change of the queue that runs on its own thread, for callers that must not block.

use crate::port::{Mutex, thread};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A change in progress; a future of its result. Any executor can poll it. Dropping it does not stop the change.
///
/// A panic of the closure that was passed to the change resumes in the task that awaits the future.
#[must_use = "only the result says whether the change was made"]
pub struct Changing<T>(Arc<Mutex<Slot<T>>>);

enum Slot<T> {
    Waits(Option<Waker>),
    /// The result, or the panic of the closure.
    Done(Result<T, Box<dyn Any + Send>>),
    Taken,
}

impl<T: Send + 'static> Changing<T> {
    /// Runs `change` on a new thread; on the calling thread if the system cannot start one.
    pub(crate) fn start(change: impl FnOnce() -> T + Send + 'static) -> Self {
        let slot = Arc::new(Mutex::new(Slot::Waits(None)));
        // Kept here as well, in case the thread cannot be started.
        let change = Arc::new(Mutex::new(Some(change)));
        let (its_slot, its_change) = (Arc::clone(&slot), Arc::clone(&change));
        let body = move || run(&its_slot, &its_change);
        if thread::Builder::new().name("blkmq-change".into()).spawn(body).is_err() {
            run(&slot, &change);
        }
        Self(slot)
    }
}

fn run<T, F: FnOnce() -> T>(slot: &Mutex<Slot<T>>, change: &Mutex<Option<F>>) {
    let Some(change) = change.lock().expect(NO_PANIC).take() else { return };
    let result = catch_unwind(AssertUnwindSafe(change));
    let before = std::mem::replace(&mut *slot.lock().expect(NO_PANIC), Slot::Done(result));
    if let Slot::Waits(Some(waker)) = before {
        waker.wake();
    }
}

/// The reason why the locks are never poisoned.
const NO_PANIC: &str = "no code of others runs under the lock";

impl<T> Future for Changing<T> {
    type Output = T;

    /// # Panics
    /// If the closure of the change did, or if the future has been ready before.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Foreign code, so it is called outside the lock.
        let waker = cx.waker().clone();
        let mut slot = self.0.lock().expect(NO_PANIC);
        let before = match &mut *slot {
            Slot::Waits(old) => old.replace(waker),
            Slot::Done(_) => match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(Ok(result)) => return Poll::Ready(result),
                Slot::Done(Err(panic)) => {
                    drop(slot);
                    resume_unwind(panic)
                }
                Slot::Waits(_) | Slot::Taken => unreachable!("it was seen just now"),
            },
            Slot::Taken => {
                drop(slot);
                panic!("polled after it was ready")
            }
        };
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Changing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changing").finish_non_exhaustive()
    }
}
