//! The completions of one thread: counted, timed and checked; their places and payloads are free again.

use super::Phase;
use super::flight::{Cookie, FLUSH, Stamps};
use super::port::Buffers;
use super::verifying::{Purpose, Verifying};
use crate::workload::goal::Goal;
use crate::workload::{Completed, Direction, Journal, Tally, Times};
use blkmq_core::{Histogram, Instant, IoError, IoPrio, Nanos, SECTOR_SIZE};
use blkmq_engine::Completion;

/// Takes the completions of one portion.
pub struct Taking<'a, P, B, C> {
    pub(super) tally: &'a mut Tally,
    pub(super) stamps: &'a mut Option<Stamps>,
    pub(super) verify: &'a mut Option<Verifying>,
    pub(super) buffers: &'a mut B,
    pub(super) clock: C,
    /// The time, read once for completions that are taken together.
    pub(super) now: Option<Instant>,
    pub(super) phase: Phase,
    /// The log of completions, if there is one and the thread counts.
    pub(super) journal: Option<&'a mut (dyn Journal + 'static)>,
    /// The thread has to end.
    pub(super) failed: bool,
    /// Has a write found no space? `None` if that is an error, as it is without `fill_device`.
    pub(super) full: Option<bool>,
    pub(super) goal: &'a mut Option<Goal>,
    pub(super) payload: std::marker::PhantomData<P>,
}

impl<P, B: Buffers<P>, C: Fn() -> Instant> Taking<'_, P, B, C> {
    /// Takes one completion. A thread that does not measure latencies never reads the clock.
    #[inline]
    pub fn take(&mut self, mut io: Completion<P>) {
        let cookie = Cookie(io.cookie);
        let direction = cookie.direction();
        let ended = io.result;
        if let Err(error) = ended {
            self.note(cookie, error);
        }
        let purpose = self.check(&mut io);
        self.buffers.give(io.payload);
        if ended.is_ok() {
            self.count(cookie, purpose);
        }
        if let Some(stamps) = self.stamps {
            let slot = cookie.slot();
            stamps.free.push(slot);
            if ended.is_ok() {
                let now = *self.now.get_or_insert_with(|| (self.clock)());
                let (start, issued) = (stamps.start[slot as usize], stamps.issued[slot as usize]);
                let what = stamps.what[slot as usize];
                match Direction::ALL.get(direction as usize) {
                    Some(direction) => {
                        let io = Completed {
                            at: now - self.tally.started,
                            direction: *direction,
                            bytes: cookie.sectors() * u64::from(SECTOR_SIZE),
                            offset: what.sector * u64::from(SECTOR_SIZE),
                            prio: what.prio,
                            slat: issued - start,
                            clat: now - issued,
                        };
                        self.time(&io, purpose, start, now);
                    }
                    // A flush has none.
                    None => self.time_flush(now - start),
                }
            }
        }
    }

    #[inline]
    fn time(&mut self, io: &Completed, purpose: Purpose, start: Instant, now: Instant) {
        let counts = &mut self.tally.counts[io.direction as usize];
        record(&mut counts.times, io.slat, io.clat);
        if !counts.prios.is_empty() {
            record_prio(&mut counts.prios, io);
        }
        if purpose == Purpose::Work
            && let Some(goal) = self.goal
        {
            goal.count(start, now - start);
        }
        if purpose == Purpose::Work
            && let Some(course) = &mut self.tally.course
        {
            course.record(now, (now - start).0);
        }
        if let Some(journal) = &mut self.journal {
            journal.completed(io);
        }
    }

    fn time_flush(&mut self, span: Nanos) {
        if self.phase != Phase::Closing
            && let Some(sync) = &mut self.tally.sync
        {
            sync.record(span.0);
        }
    }

    #[inline]
    fn check(&mut self, io: &mut Completion<P>) -> Purpose {
        if B::CARRIES
            && let Some(verify) = self.verify
        {
            let bytes = B::bytes(&mut io.payload);
            let purpose = verify.end(Cookie(io.cookie).slot(), io.result, bytes);
            self.failed |= verify.verifier().is_fatal();
            return purpose;
        }
        Purpose::Work
    }

    /// An I/O that was cancelled because the time is over is no error.
    #[cold]
    fn note(&mut self, cookie: Cookie, error: IoError) {
        if self.tally.unfinished.outstanding > 0 && error == IoError::CANCELLED {
            self.tally.unfinished.cancelled += 1;
            return;
        }
        if let Some(full) = &mut self.full
            && error == IoError::NO_SPACE
        {
            *full = true;
            return;
        }
        self.failed = true;
        if self.tally.error == 0 {
            self.tally.error = error.0;
        }
        let what = self.stamps.as_ref().map(|stamps| stamps.what[cookie.slot() as usize]);
        self.tally.failures.note(cookie.failed(what.map(|what| what.sector), error));
    }

    #[inline]
    fn count(&mut self, cookie: Cookie, purpose: Purpose) {
        let direction = cookie.direction();
        if direction == FLUSH {
            self.tally.flushes += u64::from(self.phase != Phase::Closing);
            return;
        }
        let bytes = cookie.sectors() * u64::from(SECTOR_SIZE);
        let counts = &mut self.tally.counts[direction as usize];
        counts.ios += 1;
        counts.bytes += bytes;
        if purpose == Purpose::Check {
            let checks = &mut self.tally.checks;
            checks.ios += 1;
            checks.bytes += bytes;
            checks.at_end += u64::from(self.phase == Phase::Checking);
        }
    }
}

/// Counts the completion of an I/O with its priority.
fn record_prio(prios: &mut [(IoPrio, Histogram)], io: &Completed) {
    if let Some((_, clat)) = prios.iter_mut().find(|(prio, _)| *prio == io.prio) {
        clat.record(io.clat.0);
    }
}

fn record(times: &mut Times, slat: Nanos, clat: Nanos) {
    let take = |histogram: &mut Option<Histogram>, span: u64| {
        if let Some(histogram) = histogram.as_mut() {
            histogram.record(span);
        }
    };
    take(&mut times.slat, slat.0);
    take(&mut times.clat, clat.0);
    take(&mut times.lat, slat.0 + clat.0);
}
