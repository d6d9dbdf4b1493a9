//! Permits: a place in a reactor's inbox, reserved before there is an I/O to put in.

use super::answer::{Answer, NotTaken, Unavailable};
use super::handle::{Handle, Submitted};
use super::shared::Shared;
use blkmq_engine::{Io, Unsubmitted};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

impl<P> Handle<P> {
    /// Waits for a place in the reactor's inbox, and keeps it: a program that is about to read a request from a
    /// socket knows by then that the I/O will be taken. Permits and I/Os in line are served in order. The future's
    /// output is an error if the reactor is gone.
    ///
    /// A permit is good for an I/O of any group. If many are spent on a group that has met a limit, their I/Os fill the
    /// inbox, and others wait for permits.
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
    /// `None` after it has been ready.
    ticket: Option<u32>,
}

/// A place in a reactor's inbox for one I/O, which the reactor takes unless it is gone. Dropping the permit gives the
/// place to the next in line.
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
    /// `None` after it has been spent.
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

    /// Submits `io` and arranges for `then` to be called with the answer, as [`Handle::call`] does. Never waits.
    /// O(1).
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
