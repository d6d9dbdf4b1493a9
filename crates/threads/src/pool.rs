//! [`Pool`]: a bounded number of threads that perform requests one at a time, oldest first; [`ThreadQueue`]: a hardware
//! queue whose requests they perform; and [`Inbox`]: the finished requests on their way back to it. A device supplies
//! the requests ([`Work`]) and makes them ([`Source`]).
//!
//! The pool starts a thread when a request waits and no thread is idle. Threads live as long as the pool.
//!
//! *Invariant: work that a pool thread may reach contains its token.* Only [`ThreadQueue`] takes the token out, once
//! the work is back. So a leaked queue leaves the tokens, and with them the payloads, to the threads.

use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, IoResult, Nanos, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
#[cfg(not(target_os = "linux"))]
use condvar::Bell;
#[cfg(target_os = "linux")]
use eventfd::Bell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

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
    fn submit(&self, inbox: &Arc<Inbox<W>>, requests: &mut Vec<W>) {
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
    fn take_back(&self, inbox: &Arc<Inbox<W>>, wanted: &dyn Fn(&W) -> bool) -> Vec<W> {
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
struct Inbox<W> {
    /// The bell is rung and silenced under the lock, so that it rings exactly while the list is not empty.
    done: Mutex<Vec<Done<W>>>,
    bell: Bell,
}

impl<W> Inbox<W> {
    /// # Errors
    /// If the system refuses a descriptor.
    fn new() -> io::Result<Self> {
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
    fn take(&self, out: &mut Vec<Done<W>>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            self.bell.silence();
            out.append(&mut all);
        }
    }

    /// Sleeps until a request is finished.
    fn wait(&self) {
        self.bell.wait();
    }

    fn bell(&self) -> &Bell {
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

    pub(super) struct Bell(EventFd);

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
        pub(super) fn fd(&self) -> BorrowedFd<'_> {
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

    pub(super) struct Bell {
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
        pub(super) fn next_look(&self, now: Instant) -> Instant {
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

/// One hardware queue.
pub struct ThreadQueue<S: Source> {
    source: S,
    pool: Arc<Pool<S::Work>>,
    inbox: Arc<Inbox<S::Work>>,
    depth: usize,
    /// The number of requests in the pool or the inbox.
    away: usize,
    /// Requests accepted since the last doorbell.
    fresh: Vec<S::Work>,
    /// Requests to be retried, each with the earliest time of the retry; sorted by time.
    later: VecDeque<(Instant, S::Work)>,
    /// Free work, reused for new requests.
    free: Vec<S::Work>,
    /// Empty between calls; keeps its capacity.
    done: Vec<Done<S::Work>>,
    /// The time of the last call that handed over work or took it back.
    looked: Instant,
}

impl<S: Source> fmt::Debug for ThreadQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = self.inside();
        f.debug_struct("ThreadQueue").field("depth", &self.depth).field("inside", &inside).finish()
    }
}

fn has(work: &impl Work, tag: Tag) -> bool {
    work.token().is_some_and(|rq| rq.tag() == tag)
}

impl<S: Source> ThreadQueue<S> {
    /// Creates a queue of `depth` requests, whose work is made by `source` and performed by `pool`.
    ///
    /// # Errors
    /// If the system refuses a descriptor.
    pub fn new(pool: Arc<Pool<S::Work>>, source: S, depth: u32) -> io::Result<Self> {
        Ok(Self {
            source,
            pool,
            inbox: Arc::new(Inbox::new()?),
            depth: depth as usize,
            away: 0,
            fresh: Vec::new(),
            later: VecDeque::new(),
            free: Vec::new(),
            done: Vec::new(),
            looked: Instant::ZERO,
        })
    }

    fn inside(&self) -> usize {
        self.away + self.fresh.len() + self.later.len()
    }

    /// Hands the new requests to the pool.
    fn send(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.away += self.fresh.len();
        self.pool.submit(&self.inbox, &mut self.fresh);
    }

    /// The token of a request that no thread holds any more.
    fn release(&mut self, mut work: S::Work) -> Inflight {
        let rq = work.token_mut().take().expect("a request was accepted with its token");
        work.rest();
        self.free.push(work);
        rq
    }

    /// Takes the requests that the threads have finished: moves completed ones to `out`, and keeps those to be retried.
    fn take(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let mut done = std::mem::take(&mut self.done);
        self.inbox.take(&mut done);
        self.looked = now;
        self.away -= done.len();
        for (request, step) in done.drain(..) {
            match step {
                Step::Done(result) => {
                    if result == Err(IoError::IO) {
                        self.source.failed(&request);
                    }
                    let rq = self.release(request);
                    out.push(Finished { rq, verdict: Verdict::Done(result) });
                }
                Step::Later | Step::Again => self.later.push_back((now + RETRY_DELAY, request)),
            }
        }
        self.done = done;
    }

    /// Moves every request, here or in the pool, to `out` as soon as no thread holds it.
    fn quiesce(&mut self, out: &mut Vec<Inflight>) {
        let mut unbegun = self.pool.take_back(&self.inbox, &|_| true);
        self.away -= unbegun.len();
        unbegun.append(&mut self.fresh);
        for request in unbegun {
            out.push(self.release(request));
        }
        let mut finished = Vec::new();
        while self.away > 0 {
            self.inbox.wait();
            self.take(Instant::ZERO, &mut finished);
        }
        out.extend(finished.into_iter().map(|finished| finished.rq));
        while let Some((_, request)) = self.later.pop_front() {
            out.push(self.release(request));
        }
    }
}

impl<P: IoBuf, S: Source> DeviceQueue<P> for ThreadQueue<S> {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if self.inside() == self.depth {
            // The queue is full, so that a request will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        }
        let mut work = self.free.pop().unwrap_or_else(|| self.source.blank());
        if let Err(e) = self.source.begin(&mut work, bios, &rq) {
            self.free.push(work);
            return Enqueued::Done(rq, Err(e));
        }
        *work.token_mut() = Some(rq);
        self.fresh.push(work);
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        self.looked = now;
        self.send();
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.take(now, out);
        while self.later.front().is_some_and(|(from, _)| *from <= now) {
            self.fresh.extend(self.later.pop_front().map(|(_, request)| request));
        }
        self.send();
    }

    /// Gives back a request that no thread has begun. A thread in a system call cannot be interrupted, so its request
    /// stays and its timer restarts.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let here = self.later.iter().position(|(_, request)| has(request, tag));
        let mut request = here.and_then(|at| self.later.remove(at)).map(|(_, request)| request);
        if request.is_none() {
            request = self.pool.take_back(&self.inbox, &|request| has(request, tag)).pop();
            self.away -= usize::from(request.is_some());
        }
        match request {
            Some(request) => Expiry::Done(self.release(request), Err(IoError::TIMED_OUT)),
            None => Expiry::ResetTimer,
        }
    }

    /// Only needed for retries; all other completions make the descriptor readable.
    #[cfg(target_os = "linux")]
    fn next_event(&self) -> Option<Instant> {
        self.later.front().map(|(from, _)| *from)
    }

    /// The next poll, since no descriptor becomes readable.
    #[cfg(not(target_os = "linux"))]
    fn next_event(&self) -> Option<Instant> {
        let look = (self.away > 0).then(|| self.inbox.bell().next_look(self.looked));
        let again = self.later.front().map(|(from, _)| *from);
        Some(look.into_iter().chain(again).min().unwrap_or(Instant::MAX))
    }

    #[cfg(target_os = "linux")]
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell().fd())
    }

    /// Waits for the threads: the only call that may take long.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.quiesce(out);
    }
}

impl<S: Source> Drop for ThreadQueue<S> {
    /// Waits, as a ring does, until no thread reaches a payload. The engine calls `abandon` first. Otherwise the
    /// requests still held are dropped, which is reported, and their payloads stay in the engine's table.
    fn drop(&mut self) {
        self.quiesce(&mut Vec::new());
    }
}
