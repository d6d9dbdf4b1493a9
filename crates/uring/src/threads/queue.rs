//! [`ThreadQueue`]: one hardware queue of a file whose requests are done by threads.
//!
//! *Invariant: a request that a thread of the pool may reach has its token inside.* The token leaves it here, when the
//! request is back. So a queue that is forgotten leaves tokens, and with them payloads, to the threads.

use super::pool::{Done, Inbox, Job, Pool};
use crate::parts::{self, Files, Part};
use crate::queue::RETRY_DELAY;
use crate::request::{Kind, Request, Step, ZeroBy};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Pieces of memory that the list of a free request keeps room for, at 16 bytes each.
const KEPT: usize = 64;

/// One hardware queue.
pub(crate) struct ThreadQueue {
    pool: Arc<Pool>,
    inbox: Arc<Inbox>,
    files: Files,
    alignment: u32,
    zero: ZeroBy,
    depth: usize,
    /// Requests with the pool or in the inbox.
    away: usize,
    /// Accepted since the last doorbell.
    fresh: Vec<Request>,
    /// To be handed to the pool again, each with the time from which; the earliest first.
    later: VecDeque<(Instant, Request)>,
    /// For the next requests.
    free: Vec<Request>,
    /// Empty between calls; keeps its capacity.
    done: Vec<Done>,
}

impl std::fmt::Debug for ThreadQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inside = self.inside();
        f.debug_struct("ThreadQueue").field("depth", &self.depth).field("inside", &inside).finish()
    }
}

fn has(request: &Request, tag: Tag) -> bool {
    request.rq.as_ref().is_some_and(|rq| rq.tag() == tag)
}

impl ThreadQueue {
    /// # Errors
    /// Without a descriptor.
    pub(crate) fn new(pool: Arc<Pool>, parts: &[Part], depth: u32) -> io::Result<Self> {
        Ok(Self {
            pool,
            inbox: Arc::new(Inbox::new()?),
            files: Files::new(parts, false),
            alignment: parts::alignment(parts).memory,
            zero: parts::zeroes(parts),
            depth: depth as usize,
            away: 0,
            fresh: Vec::new(),
            later: VecDeque::new(),
            free: Vec::new(),
            done: Vec::new(),
        })
    }

    fn inside(&self) -> usize {
        self.away + self.fresh.len() + self.later.len()
    }

    /// Hands `requests` to the pool.
    fn send(&mut self, requests: impl ExactSizeIterator<Item = Request>) {
        if requests.len() == 0 {
            return;
        }
        self.away += requests.len();
        let inbox = &self.inbox;
        self.pool.submit(requests.map(|request| Job { request, inbox: Arc::clone(inbox) }));
    }

    /// The token of a request that no thread has any more.
    fn release(&mut self, mut request: Request) -> Inflight {
        let rq = request.rq.take().expect("a request was accepted with its token");
        request.count();
        if request.counted() > KEPT {
            request.forget_list();
        }
        self.free.push(request);
        rq
    }

    /// Takes the requests that the threads are done with: gives finished ones to `over`, and keeps those to be retried.
    fn take(&mut self, now: Instant, mut over: impl FnMut(Finished)) {
        let mut done = std::mem::take(&mut self.done);
        self.inbox.take(&mut done);
        self.away -= done.len();
        for (request, step) in done.drain(..) {
            match step {
                Step::Done(result) => {
                    if result == Err(IoError::IO) {
                        // It may have met a new end of the file.
                        self.files.at(request.file()).present.find_end();
                    }
                    over(Finished { rq: self.release(request), verdict: Verdict::Done(result) });
                }
                Step::Later | Step::Again => self.later.push_back((now + RETRY_DELAY, request)),
            }
        }
        self.done = done;
    }

    /// Gives every request to `out` that is here or with the pool, as soon as no thread has it.
    fn quiesce(&mut self, out: &mut Vec<Inflight>) {
        let unbegun = self.pool.take_back(&self.inbox, |_| true);
        self.away -= unbegun.len();
        let fresh = std::mem::take(&mut self.fresh);
        for request in unbegun.into_iter().chain(fresh) {
            out.push(self.release(request));
        }
        while self.away > 0 {
            self.inbox.wait();
            self.take(Instant::ZERO, |finished| out.push(finished.rq));
        }
        for (_, request) in std::mem::take(&mut self.later) {
            out.push(self.release(request));
        }
    }
}

impl<P: IoBuf> DeviceQueue<P> for ThreadQueue {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let kind = Kind::of(&rq, self.zero);
        let (files, start) = match self.files.admit(&rq, kind) {
            Ok(admitted) => admitted,
            Err(refused) => return Enqueued::Done(rq, Err(refused)),
        };
        if self.inside() == self.depth {
            // Every place is taken, so a request will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        }
        let mut request = self.free.pop().unwrap_or_else(Request::new);
        request.begin(&rq, kind, files, start);
        if kind.moves_data()
            && let Err(e) = request.gather(bios, &rq, self.alignment)
        {
            self.free.push(request);
            return Enqueued::Done(rq, Err(e));
        }
        request.rq = Some(rq);
        self.fresh.push(request);
        Enqueued::Accepted
    }

    fn commit(&mut self, _: Instant) {
        let mut fresh = std::mem::take(&mut self.fresh);
        self.send(fresh.drain(..));
        self.fresh = fresh;
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        self.take(now, |finished| out.push(finished));
        let due = self.later.partition_point(|(from, _)| *from <= now);
        if due > 0 {
            let due = Vec::from_iter(self.later.drain(..due).map(|(_, request)| request));
            self.send(due.into_iter());
        }
    }

    /// A request that no thread has begun is given back. A thread in a system call cannot be called off, so a request that
    /// is in one stays, and its timer begins again.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let here = self.later.iter().position(|(_, request)| has(request, tag));
        let mut request = here.and_then(|at| self.later.remove(at)).map(|(_, request)| request);
        if request.is_none() {
            request = self.pool.take_back(&self.inbox, |request| has(request, tag)).pop();
            self.away -= usize::from(request.is_some());
        }
        match request {
            Some(request) => Expiry::Done(self.release(request), Err(IoError::TIMED_OUT)),
            None => Expiry::ResetTimer,
        }
    }

    /// Only for requests that are tried again; for others the descriptor signals.
    fn next_event(&self) -> Option<Instant> {
        self.later.front().map(|(from, _)| *from)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.fd())
    }

    /// Waits for the threads: the only call that may take long.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.quiesce(out);
    }
}

impl Drop for ThreadQueue {
    /// As that of a ring: waits until no thread reaches a payload. The engine calls `abandon` first; without that, requests
    /// that are still held are dropped, which is reported, and their payloads stay in the engine's table.
    fn drop(&mut self) {
        self.quiesce(&mut Vec::new());
    }
}

#[cfg(test)]
mod tests;
