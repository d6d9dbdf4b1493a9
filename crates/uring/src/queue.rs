//! [`UringQueue`]: one hardware queue of a file, a ring of its own.
//!
//! A request takes a place, and its number travels through the kernel. Entries are handed over by `commit`, in
//! one system call however many there are; `reap` reads the completion ring, which is shared memory, and makes
//! a call only if something has to be asked for again.
//!
//! *Invariant: a place whose number the kernel has is not free, and its token stays in it.* The module's page
//! (`lib.rs`) says what follows from that.

use crate::places::Places;
use crate::request::{File, Kind, Request, Step, ZeroBy};
use crate::ring::Ring;
use crate::target::{self, Target};
use crate::{OpenError, Options};
use blkmq_buf::BufferPool;
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, IoResult, Nanos, SECTOR_SIZE, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
use io_uring::squeue;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// After `EAGAIN`, which is for want of memory, nobody calls: try again after this.
const RETRY_DELAY: Nanos = Nanos::from_millis(1);
/// What a read-only device answers to everything that would change it.
const READ_ONLY: IoError = IoError(libc::EROFS as u16);

/// One hardware queue of an open file.
pub struct UringQueue {
    ring: Ring,
    /// Open as long as the ring refers to it by number.
    _file: Arc<std::fs::File>,
    file: File,
    alignment: target::Alignment,
    readonly: bool,
    zero: ZeroBy,
    places: Places,
    /// Places to be asked for again, with the time from which on; the earliest first.
    later: VecDeque<(Instant, u32)>,
    /// The kernel would not take what is in the submission queue. From then on it is offered again.
    resubmit: Option<Instant>,
    /// For tests: what to take for the kernel's answers, one after another.
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

impl UringQueue {
    pub(crate) fn new(
        target: &Target,
        options: &Options,
        pools: &[BufferPool],
    ) -> Result<Self, OpenError> {
        let depth = options.hw_queue_depth;
        let mut ring = Ring::new(depth)?;
        let mut file = File { fd: target.file.as_raw_fd(), flags: squeue::Flags::empty() };
        if options.fixed {
            ring.register_file(&target.file)?;
            ring.register_buffers(pools)?;
            file = File { fd: 0, flags: squeue::Flags::FIXED_FILE };
        }
        Ok(Self {
            ring,
            _file: Arc::clone(&target.file),
            file,
            alignment: target.alignment,
            readonly: target.readonly,
            zero: ZeroBy::Range,
            places: Places::new(depth),
            later: VecDeque::new(),
            resubmit: None,
            #[cfg(test)]
            answers: tests::Answers::default(),
        })
    }

    /// Requests that are held.
    fn inside(&self) -> usize {
        self.places.taken()
    }

    /// Requests that the kernel has, or that are on their way to it.
    fn at_kernel(&self) -> usize {
        self.inside() - self.later.len()
    }

    /// Puts the request of place `at` into the submission queue.
    #[inline]
    fn push(&mut self, at: u32) {
        let entry = self.places[at].entry(self.file).user_data(at.into());
        // SAFETY: the entry points to the list of pieces in the place, which stays as it is while the kernel has the
        // place's number (it is begun anew only when the place is free, and advanced only by an answer), and through
        // it to payloads that stay while their token is not back in the engine. The token is in the place; safe code
        // gets it from there by `release`, after the kernel's answer, or by `abandon`, after `quiesce`. A queue that
        // is forgotten keeps list and token for ever. Places that are added do not move lists. There is one entry for each place at most, and the ring was
        // made for as many entries as there can be places.
        unsafe { self.ring.push(&entry) };
    }

    fn submit(&mut self, now: Instant) {
        // It refuses for want of memory or of room for completions, both of which pass. What it has not taken
        // stays in the submission queue.
        self.resubmit = self.ring.submit().is_err().then_some(now + RETRY_DELAY);
    }

    /// Fills the place `at` with a read or write.
    #[inline]
    fn gather<P: IoBuf>(&mut self, at: u32, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        let request = &mut self.places[at];
        let mask = self.alignment.memory as usize - 1;
        for bio in rq.bios(bios) {
            let range = bio.payload.io_range();
            let (start, len) = (range.cast::<u8>(), range.len());
            let is_whole = len as u64 == u64::from(bio.sectors) * u64::from(SECTOR_SIZE);
            // Some file systems would quietly go through the page cache with it.
            let is_aligned = (start as usize | len) & mask == 0;
            if !is_whole || !is_aligned {
                return Err(IoError::INVALID);
            }
            request.add(start, len);
        }
        request.find_fixed(&self.ring);
        Ok(())
    }

    /// Takes the answers that there are. `over` gets the places whose requests are finished, and how; those that
    /// go on are pushed again. True if any were.
    #[inline]
    fn take(&mut self, now: Instant, mut over: impl FnMut(&mut Self, u32, IoResult)) -> bool {
        let mut pushed = false;
        while let Some(completion) = self.ring.pop() {
            let at = completion.user_data() as u32;
            let answer = completion.result();
            #[cfg(test)]
            let answer = self.answers.bend(answer);
            let request = &mut self.places[at];
            match request.judge(answer, self.alignment.block) {
                Step::Done(result) => over(self, at, result),
                Step::Again => {
                    if request.zeroes_by_hole() {
                        self.zero = ZeroBy::Hole;
                    }
                    self.push(at);
                    pushed = true;
                }
                Step::Later => self.later.push_back((now + RETRY_DELAY, at)),
            }
        }
        pushed
    }

    /// Frees the place `at`.
    #[inline]
    fn release(&mut self, at: u32) -> Inflight {
        let rq = self.places[at].rq.take();
        self.places.give_back(at);
        rq.expect("a place whose number the kernel had holds a request")
    }

    /// Waits until the kernel has let go of every buffer, whatever becomes of the I/Os.
    ///
    /// What has not begun may be given up; what the disk has must end there. A ring that refuses to be waited
    /// for still fills up by itself, so then this looks again and again.
    fn quiesce(&mut self) {
        let mut ended = 0;
        if self.at_kernel() > 0 {
            self.ring.cancel();
        }
        while self.at_kernel() > ended {
            if self.ring.submit_and_wait().is_err() {
                std::thread::yield_now();
            }
            while self.ring.pop().is_some() {
                ended += 1;
            }
        }
        // All places that are not free are ours now, those that ended just now among them.
        self.later.clear();
        self.resubmit = None;
    }
}

impl<P: IoBuf> DeviceQueue<P> for UringQueue {
    #[inline]
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let kind = Kind::of(&rq, self.zero);
        if self.readonly && !matches!(kind, Kind::Read | Kind::Flush) {
            return Enqueued::Done(rq, Err(READ_ONLY));
        }
        let Some(at) = self.places.next() else {
            // Every place is taken, so something will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        };
        self.places[at].begin(&rq, kind);
        if kind.moves_data()
            && let Err(e) = self.gather(at, bios, &rq)
        {
            return Enqueued::Done(rq, Err(e));
        }
        let at = self.places.take();
        self.places[at].rq = Some(rq);
        self.push(at);
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        self.submit(now);
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
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
        if pushed || self.resubmit.is_some_and(|from| from <= now) {
            self.submit(now);
        }
    }

    /// Nothing can be taken back from a disk that has begun with it, and until the kernel has let go of the
    /// memory the request stays. So the kernel is asked to give it up, and the timer begins again.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        let has_it = |place: &Request| place.rq.as_ref().is_some_and(|rq| rq.tag() == tag);
        let at = self.places.position(has_it).expect("the engine asks about what is here");
        if let Some(waiting) = self.later.iter().position(|(_, place)| *place == at) {
            // The kernel does not have it just now.
            self.later.remove(waiting);
            return Expiry::Done(self.release(at), Err(IoError::TIMED_OUT));
        }
        self.places[at].given_up = true;
        self.ring.cancel_one(at);
        Expiry::ResetTimer
    }

    /// Only of what is tried again; otherwise the descriptor tells.
    fn next_event(&self) -> Option<Instant> {
        let later = self.later.front().map(|(from, _)| *from);
        later.into_iter().chain(self.resubmit).min()
    }

    /// The ring itself: readable while there are completions in it.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.fd())
    }

    /// Waits for the kernel: the one call that may take long.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.quiesce();
        out.extend(self.places.iter_mut().filter_map(|place| place.rq.take()));
        self.places.give_back_all();
    }
}

impl Drop for UringQueue {
    /// The lists of pieces go with it, and registered pools may, so it waits for the kernel as `abandon` does. The
    /// engine calls `abandon` first; requests that are still held without that are dropped, which is heard, and
    /// their payloads stay in the engine's table.
    fn drop(&mut self) {
        self.quiesce();
    }
}

#[cfg(test)]
mod tests;
