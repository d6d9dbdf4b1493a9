//! The completions of one thread: they are counted, timed and checked, and their slots and payloads freed.

use super::flight::{Cookie, FLUSH, Purpose};
use super::port::Buffers;
use super::{Phase, Worker};
use crate::workload::{Completed, Direction, Late, Times};
use blkmq_core::{Histogram, Instant, IoError, IoPrio, Nanos, SECTOR_SIZE};
use blkmq_engine::Completion;

/// Takes the completions of one portion.
pub struct Taking<'t, 'job, P, B, C> {
    pub(super) worker: &'t mut Worker<'job, P, B>,
    pub(super) clock: C,
    /// The time, read once for completions that are taken together.
    pub(super) now: Option<Instant>,
}

impl<P, B: Buffers<P>, C: Fn() -> Instant> Taking<'_, '_, P, B, C> {
    /// Takes one completion that came later than those taken before it, if any: the clock is read again.
    pub fn take_later(&mut self, io: Completion<P>) {
        self.now = None;
        self.take(io);
    }

    /// Takes one completion. A thread that does not measure latencies never reads the clock.
    // Forced: as a call it takes 10 instructions more.
    #[inline(always)]
    pub fn take(&mut self, mut io: Completion<P>) {
        let cookie = Cookie(io.cookie);
        let direction = cookie.direction();
        let ended = io.result;
        if let Err(error) = ended {
            self.note(cookie, error);
        }
        let purpose = self.check(&mut io);
        self.worker.buffers.give(io.payload);
        if ended.is_ok() {
            self.count(cookie, purpose);
        }
        if let Some(stamps) = &mut self.worker.stamps {
            let slot = cookie.slot();
            stamps.free.push(slot);
            if ended.is_ok() {
                let now = *self.now.get_or_insert_with(|| (self.clock)());
                let (start, issued) = (stamps.start[slot as usize], stamps.issued[slot as usize]);
                let what = stamps.what[slot as usize];
                match Direction::ALL.get(direction as usize) {
                    Some(direction) => {
                        let io = Completed {
                            at: now - self.worker.tally.started,
                            direction: *direction,
                            bytes: cookie.sectors() * u64::from(SECTOR_SIZE),
                            offset: what.sector * u64::from(SECTOR_SIZE),
                            prio: what.prio,
                            slat: issued - start,
                            clat: now - issued,
                        };
                        self.time(&io, purpose, start, now);
                    }
                    // A flush has no direction.
                    None => self.time_flush(now - start),
                }
            }
        }
    }

    #[inline]
    fn time(&mut self, io: &Completed, purpose: Purpose, start: Instant, now: Instant) {
        let counts = &mut self.worker.tally.counts[io.direction as usize];
        record(&mut counts.times, io.slat, io.clat);
        if !counts.prios.is_empty() {
            record_prio(&mut counts.prios, io);
        }
        if purpose == Purpose::Work
            && let Some(goal) = &mut self.worker.goal
        {
            goal.count(start, now - start);
        }
        let took = Nanos(io.slat.0 + io.clat.0);
        if let Some(most) = self.worker.job.max_latency[io.direction]
            && took > most
            && self.worker.measuring
        {
            self.late(Late { direction: io.direction, took, most });
        }
        if purpose == Purpose::Work
            && let Some(course) = &mut self.worker.tally.course
        {
            course.record(now, (now - start).0);
        }
        if self.worker.measuring
            && let Some(journal) = &mut self.worker.journal
        {
            journal.completed(io);
        }
    }

    fn time_flush(&mut self, span: Nanos) {
        if self.worker.phase != Phase::Closing
            && let Some(sync) = &mut self.worker.tally.sync
        {
            sync.record(span.0);
        }
    }

    #[inline]
    fn check(&mut self, io: &mut Completion<P>) -> Purpose {
        if B::CARRIES
            && let Some(verify) = &mut self.worker.verify
        {
            let bytes = B::bytes(&mut io.payload);
            let purpose = verify.end(Cookie(io.cookie).slot(), io.result, bytes);
            self.worker.stopped |= verify.verifier().is_fatal();
            return purpose;
        }
        Purpose::Work
    }

    /// The cancellation of an I/O because the time is over is no error.
    #[cold]
    fn note(&mut self, cookie: Cookie, error: IoError) {
        if self.worker.tally.unfinished.outstanding > 0 && error == IoError::CANCELLED {
            self.worker.tally.unfinished.cancelled += 1;
            return;
        }
        if self.worker.job.fill_device && error == IoError::NO_SPACE {
            self.worker.full = true;
            return;
        }
        let what = self.worker.stamps.as_ref().map(|stamps| stamps.what[cookie.slot() as usize]);
        let failed = cookie.failed(what.map(|what| what.sector), error);
        self.worker.tally.failures.note(failed);
        if !self.worker.job.on_error.forgives(failed.direction, error) {
            self.end(error);
        }
    }

    /// The thread ends with `error`, unless it already has one.
    #[cold]
    fn end(&mut self, error: IoError) {
        self.worker.stopped = true;
        if self.worker.tally.error == 0 {
            self.worker.tally.error = error.0;
        }
    }

    #[cold]
    fn late(&mut self, late: Late) {
        self.worker.tally.late.get_or_insert(late);
        self.end(IoError::TIMED_OUT);
    }

    #[inline]
    fn count(&mut self, cookie: Cookie, purpose: Purpose) {
        let direction = cookie.direction();
        if direction == FLUSH {
            self.worker.tally.flushes += u64::from(self.worker.phase != Phase::Closing);
            return;
        }
        let bytes = cookie.sectors() * u64::from(SECTOR_SIZE);
        let counts = &mut self.worker.tally.counts[direction as usize];
        counts.ios += 1;
        counts.bytes += bytes;
        if purpose == Purpose::Check {
            let checks = &mut self.worker.tally.checks;
            checks.ios += 1;
            checks.bytes += bytes;
            checks.at_end += u64::from(self.worker.phase == Phase::Checking);
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
