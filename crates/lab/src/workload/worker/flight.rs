//! Slots in flight: what must be known about an I/O when it completes, and the purpose for which a verifying worker
//! issued it.
//!
//! [`Verifier`] knows the expected contents of blocks, and which blocks are to be read back.

use crate::workload::verify::Findings;
use crate::workload::{Direction, Failed, NextIo, Verifier};
use blkmq_core::{Instant, IoError, IoFlags, IoPrio, IoResult, Op, SECTOR_SIZE};

/// The direction, then the length in sectors, then the slot in flight.
#[derive(Clone, Copy)]
pub(super) struct Cookie(pub(super) u64);

const SECTORS_SHIFT: u32 = 2;
const SLOT_SHIFT: u32 = 34;
/// The direction of a flush, which has none.
pub(super) const FLUSH: u64 = 3;

impl Cookie {
    #[inline]
    pub(super) fn new(io: &NextIo, slot: u32) -> Self {
        let direction = Direction::of(io.op).map_or(FLUSH, |d| d as u64);
        Self(direction | u64::from(io.sectors) << SECTORS_SHIFT | u64::from(slot) << SLOT_SHIFT)
    }

    /// The failure of an I/O with this cookie, which begins at `sector` if that is known.
    #[cold]
    pub(super) fn failed(self, sector: Option<u64>, error: IoError) -> Failed {
        let directions = [Direction::Read, Direction::Write, Direction::Trim];
        let direction = directions.into_iter().find(|d| *d as u64 == self.direction());
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
