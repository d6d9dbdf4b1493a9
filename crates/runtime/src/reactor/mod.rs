//! Clients for callers that use callbacks or futures: one with its own thread, or several that are tasks of a runtime.
//!
//! [`Reactor`] starts and stops the thread or the tasks and makes [`Handle`]s; `turn.rs` has the turns, `inbox.rs` the
//! data that both ends share. A thread does everything inline, elevator, pumps and delivery, so an I/O changes threads
//! once in each direction, and any executor will do. Tasks do the same on the workers of their runtime (`driver.rs`),
//! so an I/O need not change threads.

mod answer;
#[cfg(all(target_os = "linux", feature = "tokio"))]
mod driver;
mod ends;
mod handle;
mod inbox;
mod shared;
mod slab;
mod turn;

pub use answer::{Answer, NotTaken, Unavailable};
pub use ends::Closed;
pub use handle::{Handle, Permit, Reserving, Submitted};

use crate::host::Threads;
use crate::port::thread::{self, JoinHandle};
use crate::pump_thread::PumpThreads;
use crate::stall::Stalls;
use crate::{Client, ClientError, Clock, StillHeld, Waiting};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::{NoSubmitterLeft, Queue, Submitter};
#[cfg(all(target_os = "linux", feature = "tokio"))]
use driver::Driver;
use ends::Ends;
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
    /// Keeps the pump threads of the queue alive; without them, nothing would complete.
    pub(crate) pumps: Option<Arc<PumpThreads>>,
    pub(crate) stalls: Stalls<P>,
}

/// Why a reactor could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReactorError {
    /// The queue was built for fewer submitters.
    NoSubmitterLeft(NoSubmitterLeft),
    /// The thread could not be started.
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

/// A thread that does I/O for all holders of a [`Handle`]; on a runtime ([`Service::reactor_on`]), a few tasks.
///
/// The thread, or each task, is one submitter of the queue, and so has at most that submitter's credit in flight.
/// Further I/Os wait in its inbox, which is bounded, and then in line. I/Os that wait for a limit of their group
/// ([`IoMax`]) wait separately, in an inbox and a line for each group and direction; a waiting group takes only one
/// credit in each direction. An I/O with more parts than there is credit for at present waits too, and holds up all
/// I/Os behind it. An I/O with more parts than the whole credit is refused.
///
/// All I/Os that are taken from an inbox together are pushed before a flush, so the I/Os of many callers merge in one
/// plug. Without work, the thread sleeps, and the tasks take no time of their runtime.
///
/// # Dropping it
///
/// Dropping the reactor closes it. It takes no more I/Os, finishes and delivers the ones that have a place, and returns
/// the ones in line ([`SubmitError::Closed`](crate::SubmitError::Closed)). The drop waits until all that is done,
/// forever if a device never answers. [`close`](Self::close) waits for a limited time, and [`closed`](Self::closed) is
/// a future of the end.
///
/// The drop does not wait on the reactor's own thread, in a callback. With the feature `tokio` it does not wait in a
/// task or in `block_on` of a runtime either, because that would block a worker, nor for a reactor on a
/// `current_thread` runtime. The thread, or the tasks as long as their runtime runs, then continue until everything is
/// delivered. I/Os without an answer are lost if the program ends before.
///
/// A runtime that is shut down drops the tasks. I/Os that have not been pushed are then returned. I/Os in flight
/// continue at the device, which keeps their payloads, and are answered with
/// [`SubmitError::Lost`](crate::SubmitError::Lost).
///
/// [`IoMax`]: blkmq_engine::IoMax
/// [`Service::reactor_on`]: crate::Service#method.reactor_on
pub struct Reactor<P> {
    lanes: Lanes<P>,
    panics: Arc<AtomicU64>,
    body: Body,
    ends: Arc<Ends>,
    queue: Queue<P>,
    clock: Clock,
}

/// Where the turns run.
enum Body {
    Thread(JoinHandle<()>),
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    Tasks(tokio::runtime::Handle),
    /// The thread or the tasks end on their own.
    Left,
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
        let (queue, ends) = (stalls.queue().clone(), Arc::new(Ends::default()));
        let entered = ends.enter();
        let body = move || {
            let _entered = entered;
            // The client keeps the pump threads alive until the last I/O is done.
            let client = Client::new(submitter, clock, waiting, &threads, pumps, stalls);
            Turns::new(client, its_shared, its_panics).run();
        };
        let thread = thread::Builder::new().name("blkmq-reactor".into()).spawn(body);
        let body = Body::Thread(thread.map_err(ReactorError::Thread)?);
        Ok(Self { lanes: Lanes::new([shared]), panics, body, ends, queue, clock })
    }

    /// Starts a task of `runtime` for the `first` launch and for each of `others`.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(crate) fn start_on(
        runtime: &tokio::runtime::Handle,
        first: Launch<P>,
        others: impl Iterator<Item = Launch<P>>,
    ) -> Result<Self, ReactorError> {
        let panics = Arc::new(AtomicU64::new(0));
        let ends = Arc::new(Ends::default());
        let (queue, clock) = (first.stalls.queue().clone(), first.clock);
        let _context = runtime.enter();
        let lane = |launch| {
            let Launch { submitter, clock, waiting, threads, pumps, stalls } = launch;
            let shared = Shared::of_task(submitter.depth());
            let client = Client::new(submitter, clock, waiting, &threads, pumps, stalls);
            let turns = Turns::new(client, Arc::clone(&shared), Arc::clone(&panics));
            Ok::<_, ReactorError>((
                shared,
                Driver::new(turns, &ends).map_err(ReactorError::Descriptor)?,
            ))
        };
        let lanes: Result<Vec<_>, _> = std::iter::once(first).chain(others).map(lane).collect();
        let (inboxes, drivers): (Vec<_>, Vec<_>) = lanes?.into_iter().unzip();
        for driver in drivers {
            runtime.spawn(driver);
        }
        let body = Body::Tasks(runtime.clone());
        Ok(Self { lanes: Lanes::new(inboxes), panics, body, ends, queue, clock })
    }

    /// Closes the reactor as a drop does, and waits for its end; see [`closed`](Self::closed) for tasks. On the
    /// reactor's own thread, in a callback, it does not wait.
    ///
    /// # Blocking
    /// For `within` at most.
    ///
    /// If I/Os have not ended by then: the error lists them. The reactor's thread or tasks continue, and deliver the
    /// answers that still arrive.
    pub fn close(mut self, within: Nanos) -> Result<(), StillHeld> {
        self.lanes.close();
        let within = if self.is_own_thread() { Nanos::ZERO } else { within };
        if self.ends.wait_for(within) {
            return Ok(());
        }
        self.body = Body::Left;
        Err(StillHeld::of(&self.queue, self.clock.now()))
    }
}

impl<P> Reactor<P> {
    /// A handle for submission, for any thread.
    #[must_use]
    pub fn handle(&self) -> Handle<P> {
        Handle::new(self.lanes.clone())
    }

    /// The number of panics so far: of callbacks, of wakers, of drops of payloads without a future, and of the
    /// reactor's own loop, after which the reactor is closed.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

impl<P> Reactor<P> {
    /// Closes the reactor as a drop does, without waiting: the future is ready when everything is delivered. Any
    /// executor can poll it; dropping it does not affect the reactor.
    pub fn closed(mut self) -> Closed {
        self.lanes.close();
        self.body = Body::Left;
        Closed(Arc::clone(&self.ends))
    }

    /// Returns whether the calling thread is the reactor's.
    fn is_own_thread(&self) -> bool {
        matches!(&self.body, Body::Thread(thread) if thread.thread().id() == thread::current().id())
    }
}

impl<P> Drop for Reactor<P> {
    fn drop(&mut self) {
        self.lanes.close();
        if self.is_own_thread() || is_within_a_runtime() {
            return;
        }
        match std::mem::replace(&mut self.body, Body::Left) {
            // The thread's panic has been printed; a second panic here would hide it.
            Body::Thread(thread) => drop(thread.join()),
            #[cfg(all(target_os = "linux", feature = "tokio"))]
            Body::Tasks(runtime) => {
                if runtime.runtime_flavor() != tokio::runtime::RuntimeFlavor::CurrentThread {
                    self.ends.wait();
                }
            }
            Body::Left => {}
        }
    }
}

/// Returns whether the calling thread runs tasks of a runtime, as far as is known.
fn is_within_a_runtime() -> bool {
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    return tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(all(target_os = "linux", feature = "tokio")))]
    false
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
