//! A client with a thread of its own, for callers that use callbacks or futures.
//!
//! [`Reactor`] starts and stops the thread and makes [`Handle`]s; the loop is in `turn.rs`, the data that both ends
//! share in `inbox.rs`. The thread does everything inline, elevator, pumps and delivery, so an I/O changes threads
//! once on its way in and once on its way back. It knows nothing of executors.

mod answer;
mod handle;
mod inbox;
mod permit;
mod slab;
mod turn;

pub use answer::{Answer, NotTaken, SubmitError, SubmitErrorKind, Unavailable};
pub use handle::{Handle, Submitted};
pub use permit::{Permit, Reserving};

use crate::host::Threads;
use crate::port::thread::{self, JoinHandle};
use crate::pump_thread::PumpThreads;
use crate::stall::Stalls;
use crate::{Client, Clock, Waiting};
use blkmq_core::Payload;
use blkmq_engine::{NoSubmitterLeft, Submitter};
use inbox::Shared;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use turn::Turns;

/// The parts that a reactor is made from.
pub(crate) struct Launch<P> {
    pub(crate) submitter: Submitter<P>,
    pub(crate) clock: Clock,
    pub(crate) waiting: Waiting,
    pub(crate) threads: Arc<Threads>,
    /// In a queue that has pump threads, nothing would complete without them.
    pub(crate) pumps: Option<Arc<PumpThreads>>,
    pub(crate) stalls: Stalls<P>,
}

/// Why a reactor could not start.
#[derive(Debug)]
pub enum ReactorError {
    /// The queue was built for fewer submitters.
    NoSubmitterLeft(NoSubmitterLeft),
    /// Its thread could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for ReactorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSubmitterLeft(e) => e.fmt(f),
            Self::Thread(e) => write!(f, "the reactor's thread could not be started: {e}"),
        }
    }
}

impl std::error::Error for ReactorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoSubmitterLeft(e) => Some(e),
            Self::Thread(e) => Some(e),
        }
    }
}

/// A thread that does I/O for all holders of a [`Handle`]. It is one submitter of the queue, and so has at most that
/// submitter's credit in flight. Further I/Os wait in an inbox of bounded size, and then in line. An I/O with more
/// parts than there is credit for at the moment waits too, and holds up all I/Os behind it; one with more parts than
/// the whole credit is refused.
///
/// All I/Os that the thread takes from the inbox at once are pushed before it flushes, so the I/Os of many callers
/// merge in one plug. While there is nothing to do, the thread sleeps.
///
/// Dropping a reactor closes it: it takes no more I/Os, finishes and delivers those that have a place, gives back
/// those that stand in line ([`SubmitError::Closed`]), and waits for all that; for a device that never answers,
/// forever. A reactor that is dropped on its own thread, by a callback, does the same but does not wait.
pub struct Reactor<P> {
    shared: Arc<Shared<P>>,
    panics: Arc<AtomicU64>,
    /// `None` only during drop.
    thread: Option<JoinHandle<()>>,
}

impl<P> fmt::Debug for Reactor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("panics", &self.panics()).finish_non_exhaustive()
    }
}

impl<P: Payload> Reactor<P> {
    pub(crate) fn start(launch: Launch<P>) -> Result<Self, ReactorError> {
        let Launch { submitter, clock, waiting, threads, pumps, stalls } = launch;
        let shared = Shared::new(submitter.depth(), Arc::clone(&threads), submitter.id());
        let panics = Arc::new(AtomicU64::new(0));
        let (its_shared, its_panics) = (Arc::clone(&shared), Arc::clone(&panics));
        let body = move || {
            // The client keeps the pump threads alive until the last I/O is done.
            let client = Client::new(submitter, clock, waiting, &threads, pumps, stalls);
            Turns::new(client, its_shared, its_panics).run();
        };
        let thread = thread::Builder::new().name("blkmq-reactor".into()).spawn(body);
        Ok(Self { shared, panics, thread: Some(thread.map_err(ReactorError::Thread)?) })
    }
}

impl<P> Reactor<P> {
    /// A handle to submit with, for any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<P> {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Panics so far: of callbacks, of wakers, of drops of payloads that no future waits for, and of the reactor's
    /// own loop, after which the reactor is closed.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

impl<P> Drop for Reactor<P> {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // The thread's panic has been printed; a second panic here would hide it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
