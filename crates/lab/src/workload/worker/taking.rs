//! The completions of one thread: counted, timed and checked; their places and payloads are free again.

use super::flight::{Cookie, FLUSH, Stamps};
use super::port::Buffers;
use super::verifying::{Purpose, Verifying};
use crate::workload::goal::Goal;
use crate::workload::{Tally, Times};
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
    /// The number of reads among them that only check.
    pub(super) checks: u32,
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
        match purpose {
            Purpose::Work if ended.is_ok() => self.count(cookie),
            Purpose::Work => {}
            Purpose::Check => self.checks += 1,
        }
        if let Some(stamps) = self.stamps {
            let slot = cookie.slot();
            stamps.free.push(slot);
            if direction != FLUSH && purpose == Purpose::Work && ended.is_ok() {
                let now = *self.now.get_or_insert_with(|| (self.clock)());
                let times = &mut self.tally.counts[direction as usize].times;
                let (start, issued) = (stamps.start[slot as usize], stamps.issued[slot as usize]);
                record(times, start, issued, now);
                let prios = &mut self.tally.counts[direction as usize].prios;
                if !prios.is_empty() {
                    record_prio(prios, cookie, now - issued);
                }
                if let Some(goal) = self.goal {
                    goal.count(start, now - start);
                }
                if let Some(course) = &mut self.tally.course {
                    course.record(now, (now - start).0);
                }
            }
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
        self.tally.failures.note(cookie.failed(what.map(|(_, sector)| sector), error));
    }

    #[inline]
    fn count(&mut self, cookie: Cookie) {
        let direction = cookie.direction();
        if direction == FLUSH {
            self.tally.flushes += 1;
        } else {
            let counts = &mut self.tally.counts[direction as usize];
            counts.ios += 1;
            counts.bytes += cookie.sectors() * u64::from(SECTOR_SIZE);
        }
    }
}

/// Counts the completion of an I/O with its priority.
fn record_prio(prios: &mut [(IoPrio, Histogram)], cookie: Cookie, took: Nanos) {
    if let Some((_, clat)) = prios.iter_mut().find(|(prio, _)| *prio == cookie.prio()) {
        clat.record(took.0);
    }
}

fn record(times: &mut Times, start: Instant, issued: Instant, now: Instant) {
    let take = |histogram: &mut Option<Histogram>, span: Nanos| {
        if let Some(histogram) = histogram.as_mut() {
            histogram.record(span.0);
        }
    };
    take(&mut times.slat, issued - start);
    take(&mut times.clat, now - issued);
    take(&mut times.lat, now - start);
}
