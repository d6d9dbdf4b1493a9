//! [`Pool`]: a bounded number of threads that perform requests one at a time, oldest first; and [`Inbox`]: the finished
//! requests on their way back to a hardware queue. A device supplies the requests ([`Work`]) and makes them
//! ([`Source`]).
//!
//! The pool starts a thread when a request waits and no thread is idle. Threads live as long as the pool.

use blkmq_buf::IoBuf;
use blkmq_core::{IoResult, Nanos};
use blkmq_engine::{BioTable, Inflight};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

#[cfg(not(target_os = "linux"))]
use condvar::Bell;
#[cfg(target_os = "linux")]
use eventfd::Bell;

/// A request for a thread, and the inbox for its result.
struct Job<W> {
    work: W,
    inbox: Arc<Inbox<W>>,
}

/// The threads of a device. Its hardware queues share them.
pub struct Pool<W: Work> {
    shared: Arc<Shared<W>>,
    /// The maximum number of threads.
    most: usize,
}

impl<W: Work> fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("most", &self.most).finish_non_exhaustive()
    }
}

struct Shared<W: Work> {
    files: W::Files,
    state: Mutex<State<W>>,
    /// Notified when jobs wait for idle threads, and when the pool is dropped.
    work: Condvar,
}

struct State<W> {
    jobs: VecDeque<Job<W>>,
    /// Threads that sleep, or have been notified and not yet checked for jobs.
    idle: usize,
    /// One idle thread has been notified. When it wakes, it notifies the next if more jobs wait, so that no thread
    /// wakes without finding work.
    is_called: bool,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl<W> State<W> {
    /// Returns whether the caller must notify a thread after releasing the lock.
    fn calls(&mut self) -> bool {
        let calls = !self.is_called && self.idle > 0 && !self.jobs.is_empty();
        self.is_called |= calls;
        calls
    }
}

impl<W: Work> Shared<W> {
    /// The lock is never poisoned: no code panics while holding it.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a pool thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Job { mut work, inbox }) = state.jobs.pop_front() {
                let calls = state.calls();
                drop(state);
                if calls {
                    self.work.notify_one();
                }
                let step = work.perform(&self.files);
                inbox.put((work, step));
                state = self.lock();
            } else if state.is_closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                state.is_called = false;
            }
        }
    }
}

impl<W: Work> Pool<W> {
    /// Creates a pool of at most `most` threads for the files of a device, and starts one of them.
    ///
    /// # Errors
    /// If the system refuses to start that thread.
    pub fn new(most: u16, files: W::Files) -> io::Result<Arc<Self>> {
        let state = State {
            jobs: VecDeque::new(),
            idle: 0,
            is_called: false,
            threads: Vec::new(),
            is_closed: false,
        };
        let shared = Arc::new(Shared { files, state: Mutex::new(state), work: Condvar::new() });
        let pool = Arc::new(Self { shared, most: most.into() });
        let first = pool.start()?;
        pool.shared.lock().threads.push(first);
        Ok(pool)
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("blkmq-io".into()).spawn(move || shared.work())
    }

    /// Hands `requests` to the threads in order, and has them deliver the results to `inbox`.
    pub(crate) fn submit(&self, inbox: &Arc<Inbox<W>>, requests: &mut Vec<W>) {
        let mut state = self.shared.lock();
        for work in requests.drain(..) {
            state.jobs.push_back(Job { work, inbox: Arc::clone(inbox) });
        }
        let room = if state.is_closed { 0 } else { self.most - state.threads.len() };
        let missing = state.jobs.len().saturating_sub(state.idle).min(room);
        for _ in 0..missing {
            // If the system refuses another thread, the existing threads do the work.
            let Ok(thread) = self.start() else { break };
            state.threads.push(thread);
        }
        let calls = state.calls();
        drop(state);
        if calls {
            self.shared.work.notify_one();
        }
    }

    /// Takes back the requests of `inbox` that no thread has begun and for which `wanted` holds.
    pub(crate) fn take_back(&self, inbox: &Arc<Inbox<W>>, wanted: &dyn Fn(&W) -> bool) -> Vec<W> {
        let mut state = self.shared.lock();
        let mut back = Vec::new();
        for job in std::mem::take(&mut state.jobs) {
            if Arc::ptr_eq(&job.inbox, inbox) && wanted(&job.work) {
                back.push(job.work);
            } else {
                state.jobs.push_back(job);
            }
        }
        back
    }

    /// The number of threads that were started.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.shared.lock().threads.len()
    }
}

impl<W: Work> Pool<W> {
    /// Lets the threads finish the requests that they have begun, and joins them.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.work.notify_all();
        for thread in threads {
            // The panic of a thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Drop for Pool<W> {
    /// Joins the threads, so that the files are closed and their locks released.
    fn drop(&mut self) {
        self.close();
    }
}

/// A finished request and its outcome, which is never [`Step::Again`].
pub(crate) type Done<W> = (W, Step);

/// The finished requests, and a bell that rings while there are any.
pub(crate) struct Inbox<W> {
    /// The bell is rung and silenced under the lock, so that it rings exactly while the list is not empty.
    done: Mutex<Vec<Done<W>>>,
    bell: Bell,
}

impl<W> Inbox<W> {
    /// # Errors
    /// If the system refuses a descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { done: Mutex::default(), bell: Bell::new()? })
    }

    /// Delivers a finished request. Called by pool threads.
    fn put(&self, done: Done<W>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            self.bell.ring();
        }
        all.push(done);
    }

    /// Moves all finished requests into `out`.
    pub(crate) fn take(&self, out: &mut Vec<Done<W>>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            self.bell.silence();
            out.append(&mut all);
        }
    }

    /// Sleeps until a request is finished.
    pub(crate) fn wait(&self) {
        self.bell.wait();
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

/// The delay before a retry after a lack of memory: no event announces the end of the shortage.
pub const RETRY_DELAY: Nanos = Nanos::from_millis(1);

/// The outcome of one attempt at a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The request has ended.
    Done(IoResult),
    /// The rest of the request must be issued.
    Again,
    /// The system could not perform the request at this time.
    Later,
}

/// The work for one request, performed by a thread.
///
/// *Invariant: the work contains its token as long as a thread may reach it.*
pub trait Work: Send + 'static {
    /// The open files of a device, which its threads share.
    type Files: Send + Sync + 'static;

    /// The token, or `None` while the work is free.
    fn token(&self) -> Option<&Inflight>;

    /// Returns the place of the token, to put it in or take it out.
    fn token_mut(&mut self) -> &mut Option<Inflight>;

    /// Performs the whole request on the calling thread, which sleeps as long as that takes. Never returns
    /// [`Step::Again`].
    fn perform(&mut self, files: &Self::Files) -> Step;

    /// Called when the request has ended: memory that only a large request needs may be freed.
    fn rest(&mut self) {}
}

/// Creates the work for the requests of a hardware queue.
pub trait Source: Send {
    /// Its work.
    type Work: Work;

    /// Creates free work.
    fn blank(&self) -> Self::Work;

    /// Prepares `work` for the request `rq`.
    ///
    /// # Errors
    /// The result of a request that needs no thread.
    fn begin<P: IoBuf>(&self, work: &mut Self::Work, bios: &BioTable<P>, rq: &Inflight)
    -> IoResult;

    /// Notes that work has ended with an I/O error: the file may have been truncated.
    fn failed(&self, _work: &Self::Work) {}
}

#[cfg(target_os = "linux")]
mod eventfd {
    //! [`Bell`] on Linux: a descriptor on which clients sleep.

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};

    pub(crate) struct Bell(EventFd);

    impl Bell {
        /// # Errors
        /// If the system refuses a descriptor.
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
        }

        pub(super) fn ring(&self) {
            // The counter is 0, so that the write cannot block.
            let _ = self.0.write(1);
        }

        pub(super) fn silence(&self) {
            let _ = self.0.read();
        }

        /// Sleeps until the bell rings. Returns immediately if it rings already.
        pub(super) fn wait(&self) {
            // Errors and interruptions are ignored: the caller checks again.
            let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        }

        /// Readable while the bell rings.
        pub(crate) fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(any(test, not(target_os = "linux")))]
mod condvar {
    //! [`Bell`] on systems where clients cannot sleep on a descriptor: they poll at the times given by
    //! [`next_look`](Bell::next_look).

    use blkmq_core::{Instant, Nanos};
    use std::io;
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    /// The polling interval of a sleeping client: a few reads of an SSD.
    const LOOK: Nanos = Nanos::from_micros(200);

    pub(crate) struct Bell {
        rings: Mutex<bool>,
        rung: Condvar,
    }

    impl Bell {
        /// # Errors
        /// Never.
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self { rings: Mutex::new(false), rung: Condvar::new() })
        }

        fn lock(&self) -> MutexGuard<'_, bool> {
            self.rings.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(super) fn ring(&self) {
            *self.lock() = true;
            self.rung.notify_all();
        }

        pub(super) fn silence(&self) {
            *self.lock() = false;
        }

        /// Sleeps until the bell rings. Returns immediately if it rings already.
        pub(super) fn wait(&self) {
            let rings = self.rung.wait_while(self.lock(), |rings| !*rings);
            drop(rings.unwrap_or_else(PoisonError::into_inner));
        }

        /// Returns the time of the poll after one at `now`.
        pub(crate) fn next_look(&self, now: Instant) -> Instant {
            now + LOOK
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::Arc;

        #[test]
        fn a_ring_before_the_sleep_ends_it_and_so_does_one_of_another_thread() {
            let bell = Arc::new(Bell::new().expect("never"));
            bell.ring();
            bell.wait();
            bell.silence();
            let other = Arc::clone(&bell);
            let ringer = std::thread::spawn(move || other.ring());
            bell.wait();
            ringer.join().expect("it rang");
            assert!(bell.next_look(Instant::ZERO) > Instant::ZERO);
        }
    }
}
