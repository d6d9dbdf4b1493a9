//! Clients for callers that use callbacks or futures: one with its own thread, or several that are tasks of a runtime.
//!
//! [`Reactor`] starts and stops the thread or the tasks and makes [`Handle`]s; `turn.rs` has the turns, `inbox.rs` the
//! data that both ends share. A thread does everything inline, elevator, pumps and delivery, so an I/O changes threads
//! once in each direction, and any executor will do. Tasks do the same on the workers of their runtime (`driver.rs`),
//! so an I/O need not change threads.
//!
//! [`Ends`] counts the threads and tasks of a reactor, for callers that wait until all have ended.

#[cfg(all(target_os = "linux", feature = "tokio"))]
mod driver;
mod handle;
mod inbox;
mod shared;
mod turn;

pub use handle::{Handle, Permit, Reserving, Submitted};

use crate::client::Stalls;
use crate::port::thread::{self, JoinHandle};
use crate::waiting::{PumpThreads, Threads};
use crate::{Client, ClientError, Clock, StillHeld, Waiting};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::{NoSubmitterLeft, Queue, Submitter};
#[cfg(all(target_os = "linux", feature = "tokio"))]
use driver::Driver;
use shared::{Lanes, Shared};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReactorError {
    /// The queue was built for fewer submitters.
    #[error("{0}")]
    NoSubmitterLeft(#[source] NoSubmitterLeft),
    /// The thread could not be started.
    #[error("the reactor's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The descriptors of one of its clients could not be created, or the runtime cannot watch them.
    #[error(
        "no descriptors for a client, or none that the runtime can watch (ulimit -n says how many \
         there may be): {0}"
    )]
    Descriptor(#[source] std::io::Error),
}

impl From<ClientError> for ReactorError {
    fn from(why: ClientError) -> Self {
        match why {
            ClientError::NoSubmitterLeft(e) => Self::NoSubmitterLeft(e),
            ClientError::Descriptor(e) => Self::Descriptor(e),
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
    /// # Errors
    /// If I/Os have not ended by then. The error lists them. The reactor's thread or tasks continue, and deliver the
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
    fn enter(self: &Arc<Self>) -> Entered {
        self.lock().left += 1;
        Entered(Arc::clone(self))
    }

    /// Waits until all have ended.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(super) fn wait(&self) {
        drop(self.none_left.wait_while(self.lock(), |running| running.left > 0));
    }

    /// Waits until all have ended, for `within` at most. Returns whether all have ended.
    fn wait_for(&self, within: Nanos) -> bool {
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

impl fmt::Debug for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    //! A reactor that never spins: it parks whenever it has no work, so each wake-up has to arrive.

    use super::*;
    use blkmq_core::Op;
    use blkmq_device::{MachineShape, registry};
    use blkmq_engine::{Io, PumpMode, Queue};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    fn parking_reactor(device: &str, pump: PumpMode, depth: u32) -> Reactor<u64> {
        let machine = MachineShape { cpus: 2, nodes: 1 };
        let mut config = registry::parse(device, &machine).unwrap().config();
        (config.pump, config.depth) = (pump, depth);
        let threads = Threads::new(&config).unwrap();
        let clock = Clock::start();
        config.host = Box::new(crate::waiting::ThreadHost { threads: Arc::clone(&threads), clock });
        let queue = Queue::new(config).unwrap();
        let start =
            || PumpThreads::start(&queue, 1, clock, &threads, crate::Placement::Anywhere).unwrap();
        let pumps = (pump == PumpMode::Thread).then(start).map(Arc::new);
        let waiting = Waiting { spins: 0, rounds: 0, yields: 0 };
        let mut submitter = queue.submitter().unwrap();
        threads.prepare(&mut submitter, None).unwrap();
        let stalls = Stalls::new(crate::client::StallSettings::default(), queue.clone());
        Reactor::start(Launch { submitter, clock, waiting, threads, pumps, stalls }).unwrap()
    }

    #[test]
    fn no_wake_up_is_lost_by_a_reactor_that_parks_every_time() {
        // The second device completes later than a thread would spin for, so that the reactor also parks with I/Os in
        // flight.
        for device in ["null,irqmode=0", "null,irqmode=2,completion_nsec=100000"] {
            for pump in [PumpMode::Inline, PumpMode::Thread] {
                for depth in [1, 4] {
                    let reactor = parking_reactor(device, pump, depth);
                    thread::scope(|scope| {
                        for nth in 0..3 {
                            let handle = reactor.handle();
                            scope.spawn(move || {
                                for n in 0..200 {
                                    let io = Io::new(Op::Read, n * 64, 8, nth, n);
                                    assert_eq!(block_on(handle.submit(io)).unwrap().payload, n);
                                }
                            });
                        }
                    });
                }
            }
        }
    }
}
