//! Places in flight: the facts about an I/O that are needed when it comes back.

use crate::workload::{Direction, Failed, NextIo};
use blkmq_core::{Instant, IoError, IoPrio, SECTOR_SIZE};

/// Direction, then length in sectors, then its place in flight, then its priority.
#[derive(Clone, Copy)]
pub(super) struct Cookie(pub(super) u64);

const SECTORS_SHIFT: u32 = 2;
const SLOT_SHIFT: u32 = 34;
const PRIO_SHIFT: u32 = 59;
/// The direction of a flush, which has none.
pub(super) const FLUSH: u64 = 3;

impl Cookie {
    #[inline]
    pub(super) fn new(io: &NextIo, slot: u32) -> Self {
        let direction = Direction::of(io.op).map_or(FLUSH, |d| d as u64);
        let (class, level) = (io.prio.class() as u64, u64::from(io.prio.level()));
        let place = u64::from(slot) << SLOT_SHIFT | (class << 3 | level) << PRIO_SHIFT;
        Self(direction | u64::from(io.sectors) << SECTORS_SHIFT | place)
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
        (self.0 >> SLOT_SHIFT) as u32 & ((1 << (PRIO_SHIFT - SLOT_SHIFT)) - 1)
    }

    /// The priority.
    pub(super) fn prio(self) -> IoPrio {
        let bits = (self.0 >> PRIO_SHIFT) as u16;
        // Linux has the class in the upper three bits.
        IoPrio::from_bits((bits >> 3) << 13 | bits & 7)
    }
}

/// The times at which the I/O in each place was decided on and handed over.
pub(super) struct Stamps {
    pub(super) free: Vec<u32>,
    /// Places of the portion that is being gathered.
    pub(super) batch: Vec<u32>,
    pub(super) start: Box<[Instant]>,
    pub(super) issued: Box<[Instant]>,
    /// The cookie and the first sector of each I/O.
    pub(super) what: Box<[(Cookie, u64)]>,
}

impl Stamps {
    pub(super) fn new(depth: u32) -> Self {
        let places = depth as usize;
        Self {
            free: (0..depth).rev().collect(),
            batch: Vec::with_capacity(places),
            start: vec![Instant::ZERO; places].into_boxed_slice(),
            issued: vec![Instant::ZERO; places].into_boxed_slice(),
            what: vec![(Cookie(0), 0); places].into_boxed_slice(),
        }
    }

    pub(super) fn begin(&mut self, now: Instant) -> u32 {
        let slot = self.free.pop().expect("a place for each I/O that may be in flight");
        self.start[slot as usize] = now;
        self.batch.push(slot);
        slot
    }

    /// The cookies of all I/Os in flight. O(places).
    pub(super) fn in_flight(&self) -> Vec<Cookie> {
        let mut is_free = vec![false; self.what.len()];
        self.free.iter().for_each(|slot| is_free[*slot as usize] = true);
        let all = is_free.into_iter().zip(&self.what);
        all.filter(|(is_free, _)| !is_free).map(|(_, (cookie, _))| *cookie).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::{Class, IoFlags, Op};

    #[test]
    fn a_cookie_keeps_all_that_it_was_given() {
        for (class, level) in [(Class::None, 0), (Class::Realtime, 7), (Class::Idle, 3)] {
            let prio = IoPrio::new(class, level).expect("a level");
            let io =
                NextIo { op: Op::Write, flags: IoFlags::NONE, prio, sectors: 1 << 21, sector: 9 };
            let cookie = Cookie::new(&io, 65_535);
            assert_eq!((cookie.direction(), cookie.sectors(), cookie.slot()), (1, 1 << 21, 65_535));
            assert_eq!(cookie.prio(), prio);
        }
    }
}
