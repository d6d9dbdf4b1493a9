//! The callers' end of a reactor: callbacks, futures, and permits. A permit is a place in the inbox that is reserved
//! before there is an I/O. For any thread, any executor, any number of clones.

use super::shared::{Lanes, Shared};
use crate::submit_error::{Answer, NotTaken, SubmitError, Unavailable};
use blkmq_engine::{Io, Unsubmitted};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Submits to a [`Reactor`](crate::Reactor), from any thread. Cheap to clone; all clones are the same.
///
/// A handle does not keep the reactor alive: when the reactor is dropped, I/Os are returned undone.
///
/// A reactor with its own thread takes the I/Os in order. On a runtime, the I/Os of one worker are taken in order, and
/// the I/Os of several workers concurrently. Devices see an internal number as the cookie of an I/O; answers have the
/// cookie of the [`Io`].
pub struct Handle<P> {
    lanes: Lanes<P>,
}

#[cfg(all(test, shuttle))]
impl<P> Handle<P> {
    /// Wakes the reactor without a reason.
    pub(crate) fn call_for_nothing(&self) {
        self.lanes.here().call_for_nothing();
    }
}

impl<P> Clone for Handle<P> {
    fn clone(&self) -> Self {
        Self { lanes: self.lanes.clone() }
    }
}

impl<P> fmt::Debug for Handle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<P> Handle<P> {
    pub(super) fn new(lanes: Lanes<P>) -> Self {
        Self { lanes }
    }

    /// The inbox of the calling thread.
    pub(super) fn inbox(&self) -> &Arc<Shared<P>> {
        self.lanes.here()
    }

    /// Submits `io`. On return, the I/O is in the reactor's inbox, or in line for it if the inbox is full. I/Os that
    /// are submitted before the first of their futures is awaited may merge. Never waits. O(1).
    ///
    /// The future's answer returns the payload, except for an I/O that is lost ([`SubmitError::Lost`]). See
    /// [`Submitted`] about dropping it.
    pub fn submit(&self, io: Io<P>) -> Submitted<P> {
        let shared = self.inbox();
        let mut inbox = shared.lock();
        let state = match inbox.check_room_for(&io) {
            Ok(()) => State::New(inbox.send(io)),
            Err(Unavailable::Full { .. }) => State::New(inbox.stand_in_line(io)),
            Err(Unavailable::Closed) => State::Closed(io),
        };
        shared.unlock_and_ring(inbox);
        Submitted { shared: Arc::clone(shared), state }
    }

    /// As [`submit`](Self::submit), but fails instead of joining the line.
    ///
    /// # Errors
    /// Gives the I/O back if the inbox is full or the reactor is gone.
    pub fn try_submit(&self, io: Io<P>) -> Result<Submitted<P>, NotTaken<P>> {
        let shared = self.inbox();
        let mut inbox = shared.lock();
        if let Err(why) = inbox.check_room_for(&io) {
            return Err(NotTaken { io: Unsubmitted::new(io), then: (), why });
        }
        let state = State::New(inbox.send(io));
        shared.unlock_and_ring(inbox);
        Ok(Submitted { shared: Arc::clone(shared), state })
    }

    /// Submits `io`, and has `then` called once with the answer, on the reactor's thread or in a task of its runtime.
    /// Callbacks are called in the order in which I/Os complete. Never waits. O(1).
    ///
    /// # Contract
    ///
    /// A callback must not block: no I/O of the reactor, or of its worker, makes progress until it returns. It may
    /// submit, but must not wait for its own I/Os. A panic of a callback is reported as in any thread and counted
    /// ([`Reactor::panics`](crate::Reactor::panics)); the reactor continues.
    ///
    /// # Errors
    /// Gives the I/O and the callback back if the inbox is full or the reactor is gone.
    pub fn call<F>(&self, io: Io<P>, then: F) -> Result<(), NotTaken<P, F>>
    where
        F: FnOnce(Answer<P>) + Send + 'static,
    {
        // Allocates, so outside the lock.
        let then = Box::new(then);
        let shared = self.inbox();
        let mut inbox = shared.lock();
        if let Err(why) = inbox.check_room_for(&io) {
            drop(inbox);
            return Err(NotTaken { io: Unsubmitted::new(io), then: *then, why });
        }
        inbox.call(io, then);
        shared.unlock_and_ring(inbox);
        Ok(())
    }

    /// Requests cancellation of the oldest I/O of [`call`](Self::call) with this cookie, as [`Submitted::cancel`] does
    /// for an I/O of a future. Its callback is called with the result in any case. If workers of a runtime have
    /// submitted several such I/Os, any one of them is cancelled. Never waits. O(I/Os of the reactor).
    pub fn cancel(&self, cookie: u64) {
        self.lanes.cancel_call(cookie);
    }
}

/// An I/O in progress; a future of its [`Answer`]. Any executor can poll it.
///
/// # Dropping it
///
/// The I/O continues, and its payload stays with it until the device is done; then the payload is dropped where
/// callbacks are called. An I/O that is still in line is not done; its payload is dropped with the future. So I/Os
/// without a future fill at most the inbox and the queue.
#[must_use = "without waiting for the answer nobody knows whether the I/O was done"]
pub struct Submitted<P> {
    shared: Arc<Shared<P>>,
    state: State<P>,
}

impl<P> Submitted<P> {
    pub(super) fn new(shared: Arc<Shared<P>>, ticket: u32) -> Self {
        Self { shared, state: State::New(ticket) }
    }

    /// Requests cancellation of the I/O. It is cancelled if it still waits alone: in line for the inbox, in the
    /// reactor, or in the queue as [`Client::cancel`](crate::Client::cancel) says. Its result is then
    /// [`IoError::CANCELLED`](blkmq_core::IoError::CANCELLED). Never waits.
    pub fn cancel(&self) {
        if let State::New(ticket) | State::Polled(ticket) = self.state {
            self.shared.cancel(ticket);
        }
    }
}

enum State<P> {
    /// Not polled yet, so its ticket has no waker.
    New(u32),
    Polled(u32),
    /// The reactor was gone at submission.
    Closed(Io<P>),
    Answered,
}

/// Payloads are moved in and out, and never pinned.
impl<P> Unpin for Submitted<P> {}

impl<P> fmt::Debug for Submitted<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted").finish_non_exhaustive()
    }
}

impl<P> Future for Submitted<P> {
    type Output = Answer<P>;

    /// # Panics
    /// If it has been ready before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<P>> {
        // Cloning a waker runs foreign code, so the waker is cloned outside the lock, in advance if it is certain to be
        // needed.
        let (ticket, mut waker) = match self.state {
            State::New(ticket) => (ticket, Some(cx.waker().clone())),
            State::Polled(ticket) => (ticket, None),
            State::Closed(_) | State::Answered => return Poll::Ready(self.closed()),
        };
        loop {
            let mut inbox = self.shared.lock();
            if let Some(answer) = inbox.fetch(ticket) {
                drop(inbox);
                self.state = State::Answered;
                return Poll::Ready(answer);
            }
            let kept = inbox.waker(ticket);
            if kept.as_ref().is_some_and(|kept| kept.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(waker) = waker.take() {
                let old = kept.replace(waker);
                drop(inbox);
                drop(old);
                self.state = State::Polled(ticket);
                return Poll::Pending;
            }
            drop(inbox);
            waker = Some(cx.waker().clone());
        }
    }
}

impl<P> Submitted<P> {
    fn closed(&mut self) -> Answer<P> {
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Closed(io) => Err(SubmitError::Closed(Unsubmitted::new(io))),
            _ => panic!("polled after it was ready"),
        }
    }
}

impl<P> Drop for Submitted<P> {
    fn drop(&mut self) {
        if let State::New(ticket) | State::Polled(ticket) = self.state {
            // The guard is a temporary of the first statement, so the lock is free before the remains are dropped.
            let remains = self.shared.lock().forsake(ticket);
            drop(remains);
        }
    }
}

impl<P> Handle<P> {
    /// Waits for a place in the reactor's inbox, and keeps it: a program that is about to read a request from a socket
    /// then knows that the I/O will be taken. Permits and I/Os in line are served in order. The output is an error if
    /// the reactor is gone.
    ///
    /// A permit is valid for an I/O of any group. If many are spent on a group that has reached a limit, its I/Os fill
    /// the inbox, and other callers wait for permits.
    pub fn reserve(&self) -> Reserving<P> {
        let shared = self.inbox();
        let ticket = shared.lock().want_permit();
        Reserving { shared: Arc::clone(shared), ticket: Some(ticket) }
    }
}

/// A future of a [`Permit`], from [`Handle::reserve`]. Dropping it leaves the line.
#[must_use = "nothing is reserved until it is ready"]
pub struct Reserving<P> {
    shared: Arc<Shared<P>>,
    /// `None` after the future was ready.
    ticket: Option<u32>,
}

/// A reserved place in a reactor's inbox for one I/O, which the reactor takes unless it is gone. Dropping the permit
/// gives the place to the next in line.
///
/// ```
/// use blkmq_core::{Bytes, IoResult};
/// use blkmq_engine::Io;
/// use blkmq_runtime::Handle;
/// # type Failure = Box<dyn std::error::Error + Send + Sync>;
///
/// async fn serve(handle: &Handle<Vec<u8>>) -> Result<IoResult, Failure> {
///     let permit = handle.reserve().await?;
///     // There is room. A server reads a request from its socket now.
///     let io = Io::write(Bytes(4096), vec![7; 512]);
///     Ok(permit.submit(io)?.await?.result)
/// }
/// ```
#[must_use = "it keeps a place for as long as it lives"]
pub struct Permit<P> {
    shared: Arc<Shared<P>>,
    /// `None` after the permit was spent.
    ticket: Option<u32>,
}

impl<P> fmt::Debug for Reserving<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserving").finish_non_exhaustive()
    }
}

impl<P> fmt::Debug for Permit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

impl<P> Future for Reserving<P> {
    type Output = Result<Permit<P>, Unavailable>;

    /// # Panics
    /// If it has been ready before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("polled after it was ready");
        // Cloning a waker runs foreign code, so the clone is made outside the lock.
        let waker = cx.waker().clone();
        let mut inbox = self.shared.lock();
        let Some(decided) = inbox.permit(ticket) else {
            let old = inbox.waker(ticket).replace(waker);
            drop(inbox);
            drop(old);
            return Poll::Pending;
        };
        drop(inbox);
        self.ticket = None;
        let shared = Arc::clone(&self.shared);
        Poll::Ready(decided.map(|()| Permit { shared, ticket: Some(ticket) }))
    }
}

impl<P> Drop for Reserving<P> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.give_back_permit(ticket);
        }
    }
}

impl<P> Permit<P> {
    /// Submits `io` as [`Handle::submit`] does. Never waits. O(1).
    ///
    /// # Errors
    /// Gives the I/O back if the reactor is gone.
    pub fn submit(mut self, io: Io<P>) -> Result<Submitted<P>, NotTaken<P>> {
        let mut inbox = self.shared.lock();
        if let Err(why) = inbox.spend(&mut self.ticket) {
            return Err(NotTaken { io: Unsubmitted::new(io), then: (), why });
        }
        let ticket = inbox.send(io);
        self.shared.unlock_and_ring(inbox);
        Ok(Submitted::new(Arc::clone(&self.shared), ticket))
    }

    /// Submits `io`, and has `then` called with the answer, as [`Handle::call`] does. Never waits. O(1).
    ///
    /// # Errors
    /// Gives the I/O and the callback back if the reactor is gone.
    pub fn call<F>(mut self, io: Io<P>, then: F) -> Result<(), NotTaken<P, F>>
    where
        F: FnOnce(Answer<P>) + Send + 'static,
    {
        // Allocates, so outside the lock.
        let then = Box::new(then);
        let mut inbox = self.shared.lock();
        if let Err(why) = inbox.spend(&mut self.ticket) {
            drop(inbox);
            return Err(NotTaken { io: Unsubmitted::new(io), then: *then, why });
        }
        inbox.call(io, then);
        self.shared.unlock_and_ring(inbox);
        Ok(())
    }
}

impl<P> Drop for Permit<P> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.give_back_permit(ticket);
        }
    }
}
