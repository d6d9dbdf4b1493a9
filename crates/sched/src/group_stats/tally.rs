//! Sums over many notes, for a policy that writes notes faster than the statistics should process them.
//!
//! The statistics are sums, so notes need not be kept one by one.

use super::{Counts, Kind};
use crate::{About, Event};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Nanos, Op, SECTOR_SIZE};

/// The sum of the notes about one kind of I/O of one group. Two cache lines: requests, and turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Tally {
    about: About,
    /// Change in the number of waiting requests.
    waiting: i64,
    merged: u64,
    completed: u64,
    sectors: u64,
    bytes: u64,
    wait: u64,
    service: u64,
    turns: Turns,
}

/// Events that happen at most once in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turns {
    time: u64,
    idle: u64,
    empty: u64,
    waited: u64,
    dequeued: u64,
    queue_sizes: u64,
    samples: u64,
}

const _: () = assert!(size_of::<Tally>() == 128 && core::mem::offset_of!(Tally, turns) == 64);

impl Tally {
    const fn new(about: About) -> Self {
        Self {
            about,
            waiting: 0,
            merged: 0,
            completed: 0,
            sectors: 0,
            bytes: 0,
            wait: 0,
            service: 0,
            turns: Turns {
                time: 0,
                idle: 0,
                empty: 0,
                waited: 0,
                dequeued: 0,
                queue_sizes: 0,
                samples: 0,
            },
        }
    }

    /// The group that the notes are about.
    #[must_use]
    pub fn group(&self) -> GroupIndex {
        self.about.group()
    }

    /// Adds one event.
    #[inline(always)]
    fn add(&mut self, what: Event) {
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
            Event::Time(span) => self.turns.time += span.0,
            Event::Idle(span) => self.turns.idle += span.0,
            Event::Empty(span) => self.turns.empty += span.0,
            Event::Waited(span) => self.turns.waited += span.0,
            Event::Dequeued => self.turns.dequeued += 1,
            Event::QueueSize(size) => {
                self.turns.queue_sizes += u64::from(size);
                self.turns.samples += 1;
            }
        }
    }

    /// Adds a completed request whose waiting was not noted.
    #[inline(always)]
    fn add_whole(&mut self, bytes: u32, wait: Nanos, service: Nanos) {
        self.completed += 1;
        self.bytes += u64::from(bytes);
        self.sectors += u64::from(bytes / SECTOR_SIZE);
        self.wait += wait.0;
        self.service += service.0;
    }

    /// Adds the sums to `counts`.
    pub(super) fn count(&self, counts: &mut Counts) {
        let about = self.about;
        // Some requests may have begun to wait before counting began.
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
        let Turns { time, idle, empty, waited, dequeued, queue_sizes, samples } = self.turns;
        counts.time += time;
        counts.idle += idle;
        counts.empty += empty;
        counts.waited += waited;
        counts.dequeued += dequeued;
        counts.queue_sizes += queue_sizes;
        counts.samples += samples;
    }
}

/// The number of open tallies.
const PLACES: usize = 8;
/// The place of a tally among the open ones. The kinds of I/O of one group have different places.
#[inline]
const fn place(about: About) -> usize {
    (about.word() ^ about.word() >> 3) as usize % PLACES
}

/// Open tallies, each about one kind of I/O of one group. Adding a note is O(1).
#[derive(Clone, Debug)]
pub struct Tallies {
    open: [Tally; PLACES],
    /// The places in use, a bit each. Free places are about [`NOTHING`].
    used: u32,
    /// Tallies whose place was taken by another one.
    full: Vec<Tally>,
}

/// The subject of a free place: a group that no policy has, of a kind that has another place.
const NOTHING: [About; PLACES] = {
    let mut nothing = [About::new(GroupIndex(u16::MAX), Op::Read, false); PLACES];
    nothing[place(nothing[0])] = About::new(GroupIndex(u16::MAX), Op::Read, true);
    nothing
};

impl Default for Tallies {
    fn default() -> Self {
        Self { open: NOTHING.map(Tally::new), used: 0, full: Vec::new() }
    }
}

impl Tallies {
    /// Adds a note.
    // Always inline, so that `what` need not be in memory.
    #[inline(always)]
    pub fn add(&mut self, about: About, what: Event) {
        let place = place(about);
        if self.open[place].about != about {
            self.make_room(place, about);
        }
        self.open[place].add(what);
    }

    /// Adds a completed request whose waiting was not noted: [`Event::Served`] and [`Event::Completed`] in one, except
    /// for the number of waiting requests.
    #[inline(always)]
    pub fn add_whole(&mut self, about: About, bytes: u32, wait: Nanos, service: Nanos) {
        let place = place(about);
        if self.open[place].about != about {
            self.make_room(place, about);
        }
        self.open[place].add_whole(bytes, wait, service);
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

    /// Returns whether no note has been added since the last [`drain`](Self::drain).
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // A tally is moved to `full` only when another one takes its place.
        self.used == 0
    }

    /// Passes all tallies to `take` and empties them.
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
