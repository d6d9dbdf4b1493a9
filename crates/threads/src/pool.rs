//! [`Pool`]: a bounded number of threads that do requests one at a time, the oldest first; and [`Inbox`]: the
//! requests that threads have done, on their way back to a hardware queue.
//!
//! Threads are started when requests wait that no idle thread will take, and stay until the pool goes.

use crate::{Step, Work};
#[cfg(not(target_os = "linux"))]
use condvar::Bell;
#[cfg(target_os = "linux")]
use eventfd::Bell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

#[cfg(any(test, not(target_os = "linux")))]
mod condvar;
#[cfg(target_os = "linux")]
mod eventfd;

/// A request for a thread, and where it goes afterwards.
pub(crate) struct Job<W> {
    pub(crate) work: W,
    pub(crate) inbox: Arc<Inbox<W>>,
}

/// The threads of a device. Its hardware queues share them.
pub struct Pool<W: Work> {
    shared: Arc<Shared<W>>,
    /// The most threads.
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
    /// Rung when there are jobs for idle threads, and when the pool goes.
    work: Condvar,
}

struct State<W> {
    jobs: VecDeque<Job<W>>,
    /// Threads that sleep, or were rung for and have not looked yet.
    idle: usize,
    /// One of these was rung for. When it looks, it rings for the next one if there is more to do: so no more threads wake than
    /// find something.
    is_called: bool,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl<W> State<W> {
    /// Returns whether the caller must ring for a thread, once the lock is released.
    fn calls(&mut self) -> bool {
        let calls = !self.is_called && self.idle > 0 && !self.jobs.is_empty();
        self.is_called |= calls;
        calls
    }
}

impl<W: Work> Shared<W> {
    /// No code panics under this lock.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread of the pool.
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
    /// At most `most` threads for the files of a device. Starts one of them.
    ///
    /// # Errors
    /// If the system refuses that thread.
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

    /// Hands all of `requests` to the threads, in their order; afterwards they go to `inbox`.
    pub(crate) fn submit(&self, inbox: &Arc<Inbox<W>>, requests: &mut Vec<W>) {
        let mut state = self.shared.lock();
        for work in requests.drain(..) {
            state.jobs.push_back(Job { work, inbox: Arc::clone(inbox) });
        }
        let room = if state.is_closed { 0 } else { self.most - state.threads.len() };
        let missing = state.jobs.len().saturating_sub(state.idle).min(room);
        for _ in 0..missing {
            // Those that are there do the work if the system refuses more.
            let Ok(thread) = self.start() else { break };
            state.threads.push(thread);
        }
        let calls = state.calls();
        drop(state);
        if calls {
            self.shared.work.notify_one();
        }
    }

    /// Takes the requests of `inbox` back that no thread has begun, if `wanted` holds for them.
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
    /// Lets the threads finish the requests they have begun, and waits for them.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.work.notify_all();
        for thread in threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Drop for Pool<W> {
    /// Waits for the threads, so that the files are closed and their locks gone.
    fn drop(&mut self) {
        self.close();
    }
}

/// A request that a thread is done with, and how far it came: never [`Step::Again`].
pub(crate) type Done<W> = (W, Step);

/// The requests that are done, and a bell that is rung while there are any.
pub(crate) struct Inbox<W> {
    /// The bell is rung and silenced under the lock: it is rung while there is something, and at no other time.
    done: Mutex<Vec<Done<W>>>,
    bell: Bell,
}

impl<W> Inbox<W> {
    /// # Errors
    /// Without a descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { done: Mutex::default(), bell: Bell::new()? })
    }

    /// For threads of the pool.
    fn put(&self, done: Done<W>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            self.bell.ring();
        }
        all.push(done);
    }

    /// Moves everything that is done into `out`.
    pub(crate) fn take(&self, out: &mut Vec<Done<W>>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            self.bell.silence();
            out.append(&mut all);
        }
    }

    /// Sleeps until something is done.
    pub(crate) fn wait(&self) {
        self.bell.wait();
    }

    /// The bell.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}
