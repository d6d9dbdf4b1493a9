//! Sums over many notes, for whoever writes notes down faster than anybody wants to count them.
//!
//! Most of what is noted is about one request: it waits, it was picked, it has completed. What is kept of that in the
//! end are sums, so it need not be written down one by one. What begins and ends, and what belongs to a turn, is rarer,
//! needs its time and its order, and is none of a tally's business.

use super::{Counts, Kind};
use crate::{About, Event};
use alloc::vec::Vec;
use blkmq_core::{GroupId, Op};

/// What the notes about one kind of I/O of one group come to. One cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub struct Tally {
    about: About,
    /// How many more wait than before.
    waiting: i64,
    merged: u64,
    completed: u64,
    sectors: u64,
    bytes: u64,
    wait: u64,
    service: u64,
}

const _: () = assert!(size_of::<Tally>() == 64);

impl Tally {
    pub(super) const fn new(about: About) -> Self {
        Self {
            about,
            waiting: 0,
            merged: 0,
            completed: 0,
            sectors: 0,
            bytes: 0,
            wait: 0,
            service: 0,
        }
    }

    /// Which group it is about.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.about.group()
    }

    /// Adds what a note says; false for one that is not of this kind.
    #[inline(always)]
    fn add(&mut self, what: Event) -> bool {
        match what {
            Event::Queued => self.waiting += 1,
            Event::Unqueued => self.waiting -= 1,
            Event::Merged => self.merged += 1,
            Event::Served(sectors) => {
                self.waiting -= 1;
                self.sectors += u64::from(sectors);
            }
            Event::Completed { bytes, wait, service } => {
                self.completed += 1;
                self.bytes += u64::from(bytes);
                self.wait += wait.0;
                self.service += service.0;
            }
            _ => return false,
        }
        true
    }

    /// Adds the sums to what is counted already.
    pub(super) fn count(&self, counts: &mut Counts) {
        let about = self.about;
        // Some may have begun to wait before anybody counted.
        counts.flow(Kind::Queued).change(about, |n| n.saturating_add_signed(self.waiting));
        for (kind, sum) in [
            (Kind::Bytes, self.bytes),
            (Kind::Serviced, self.completed),
            (Kind::ServiceTime, self.service),
            (Kind::WaitTime, self.wait),
            (Kind::Merged, self.merged),
        ] {
            counts.flow(kind).add(about, sum);
        }
        counts.sectors += self.sectors;
    }
}

/// Tallies that are being written at a time.
const PLACES: usize = 8;
/// The place of a tally among those that are being written; the kinds that one group has do not meet.
#[inline]
const fn place(about: About) -> usize {
    (about.word() ^ about.word() >> 3) as usize % PLACES
}

/// Tallies by what they are about. Adding a note is O(1).
#[derive(Clone, Debug)]
pub struct Tallies {
    open: [Tally; PLACES],
    /// Which of them are, a bit each. The others are about [`NOTHING`].
    used: u32,
    /// Those that had to make room.
    full: Vec<Tally>,
}

/// What a free place is about: no policy hears of that group, and the kind would not be at that place.
const NOTHING: [About; PLACES] = {
    let mut nothing = [About::new(GroupId(u16::MAX), Op::Read, false); PLACES];
    nothing[place(nothing[0])] = About::new(GroupId(u16::MAX), Op::Read, true);
    nothing
};

impl Default for Tallies {
    fn default() -> Self {
        Self { open: NOTHING.map(Tally::new), used: 0, full: Vec::new() }
    }
}

impl Tallies {
    /// Adds a note. False if it is none that can be summed up: then it has to be kept as it is.
    // Always inline: nothing of `what` need be in memory.
    #[inline(always)]
    pub fn add(&mut self, about: About, what: Event) -> bool {
        let place = place(about);
        if self.open[place].about != about {
            self.make_room(place, about);
        }
        self.open[place].add(what)
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, place: usize, about: About) {
        let bit = 1 << place;
        if self.used & bit != 0 {
            self.full.push(self.open[place]);
        }
        self.used |= bit;
        self.open[place] = Tally::new(about);
    }

    /// Has no note been added since the last [`drain`](Self::drain)?
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // What had to make room made it for another one.
        self.used == 0
    }

    /// Gives all tallies away and begins anew.
    pub fn drain(&mut self, mut take: impl FnMut(Tally)) {
        self.full.drain(..).for_each(&mut take);
        let mut used = core::mem::take(&mut self.used);
        while used != 0 {
            let place = used.trailing_zeros() as usize;
            take(core::mem::replace(&mut self.open[place], Tally::new(NOTHING[place])));
            used &= used - 1;
        }
    }
}
