//! Clients for callers that use callbacks or futures: one with a thread of its own, or some that are tasks of a runtime.
//!
//! [`Reactor`] starts and stops the thread or the tasks and makes [`Handle`]s; the turns are in `turn.rs`, the data that both
//! ends share in `inbox.rs`. A thread does everything inline, elevator, pumps and delivery, so an I/O changes threads
//! once on its way in and once on its way back, and any executor will do. Tasks do the same on the workers of their runtime
//! (`driver.rs`), so an I/O need not change threads.

mod answer;
#[cfg(all(target_os = "linux", feature = "tokio"))]
mod driver;
mod handle;
mod inbox;
mod shared;
mod slab;
mod turn;

pub use answer::{Answer, NotTaken, Unavailable};
pub use handle::{Handle, Permit, Reserving, Submitted};

use crate::host::Threads;
use crate::port::thread::{self, JoinHandle};
use crate::pump_thread::PumpThreads;
use crate::stall::Stalls;
use crate::{Client, ClientError, Clock, Waiting};
use blkmq_core::Payload;
use blkmq_engine::{NoSubmitterLeft, Submitter};
#[cfg(all(target_os = "linux", feature = "tokio"))]
use driver::{Driver, Tasks};
use shared::{Lanes, Shared};
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
    /// The descriptors of one of its clients could not be made, or the runtime cannot watch them.
    Descriptor(std::io::Error),
}

impl From<ClientError> for ReactorError {
    fn from(why: ClientError) -> Self {
        match why {
            ClientError::NoSubmitterLeft(e) => Self::NoSubmitterLeft(e),
            ClientError::Descriptor(e) => Self::Descriptor(e),
        }
    }
}

impl fmt::Display for ReactorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSubmitterLeft(e) => e.fmt(f),
            Self::Thread(e) => write!(f, "the reactor's thread could not be started: {e}"),
            Self::Descriptor(e) => write!(
                f,
                "no descriptors for a client, or none that the runtime can watch (ulimit -n says how many there may be): {e}"
            ),
        }
    }
}

impl std::error::Error for ReactorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoSubmitterLeft(e) => Some(e),
            Self::Thread(e) | Self::Descriptor(e) => Some(e),
        }
    }
}

/// A thread that does I/O for all holders of a [`Handle`]; on a runtime ([`Service::reactor_on`]), some tasks that do.
///
/// The thread, or a task, is one submitter of the queue, and so has at most that submitter's credit in flight. Further I/Os
/// wait in its inbox, which is bounded, and then in line. I/Os that wait for a limit of their group ([`IoMax`]) wait apart from
/// all others, in an inbox and a line for each group and direction; one credit in each direction is all that a group takes
/// while it waits. An I/O with more parts than there is credit for at the moment waits
/// too, and holds up all I/Os behind it; one with more parts than the whole credit is refused.
///
/// All I/Os that are taken from an inbox together are pushed before a flush, so the I/Os of many callers merge in one plug.
/// While there is nothing to do, the thread sleeps, and the tasks take no time of their runtime.
///
/// # Dropping it
///
/// That closes it: it takes no more I/Os, finishes and delivers those that have a place, gives back those that stand in line
/// ([`SubmitError::Closed`](crate::SubmitError::Closed)), and waits for all that; for a device that never answers, forever. A reactor that is dropped on
/// its own thread, by a callback, does the same but does not wait.
///
/// A reactor on a runtime that is dropped within that runtime, in a task or in `block_on`, does not wait either: a worker
/// that waits would not run the tasks. Nor does one on a `current_thread` runtime. The tasks continue until everything
/// is delivered, as long as the runtime runs.
///
/// A runtime that is shut down drops the tasks. I/Os that have not been pushed are given back then; I/Os in flight
/// continue at the device, which keeps their payloads, and their answer is
/// [`SubmitError::Lost`](crate::SubmitError::Lost).
///
/// [`IoMax`]: blkmq_engine::IoMax
/// [`Service::reactor_on`]: crate::Service#method.reactor_on
pub struct Reactor<P> {
    lanes: Lanes<P>,
    panics: Arc<AtomicU64>,
    body: Body,
}

/// The turns' place.
enum Body {
    /// `None` only during drop.
    Thread(Option<JoinHandle<()>>),
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    Tasks(Arc<Tasks>, tokio::runtime::Handle),
}

impl<P> fmt::Debug for Reactor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("panics", &self.panics()).finish_non_exhaustive()
    }
}

impl<P: Payload> Reactor<P> {
    pub(crate) fn start(launch: Launch<P>) -> Result<Self, ReactorError> {
        let Launch { submitter, clock, waiting, threads, pumps, stalls } = launch;
        let shared = Shared::of_thread(submitter.depth(), Arc::clone(&threads), submitter.id());
        let panics = Arc::new(AtomicU64::new(0));
        let (its_shared, its_panics) = (Arc::clone(&shared), Arc::clone(&panics));
        let body = move || {
            // The client keeps the pump threads alive until the last I/O is done.
            let client = Client::new(submitter, clock, waiting, &threads, pumps, stalls);
            Turns::new(client, its_shared, its_panics).run();
        };
        let thread = thread::Builder::new().name("blkmq-reactor".into()).spawn(body);
        let body = Body::Thread(Some(thread.map_err(ReactorError::Thread)?));
        Ok(Self { lanes: Lanes::new([shared]), panics, body })
    }

    /// With a task of `runtime` for each of `launches`.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(crate) fn start_on(
        runtime: &tokio::runtime::Handle,
        launches: impl IntoIterator<Item = Launch<P>>,
    ) -> Result<Self, ReactorError> {
        let panics = Arc::new(AtomicU64::new(0));
        let tasks = Arc::new(Tasks::default());
        let _context = runtime.enter();
        let lane = |launch| {
            let Launch { submitter, clock, waiting, threads, pumps, stalls } = launch;
            let shared = Shared::of_task(submitter.depth());
            let client = Client::new(submitter, clock, waiting, &threads, pumps, stalls);
            let turns = Turns::new(client, Arc::clone(&shared), Arc::clone(&panics));
            Ok::<_, ReactorError>((
                shared,
                Driver::new(turns, &tasks).map_err(ReactorError::Descriptor)?,
            ))
        };
        let lanes: Result<Vec<_>, _> = launches.into_iter().map(lane).collect();
        let (inboxes, drivers): (Vec<_>, Vec<_>) = lanes?.into_iter().unzip();
        for driver in drivers {
            runtime.spawn(driver);
        }
        Ok(Self { lanes: Lanes::new(inboxes), panics, body: Body::Tasks(tasks, runtime.clone()) })
    }
}

impl<P> Reactor<P> {
    /// A handle to submit with, for any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<P> {
        Handle::new(self.lanes.clone())
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
        self.lanes.close();
        match &mut self.body {
            Body::Thread(thread) => {
                if let Some(thread) = thread.take()
                    && thread.thread().id() != thread::current().id()
                {
                    // The thread's panic has been printed; a second panic here would hide it.
                    let _ = thread.join();
                }
            }
            #[cfg(all(target_os = "linux", feature = "tokio"))]
            Body::Tasks(tasks, runtime) => {
                use tokio::runtime::{Handle, RuntimeFlavor};
                let is_within = Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
                if !is_within && runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
                    tasks.wait();
                }
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
