//! The I/Os of one thread in flight: what must be known about an I/O when it completes, and the purpose for which a
//! verifying worker issued it. Completions are counted, timed and checked, and their slots and payloads freed.
//!
//! [`Verifier`] knows the expected contents of blocks, and which blocks are to be read back.

use super::{Buffers, Phase, Worker};
use crate::workload::verify::Findings;
use crate::workload::{Completed, Direction, Failed, Late, NextIo, Times, Verifier};
use blkmq_core::{Histogram, Instant, IoError, IoFlags, IoPrio, IoResult, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::Completion;

/// The direction, then the length in sectors, then the slot in flight.
#[derive(Clone, Copy)]
pub(super) struct Cookie(pub(super) u64);

const SECTORS_SHIFT: u32 = 2;
const SLOT_SHIFT: u32 = 34;
/// The direction of a flush, which has none.
const FLUSH: u64 = 3;

impl Cookie {
    #[inline]
    pub(super) fn new(io: &NextIo, slot: u32) -> Self {
        let direction = Direction::of(io.op).map_or(FLUSH, |d| d as u64);
        Self(direction | u64::from(io.sectors) << SECTORS_SHIFT | u64::from(slot) << SLOT_SHIFT)
    }

    /// The failure of an I/O with this cookie, which begins at `sector` if that is known.
    #[cold]
    pub(super) fn failed(self, sector: Option<u64>, error: IoError) -> Failed {
        let direction = Direction::ALL.get(self.direction() as usize).copied();
        let [offset, bytes] =
            [sector, Some(self.sectors())].map(|n| n.map(|n| n * u64::from(SECTOR_SIZE)));
        Failed { direction, offset, bytes: bytes.unwrap_or(0), error }
    }

    /// `FLUSH` or a [`Direction`].
    #[inline]
    pub(super) fn direction(self) -> u64 {
        self.0 & ((1 << SECTORS_SHIFT) - 1)
    }

    #[inline]
    pub(super) fn sectors(self) -> u64 {
        self.0 >> SECTORS_SHIFT & u64::from(u32::MAX)
    }

    #[inline]
    pub(super) fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }
}

/// The I/O in a slot.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) cookie: Cookie,
    /// Its first sector.
    pub(super) sector: u64,
    pub(super) prio: IoPrio,
}

/// The times at which the I/O in each slot was decided on and pushed.
pub(super) struct Stamps {
    pub(super) free: Vec<u32>,
    /// The time at which the portion that is being gathered was first pushed, once it was.
    pub(super) pushed: Option<Instant>,
    pub(super) start: Box<[Instant]>,
    pub(super) issued: Box<[Instant]>,
    pub(super) what: Box<[What]>,
}

impl Stamps {
    pub(super) fn new(depth: u32) -> Self {
        let places = depth as usize;
        let idle = What { cookie: Cookie(0), sector: 0, prio: IoPrio::default() };
        Self {
            free: (0..depth).rev().collect(),
            pushed: None,
            start: vec![Instant::ZERO; places].into_boxed_slice(),
            issued: vec![Instant::ZERO; places].into_boxed_slice(),
            what: vec![idle; places].into_boxed_slice(),
        }
    }

    /// Takes a slot for an I/O that was decided on at `now`. `clock` is read once for each portion: the other I/Os of a
    /// portion are drawn in a few nanoseconds each, and a pushed I/O may wait in the plug for them.
    pub(super) fn begin(&mut self, now: Instant, clock: impl FnOnce() -> Instant) -> u32 {
        let slot = self.free.pop().expect("a place for each I/O that may be in flight");
        self.start[slot as usize] = now;
        self.issued[slot as usize] = *self.pushed.get_or_insert_with(clock);
        slot
    }

    /// The cookies of all I/Os in flight. O(slots).
    pub(super) fn in_flight(&self) -> Vec<Cookie> {
        let mut is_free = vec![false; self.what.len()];
        self.free.iter().for_each(|slot| is_free[*slot as usize] = true);
        let all = is_free.into_iter().zip(&self.what);
        all.filter(|(is_free, _)| !is_free).map(|(_, what)| what.cookie).collect()
    }

    /// Returns whether one of the I/Os in flight shares a sector with `io`. O(slots), if few completed I/Os share one.
    pub(super) fn overlaps(&self, io: &NextIo) -> bool {
        let end = io.sector + u64::from(io.sectors);
        let shares =
            |what: &What| what.sector < end && io.sector < what.sector + what.cookie.sectors();
        let mut places = self.what.iter().zip(0..);
        places.any(|(what, slot)| shares(what) && !self.free.contains(&slot))
    }
}

/// The purpose of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The workload's own I/O, which is counted.
    Work,
    /// A read that checks written blocks. As in fio it counts as a read.
    Check,
}

/// A verifier and the I/Os in flight that it knows of.
pub(super) struct Verifying {
    verifier: Verifier,
    /// The I/Os, by slot in flight.
    under_way: Box<[(NextIo, Purpose)]>,
    /// The next verifying read, held until no I/O in flight touches the same blocks.
    held: Option<NextIo>,
}

impl Verifying {
    /// For up to `depth` I/Os in flight.
    pub(super) fn new(verifier: Verifier, depth: u32) -> Self {
        let idle = NextIo {
            op: Op::Flush,
            flags: IoFlags::NONE,
            prio: IoPrio::default(),
            sectors: 0,
            sector: 0,
        };
        let under_way = vec![(idle, Purpose::Work); depth as usize].into_boxed_slice();
        Self { verifier, under_way, held: None }
    }

    /// The verifier, which the worker asks before it issues an I/O.
    pub(super) fn verifier(&mut self) -> &mut Verifier {
        &mut self.verifier
    }

    /// The next read to check with, if it may leave now.
    pub(super) fn next_check(&mut self) -> Option<NextIo> {
        let io = self.held.take().or_else(|| self.verifier.next_check())?;
        if self.verifier.admits(&io) {
            return Some(io);
        }
        self.held = Some(io);
        None
    }

    /// `io` leaves from slot `slot`.
    pub(super) fn begin(&mut self, slot: u32, io: &NextIo, purpose: Purpose, bytes: &mut [u8]) {
        self.under_way[slot as usize] = (*io, purpose);
        self.verifier.begin(io, bytes);
    }

    /// The I/O of slot `slot` has ended. Returns its purpose.
    pub(super) fn end(&mut self, slot: u32, result: IoResult, bytes: &[u8]) -> Purpose {
        let (io, purpose) = self.under_way[slot as usize];
        self.verifier.end(&io, result, bytes);
        purpose
    }

    /// The results so far.
    pub(super) fn findings(&self) -> &Findings {
        self.verifier.findings()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ios_in_flight_are_in_the_way() {
        let mut stamps = Stamps::new(2);
        let io = |sector, sectors| NextIo {
            op: Op::Write,
            flags: IoFlags::NONE,
            prio: IoPrio::default(),
            sectors,
            sector,
        };
        assert!(!stamps.overlaps(&io(0, 8)), "a place that is free holds nothing");
        let slot = stamps.begin(Instant::ZERO, || Instant::ZERO);
        let (cookie, prio) = (Cookie::new(&io(8, 8), slot), IoPrio::default());
        stamps.what[slot as usize] = What { cookie, sector: 8, prio };
        let found = [(0, 8), (0, 9), (15, 1), (16, 8)].map(|(at, n)| stamps.overlaps(&io(at, n)));
        assert_eq!(found, [false, true, true, false]);
        assert!(!stamps.overlaps(&NextIo::flush(prio)), "a flush is nowhere");
        stamps.free.push(slot);
        assert!(!stamps.overlaps(&io(8, 8)));
    }
}
