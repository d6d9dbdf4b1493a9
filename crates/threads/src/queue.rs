//! [`ThreadQueue`]: a hardware queue whose requests are performed by threads.
//!
//! *Invariant: work that a pool thread may reach contains its token.* Only this file takes the token out, once the work
//! is back. So a leaked queue leaves the tokens, and with them the payloads, to the threads.

use crate::pool::{Done, Inbox};
use crate::{Pool, RETRY_DELAY, Source, Step, Work};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
use std::collections::VecDeque;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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

impl<S: Source> std::fmt::Debug for ThreadQueue<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
