//! [`Pool`]: a bounded number of threads that do requests one at a time, the oldest first; and [`Inbox`]: the
//! requests that threads have done, on their way back to a hardware queue.
//!
//! Threads are started when requests wait that no idle thread will take, and stay until the pool goes.

use crate::request::{Request, Step};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A request for a thread, and where it goes afterwards.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) inbox: Arc<Inbox>,
}

/// The threads of a device. Its hardware queues share them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// The most threads.
    most: usize,
}

struct Shared {
    files: Box<[Arc<File>]>,
    /// The logical block size.
    block: u32,
    state: Mutex<State>,
    /// Rung when there are jobs for idle threads, and when the pool goes.
    work: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    /// Threads that sleep, or were rung for and have not looked yet.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl Shared {
    /// No code panics under this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread of the pool.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Job { mut request, inbox }) = state.jobs.pop_front() {
                drop(state);
                let step = request.perform(&self.files, self.block);
                inbox.put((request, step));
                state = self.lock();
            } else if state.is_closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Pool {
    /// At most `most` threads for `files`, the files of a device with this logical block size. Starts one of them.
    ///
    /// # Errors
    /// If the system refuses that thread.
    pub(crate) fn new(
        most: u16,
        files: impl IntoIterator<Item = Arc<File>>,
        block: u32,
    ) -> io::Result<Arc<Self>> {
        let state = State { jobs: VecDeque::new(), idle: 0, threads: Vec::new(), is_closed: false };
        let shared = Arc::new(Shared {
            files: files.into_iter().collect(),
            block,
            state: Mutex::new(state),
            work: Condvar::new(),
        });
        let pool = Arc::new(Self { shared, most: most.into() });
        let first = pool.start()?;
        pool.shared.lock().threads.push(first);
        Ok(pool)
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("blkmq-io".into()).spawn(move || shared.work())
    }

    /// Hands jobs to the threads, in their order.
    pub(super) fn submit(&self, jobs: impl Iterator<Item = Job>) {
        let mut state = self.shared.lock();
        let before = state.jobs.len();
        state.jobs.extend(jobs);
        let (waiting, idle) = (state.jobs.len(), state.idle);
        let room = if state.is_closed { 0 } else { self.most - state.threads.len() };
        let missing = waiting.saturating_sub(idle).min(room);
        for _ in 0..missing {
            // Those that are there do the work if the system refuses more.
            let Ok(thread) = self.start() else { break };
            state.threads.push(thread);
        }
        drop(state);
        for _ in 0..(waiting - before).min(idle) {
            self.shared.work.notify_one();
        }
    }

    /// Takes the requests of `inbox` back that no thread has begun, if `wanted` holds for them.
    pub(super) fn take_back(
        &self,
        inbox: &Arc<Inbox>,
        wanted: impl Fn(&Request) -> bool,
    ) -> Vec<Request> {
        let mut state = self.shared.lock();
        let (back, others) =
            std::mem::take(&mut state.jobs).into_iter().partition::<VecDeque<_>, _>(|job| {
                Arc::ptr_eq(&job.inbox, inbox) && wanted(&job.request)
            });
        state.jobs = others;
        back.into_iter().map(|job| job.request).collect()
    }

    /// The number of threads that were started.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.shared.lock().threads.len()
    }
}

impl Pool {
    /// Lets the threads finish the requests they have begun, and waits for them.
    pub(super) fn close(&self) {
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

impl Drop for Pool {
    /// Waits for the threads, so that the files are closed and their locks gone.
    fn drop(&mut self) {
        self.close();
    }
}

/// A request that a thread is done with, and how far it came: never [`Step::Again`].
pub(super) type Done = (Request, Step);

/// The requests that are done, and a descriptor that is readable while there are any.
pub(super) struct Inbox {
    /// The bell is rung and emptied under the lock: it is rung while there is something, and at no other time.
    done: Mutex<Vec<Done>>,
    bell: EventFd,
}

impl Inbox {
    /// # Errors
    /// Without a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { done: Mutex::default(), bell })
    }

    /// For threads of the pool.
    fn put(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            // The counter has room: it is at 0.
            let _ = self.bell.write(1);
        }
        all.push(done);
    }

    /// Moves everything that is done into `out`.
    pub(super) fn take(&self, out: &mut Vec<Done>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            let _ = self.bell.read();
            out.append(&mut all);
        }
    }

    /// Sleeps until something is done.
    pub(super) fn wait(&self) {
        // Whatever else ends the sleep: the caller looks again.
        let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE);
    }

    /// Readable while there is something to take.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
