//! [`UringQueue`]: one hardware queue of a file, with a ring of its own. Its [`Places`] are one for each request in
//! flight, made when it is first needed.
//!
//! A request takes a place, and the number of the place is the user data of its entries. `commit` submits all entries
//! in one system call. `reap` reads the completion ring, which is shared memory, and makes a system call only to submit
//! requests again.
//!
//! *Invariant: while the kernel has the number of a place, the place is not free and its token stays in it.* The
//! crate's page (`lib.rs`) draws the conclusions.
//!
//! Memory is proportional to the peak number of requests in flight, whatever the depth: a queue begins without places,
//! and a place begins without a list of pieces of memory. A place keeps its list for the next request, so a steady load
//! allocates nothing. The place used last is used next, so a small load uses few places.

use crate::berth::Place;
use crate::parts::{self, Files, Kind, Order, Part, ZeroBy};
use crate::request::Request;
use crate::ring::Ring;
use crate::{OpenError, Options, target};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::{Instant, IoError, IoResult, Tag};
use blkmq_engine::{
    Another, Berth, BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use blkmq_threads::{RETRY_DELAY, Step};
use io_uring::cqueue;
use std::collections::VecDeque;
use std::io;
use std::ops::{Index, IndexMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// One hardware queue of an open file.
pub struct UringQueue {
    ring: Ring,
    /// With `iopoll`, the ring of reads and writes. Its descriptor never becomes readable, so waiting threads poll.
    polled: Option<Ring>,
    files: Files,
    /// The parts for another queue.
    origin: Arc<Origin>,
    /// The place where the owner sleeps, if each client may have such a queue.
    place: Option<Place>,
    alignment: target::Alignment,
    /// The method of writing zeroes that may leave holes.
    zero: ZeroBy,
    places: Places,
    /// Requests to be submitted again: the time from which on, and the place, the earliest first.
    later: VecDeque<(Instant, u32)>,
    /// The time from which on entries are submitted again that the kernel has refused; `None` without such entries.
    resubmit: Option<Instant>,
    /// The present turn has left entries for the sleep of the owner.
    has_left: bool,
    /// For tests: replacements of the kernel's answers, one after another.
    #[cfg(test)]
    answers: tests::Answers,
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.places.depth())
            .field("inside", &self.inside())
            .finish_non_exhaustive()
    }
}

/// The parts from which a queue is made.
pub(crate) struct Origin {
    pub(crate) parts: Vec<Part>,
    pub(crate) order: Order,
    pub(crate) options: Options,
    pub(crate) pools: Vec<BufferPool>,
}

impl UringQueue {
    pub(crate) fn new(origin: Arc<Origin>) -> Result<Self, OpenError> {
        let Origin { parts, order, options, pools } = &*origin;
        let depth = options.hw_queue_depth;
        let mut ring = Ring::new(depth)?;
        let mut polled = options.iopoll.then(|| Ring::polled(depth)).transpose()?;
        for ring in [&mut ring].into_iter().chain(&mut polled).filter(|_| options.fixed) {
            ring.register_files(parts.iter().map(|part| &*part.target.file))?;
            ring.register_buffers(pools)?;
        }
        let has_place = options.hw_queues.is_none() && polled.is_none() && ring.has_berths();
        let place = has_place.then(|| Place::new(&ring)).transpose();
        Ok(Self {
            place: place.map_err(OpenError::ring("make a place to sleep"))?,
            ring,
            polled,
            files: Files::new(parts, *order, options.fixed),
            alignment: parts::alignment(parts),
            zero: parts::zeroes(parts),
            places: Places::new(depth),
            later: VecDeque::new(),
            resubmit: None,
            has_left: false,
            origin,
            #[cfg(test)]
            answers: tests::Answers::default(),
        })
    }

    /// The number of requests held.
    fn inside(&self) -> usize {
        self.places.taken()
    }

    /// The number of requests that the kernel has, or that are on their way to it.
    fn at_kernel(&self) -> usize {
        self.inside() - self.later.len()
    }

    /// Puts the request of place `at` into the submission queue.
    #[inline]
    fn push(&mut self, at: u32) {
        let place = &self.places[at];
        let entry = place.entry(self.files.at(place.file()).descriptor).user_data(at.into());
        let ring = match &mut self.polled {
            Some(polled) if place.moves_data() => polled,
            _ => &mut self.ring,
        };
        // SAFETY: the entry points to the list of pieces in the place, and through it to payloads. The list does not
        // change while the kernel has the place's number: it is refilled only when the place is free, and advanced
        // only by an answer. The payloads stay until the engine has their token again. The token is in the place, and
        // safe code gets it by `release`, after the kernel's answer, or by `abandon`, after `quiesce`. A forgotten
        // queue keeps list and token for ever. Adding places does not move lists. There is at most one entry for each
        // place, and each ring was made for as many entries as there can be places.
        unsafe { ring.push(&entry) };
    }

    fn submit(&mut self, now: Instant) {
        // The kernel refuses for a temporary lack of memory or of room for completions. Entries that it has not taken
        // stay in the submission queue.
        let is_due = self.polled.is_none() || self.ring.waiting() > 0;
        let refused = (is_due && self.ring.submit().is_err()) | self.look();
        self.resubmit = refused.then_some(now + RETRY_DELAY);
        if let Some(place) = &self.place {
            place.take_left();
        }
    }

    /// With `iopoll`, submits reads and writes and looks for their completions. Returns whether the kernel refused.
    #[inline]
    fn look(&self) -> bool {
        self.polled.as_ref().is_some_and(|polled| polled.submit().is_err())
    }

    /// The oldest completion.
    #[inline]
    fn pop(&mut self) -> Option<cqueue::Entry> {
        let polled = self.polled.as_mut().and_then(Ring::pop);
        polled.or_else(|| self.ring.pop())
    }

    /// Takes all available answers. `over` gets the places of finished requests, with their results. Unfinished
    /// requests are pushed again. Returns whether any were pushed.
    #[inline]
    fn take(&mut self, now: Instant, mut over: impl FnMut(&mut Self, u32, IoResult)) -> bool {
        let mut pushed = false;
        while let Some(completion) = self.pop() {
            if let Some(place) = &mut self.place
                && let Some(asks) = place.notice(&completion, &mut self.ring)
            {
                pushed |= asks;
                continue;
            }
            let at = completion.user_data() as u32;
            let answer = completion.result();
            #[cfg(test)]
            let answer = self.answers.bend(answer);
            let request = &mut self.places[at];
            match request.judge(answer, &self.files, self.alignment.block) {
                Step::Done(result) => {
                    self.look_at_end(at, result);
                    over(self, at, result);
                }
                Step::Again => {
                    self.push(at);
                    pushed = true;
                }
                Step::Later => self.later.push_back((now + RETRY_DELAY, at)),
            }
        }
        pushed
    }

    /// As [`DeviceQueue::reap`].
    fn take_finished(&mut self, now: Instant, out: &mut Vec<Finished>) {
        if self.polled.is_some() && self.at_kernel() > 0 {
            self.look();
        }
        let mut pushed = self.take(now, |queue, at, result| {
            out.push(Finished { rq: queue.release(at), verdict: Verdict::Done(result) });
        });
        while let Some((from, at)) = self.later.front().copied()
            && from <= now
        {
            self.later.pop_front();
            self.push(at);
            pushed = true;
        }
        if let Some(place) = &mut self.place {
            pushed |= place.attend(&mut self.ring);
            // Entries that this turn has left are not submitted here.
            pushed |= !std::mem::take(&mut self.has_left) && place.has_left();
        }
        if pushed || self.resubmit.is_some_and(|from| from <= now) {
            self.submit(now);
        }
    }

    /// Finds the end of the file again if the request of place `at` has failed: it may have met a new end.
    #[inline]
    fn look_at_end(&self, at: u32, result: IoResult) {
        if result == Err(IoError::IO) {
            self.files.at(self.places[at].file()).present.find_end();
        }
    }

    /// Frees the place `at`.
    #[inline]
    fn release(&mut self, at: u32) -> Inflight {
        let rq = self.places[at].rq.take();
        self.places.give_back(at);
        rq.expect("a place whose number the kernel had holds a request")
    }

    /// Waits until the kernel has released every buffer, whatever the results of the I/Os.
    ///
    /// The kernel may cancel I/Os that it has not begun. I/Os at the disk must end there. If waiting for the ring
    /// fails, this polls, since completions still arrive.
    fn quiesce(&mut self) {
        let mut ended = 0;
        if self.at_kernel() > 0 {
            self.ring.cancel();
        }
        while self.at_kernel() > ended {
            let waited = match &self.polled {
                None => self.ring.submit_and_wait(),
                Some(polled) => self.ring.submit().and(polled.submit()),
            };
            if waited.is_err() {
                std::thread::yield_now();
            }
            while let Some(completion) = self.pop() {
                ended += usize::from(completion.user_data() <= u32::MAX.into());
            }
        }
        // The kernel has no place, including those that have just ended.
        self.later.clear();
        self.resubmit = None;
    }
}

impl<P: IoBuf> DeviceQueue<P> for UringQueue {
    #[inline]
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let kind = Kind::of(&rq, self.zero);
        let stretch = match self.files.admit(&rq, kind) {
            Ok(admitted) => admitted,
            Err(refused) => return Enqueued::Done(rq, Err(refused)),
        };
        let Some(at) = self.places.next() else {
            // All places are taken, so a completion will follow.
            return Enqueued::Busy(rq, Busy::DevResource);
        };
        let place = &mut self.places[at];
        place.begin(&rq, kind, stretch);
        if kind.moves_data() {
            if let Err(e) = place.gather(bios, &rq, self.alignment.memory) {
                return Enqueued::Done(rq, Err(e));
            }
            place.find_fixed(&self.ring);
        }
        let at = self.places.take();
        self.places[at].rq = Some(rq);
        if kind.moves_data() && self.files.is_in_memory(self.places[at].file()) {
            let step = self.places[at].perform(&self.files, self.alignment.block);
            if let Step::Done(result) = step {
                self.look_at_end(at, result);
                return Enqueued::Done(self.release(at), result);
            }
            self.later.push_back((now + RETRY_DELAY, at));
        } else {
            self.push(at);
        }
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        if let Some(place) = &self.place
            && self.resubmit.is_none()
            && place.leave(self.ring.waiting())
        {
            self.has_left = true;
            return;
        }
        self.submit(now);
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.take_finished(now, out);
    }

    /// A disk does not give back an I/O that it has begun, and the request stays until the kernel has released the
    /// memory. So the kernel is asked to cancel it, and the timer begins again.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let has_it = |place: &Request| place.rq.as_ref().is_some_and(|rq| rq.tag() == tag);
        let at = self.places.position(has_it).expect("the engine asks about what is here");
        if let Some(waiting) = self.later.iter().position(|(_, place)| *place == at) {
            // The kernel does not have it.
            self.later.remove(waiting);
            return Expiry::Done(self.release(at), Err(IoError::TIMED_OUT));
        }
        self.places[at].given_up = true;
        self.ring.cancel_one(at);
        Expiry::ResetTimer
    }

    /// The time of the next retry. Other events become readable on the descriptor.
    fn next_event(&self) -> Option<Instant> {
        let later = self.later.front().map(|(from, _)| *from);
        later.into_iter().chain(self.resubmit).min()
    }

    /// The descriptor of the ring, readable while it has completions. `None` with a polled ring.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.polled.is_none().then(|| self.ring.fd())
    }

    /// Another queue with a ring of its own, unless the number of hardware queues is given.
    fn another(&self) -> Option<Another<P>> {
        self.place.as_ref()?;
        let origin = Arc::clone(&self.origin);
        Some(Box::new(move || {
            let another = Self::new(Arc::clone(&origin));
            another.map(|queue| Box::new(queue) as _).map_err(io::Error::from)
        }))
    }

    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        self.place.as_ref().map(|place| Ok(place.berth()))
    }

    /// Waits for the kernel. This call alone may take long.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.quiesce();
        out.extend(self.places.iter_mut().filter_map(|place| place.rq.take()));
        self.places.give_back_all();
    }
}

impl Drop for UringQueue {
    /// Waits for the kernel as `abandon` does, since lists of pieces, and perhaps registered pools, are freed with the
    /// queue. The engine calls `abandon` first. Otherwise requests that are still held are dropped, which is reported,
    /// and their payloads stay in the engine's table.
    fn drop(&mut self) {
        self.quiesce();
    }
}

/// The most entries (16 bytes) of all lists of free places: 64 requests of 1024 pieces each, the most that one call
/// takes. A load above that has megabytes of data in flight, beside which an allocation is negligible.
const KEPT: usize = 64 << 10;
/// Like [`KEPT`], for each place of a deeper queue, so that lists of usual lengths are kept at any depth.
const KEPT_EACH: usize = 16;

/// Places for at most `depth` requests.
pub(crate) struct Places {
    /// When this grows, the places move, but not their lists of pieces.
    all: Vec<Request>,
    /// Free places, taken from the end: the place used last, which is still in the cache, is used next.
    free: Vec<u32>,
    depth: u32,
    /// Room in the lists of free places, in entries.
    kept: usize,
    /// The maximum of `kept`.
    most_kept: usize,
}

impl Places {
    /// Begins without places. Allocates nothing.
    pub(crate) fn new(depth: u32) -> Self {
        let most_kept = KEPT.max(KEPT_EACH * depth as usize);
        Self { all: Vec::new(), free: Vec::new(), depth, kept: 0, most_kept }
    }

    /// The number of requests that it can hold.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of taken places.
    pub(crate) fn taken(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The place that [`take`](Self::take) takes next; `None` if all are taken.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        match self.free.last() {
            Some(at) => Some(*at),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let at = self.all.len() as u32;
        if at == self.depth {
            return None;
        }
        self.all.push(Request::new());
        // Reserving here lets `give_back` never allocate.
        self.free.reserve(self.all.len());
        self.free.push(at);
        Some(at)
    }

    /// Takes the place that [`next`](Self::next) has named.
    ///
    /// # Panics
    /// If it has named none.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let at = self.free.pop().expect("a place that was named is free");
        self.kept -= self.all[at as usize].counted();
        at
    }

    /// Makes the place `at` free again.
    #[inline]
    pub(crate) fn give_back(&mut self, at: u32) {
        let place = &mut self.all[at as usize];
        place.count();
        if self.kept + place.counted() > self.most_kept {
            place.forget_list();
        }
        self.kept += place.counted();
        self.free.push(at);
    }

    /// All places, free or not.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.all.iter_mut()
    }

    /// The number of the first place for which `wanted` is true.
    fn position(&self, wanted: impl FnMut(&Request) -> bool) -> Option<u32> {
        self.all.iter().position(wanted).map(|at| at as u32)
    }

    /// Makes all places free.
    fn give_back_all(&mut self) {
        *self = Self::new(self.depth);
    }

    /// Room in all lists, in entries of 16 bytes.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.all.iter().map(Request::room).sum()
    }

    /// The number of places made.
    #[cfg(test)]
    pub(crate) fn made(&self) -> usize {
        self.all.len()
    }
}

impl Index<u32> for Places {
    type Output = Request;

    #[inline]
    fn index(&self, at: u32) -> &Request {
        &self.all[at as usize]
    }
}

impl IndexMut<u32> for Places {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Request {
        &mut self.all[at as usize]
    }
}

#[cfg(test)]
mod tests;
