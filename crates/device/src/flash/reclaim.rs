//! Garbage collection on one die: the block to reclaim, the units to move out of it, and the steps; and
//! preconditioning: the writes to a device before its first request (none, one fill, or a fill and random overwrites).
//!
//! The choice is greedy: always the block with the fewest valid units. Garbage collection begins when the number of
//! free blocks falls to the lower watermark, and ends when it reaches the upper one. In between it keeps pace with the
//! host: for every row that the host writes, it first reclaims one, so that no write waits for a whole block. `dies.rs`
//! performs the steps in time, [`Writer`] without time, by the translation layer and the garbage collection of a run.

use super::ftl::{Ftl, Place, Stream};
use super::geometry::Geometry;
use blkmq_core::Rng;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The target numbers of free blocks of a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Garbage collection begins when at most this many blocks are free.
    pub start: u32,
    /// Garbage collection ends when this many blocks are free.
    pub stop: u32,
}

/// The next step of garbage collection on a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Read the valid units of a row; holds their number.
    Read(u32),
    /// Program a row of units that were read.
    Program,
    /// Erase this block.
    Erase(u32),
}

/// A unit that was read and must be written to another place.
#[derive(Clone, Copy, Debug)]
struct Moved {
    logical: u32,
    from: u32,
}

/// A block that is being read.
#[derive(Clone, Copy, Debug)]
struct Victim {
    block: u32,
    /// The next row to read.
    page: u32,
}

/// Garbage collection of one die.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// Whether garbage collection is in progress.
    active: bool,
    victim: Option<Victim>,
    /// Blocks read completely but not yet empty: their remaining units are in `carry`.
    read: Vec<u32>,
    /// Units that were read but not programmed, in order; fewer than two rows.
    carry: Vec<Moved>,
    /// Units that the host has written, less those reclaimed since garbage collection began.
    debt: i64,
}

impl Reclaim {
    pub(super) fn new(row_units: u32) -> Self {
        Self {
            active: false,
            victim: None,
            // Each of these blocks has at least one unit in `carry`, which holds less than a row then.
            read: Vec::with_capacity(row_units as usize),
            carry: Vec::with_capacity(2 * row_units as usize),
            debt: 0,
        }
    }

    /// Returns whether garbage collection is in progress, so that reads may overtake it.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Begins if few blocks are free and one is worth reclaiming.
    pub(super) fn wake(&mut self, ftl: &mut Ftl, die: u32, marks: Watermarks) {
        if !self.active && ftl.blocks.free(die) <= marks.start && ftl.blocks.has_victim(die) {
            self.active = true;
            self.debt = 0;
        }
    }

    /// Returns whether garbage collection must precede the host's next row.
    pub(super) fn is_due(&self) -> bool {
        self.active && self.debt > 0
    }

    /// Notes that the host has written a row.
    pub(super) fn owe(&mut self, row_units: u32) {
        if self.active {
            self.debt += i64::from(row_units);
        }
    }

    /// The next step on `die`, or `None` if garbage collection has ended.
    pub(super) fn next(&mut self, ftl: &mut Ftl, die: u32, marks: Watermarks) -> Option<Step> {
        let row = ftl.geometry.row_units();
        while self.active {
            if let Some(at) = self.read.iter().position(|block| ftl.blocks.valid(*block) == 0) {
                return Some(Step::Erase(self.read.swap_remove(at)));
            }
            if self.carry.len() >= row as usize {
                return Some(Step::Program);
            }
            if self.victim.is_some() {
                if let Some(units) = self.read_row(ftl) {
                    return Some(Step::Read(units));
                }
                continue;
            }
            let free = ftl.blocks.free(die) + self.read.len() as u32;
            let pays = self.carry.is_empty() || self.gains(ftl, die);
            let victim = if free < marks.stop || !pays { ftl.blocks.victim(die) } else { None };
            self.victim = victim.map(|block| Victim { block, page: 0 });
            if self.victim.is_none() {
                if pays && !self.carry.is_empty() {
                    return Some(Step::Program);
                }
                self.give_up(ftl);
            }
        }
        None
    }

    /// Returns whether programming the remaining units that were read is worth a row. It is not if that takes a new
    /// block and frees only one; then more units must be read to be programmed together.
    fn gains(&self, ftl: &Ftl, die: u32) -> bool {
        let rows = ftl.geometry.pages_per_block;
        self.read.len() > 1 || rows > 1 || ftl.has_begun(die, Stream::Reclaim)
    }

    /// Takes the valid units of the victim's next row that has any, and returns their number, or `None` at the end of
    /// the victim.
    fn read_row(&mut self, ftl: &Ftl) -> Option<u32> {
        let Victim { block, page } = self.victim.expect("the caller has seen one");
        let geometry = &ftl.geometry;
        for page in page..geometry.pages_per_block {
            let first = geometry.first_unit(block, page);
            let units = first..first + geometry.row_units();
            let before = self.carry.len();
            let moved = |unit| ftl.owner(unit).map(|logical| Moved { logical, from: unit });
            self.carry.extend(units.filter_map(moved));
            let found = (self.carry.len() - before) as u32;
            self.debt -= i64::from(geometry.row_units() - found);
            if found > 0 {
                self.victim = Some(Victim { block, page: page + 1 });
                return Some(found);
            }
        }
        self.victim = None;
        self.read.push(block);
        None
    }

    /// Ends garbage collection; units that were not moved stay in place.
    pub(super) fn give_up(&mut self, ftl: &mut Ftl) {
        let victim = self.victim.take().map(|victim| victim.block);
        self.read.drain(..).chain(victim).for_each(|block| ftl.blocks.close(block));
        self.carry.clear();
        self.active = false;
    }

    /// Handles the end of programming a row of moved units, from unit `first` on.
    pub(super) fn programmed(&mut self, ftl: &mut Ftl, die: u32, first: u32) {
        let used = self.carry.len().min(ftl.geometry.row_units() as usize);
        for (unit, moved) in (first..).zip(self.carry.drain(..used)) {
            ftl.commit(moved.logical, Place::Flash(moved.from), unit);
        }
        ftl.finish_row(die, Stream::Reclaim, used as u32);
    }
}

/// How a device was written before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preconditioned {
    /// Not at all: no unit was ever written.
    No,
    /// Every unit was written once, in order.
    Sequential,
    /// Every unit was written once, in order; then units were overwritten at random, three times the size of the
    /// device.
    Random,
}

/// Random overwrites that bring a device to its steady state, in multiples of its size.
const OVERWRITES: u64 = 3;

/// The parameters that determine a preconditioned layer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    geometry: Geometry,
    logical: u32,
    before: Preconditioned,
    marks: Watermarks,
    seed: u64,
}

/// The number of layers that are cached: runs that are compared begin with equal layers, and preconditioning takes
/// longer than many a run.
const KEPT: usize = 2;
/// The largest layer that is cached, in units: some 50 MiB.
const MOST_UNITS: u32 = 1 << 22;

static LAST: Mutex<VecDeque<(Key, Arc<Ftl>)>> = Mutex::new(VecDeque::new());

/// Returns `fresh` with the preconditioning `before`. O(size of the device).
pub(super) fn aged(fresh: Ftl, before: Preconditioned, marks: Watermarks, seed: u64) -> Ftl {
    let (geometry, logical) = (fresh.geometry, fresh.logical());
    if before == Preconditioned::No || logical > MOST_UNITS {
        return written(fresh, before, marks, seed);
    }
    let seed = if before == Preconditioned::Random { seed } else { 0 };
    let key = Key { geometry, logical, before, marks, seed };
    let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let found = last().iter().find(|(known, _)| *known == key).map(|(_, ftl)| Arc::clone(ftl));
    if let Some(known) = found {
        return Ftl::clone(&known);
    }
    let ftl = written(fresh, before, marks, seed);
    let mut last = last();
    last.truncate(KEPT - 1);
    last.push_front((key, Arc::new(ftl.clone())));
    ftl
}

fn written(mut ftl: Ftl, before: Preconditioned, marks: Watermarks, seed: u64) -> Ftl {
    let logical = ftl.logical();
    let mut writer = Writer::new(&ftl, marks);
    if before != Preconditioned::No {
        (0..logical).for_each(|unit| writer.write(&mut ftl, unit));
        writer.write_row(&mut ftl);
    }
    if before == Preconditioned::Random {
        let mut rng = Rng::new(seed);
        for _ in 0..u64::from(logical) * OVERWRITES {
            writer.write(&mut ftl, rng.below(logical.into()) as u32);
        }
        writer.write_row(&mut ftl);
    }
    writer.rest(&mut ftl);
    ftl.stats = super::FlashStats { valid_units: ftl.stats.valid_units, ..Default::default() };
    ftl
}

/// Writes units row by row, each row to the next die, and collects garbage as needed.
pub(super) struct Writer {
    reclaim: Vec<Reclaim>,
    row: Vec<u32>,
    die: u32,
    marks: Watermarks,
}

impl Writer {
    pub(super) fn new(ftl: &Ftl, marks: Watermarks) -> Self {
        let row = ftl.geometry.row_units();
        Self {
            reclaim: (0..ftl.geometry.dies()).map(|_| Reclaim::new(row)).collect(),
            row: Vec::with_capacity(row as usize),
            die: 0,
            marks,
        }
    }

    pub(super) fn write(&mut self, ftl: &mut Ftl, logical: u32) {
        self.row.push(logical);
        if self.row.len() == ftl.geometry.row_units() as usize {
            self.write_row(ftl);
        }
    }

    fn write_row(&mut self, ftl: &mut Ftl) {
        if self.row.is_empty() {
            return;
        }
        let die = self.next_die(ftl);
        let first = ftl.begin_row(die, Stream::Host);
        for (unit, logical) in (first..).zip(self.row.drain(..)) {
            // As if the unit had been in the buffer until now: of consecutive writes to one unit, only the last counts.
            ftl.supersede(logical, Place::Nowhere);
            ftl.commit(logical, Place::Nowhere, unit);
        }
        ftl.finish_row(die, Stream::Host, ftl.geometry.row_units());
        self.reclaim[die as usize].owe(ftl.geometry.row_units());
        self.reclaim(ftl, die);
    }

    /// The next die with room for a row. There is one, since the flash is larger than the mapped units.
    fn next_die(&mut self, ftl: &mut Ftl) -> u32 {
        loop {
            let die = self.die;
            self.die = (die + 1) % ftl.geometry.dies();
            if ftl.host_has_room(die) {
                return die;
            }
            self.reclaim(ftl, die);
        }
    }

    /// Collects garbage until the host may write the next row.
    fn reclaim(&mut self, ftl: &mut Ftl, die: u32) {
        let reclaim = &mut self.reclaim[die as usize];
        reclaim.wake(ftl, die, self.marks);
        while (reclaim.is_due() || !ftl.host_has_room(die)) && step(reclaim, ftl, die, self.marks) {
        }
    }

    /// Ends garbage collection as soon as possible: a device that has been written for long has no more free blocks
    /// than it needs.
    fn rest(&mut self, ftl: &mut Ftl) {
        let marks = Watermarks { stop: self.marks.start + 1, ..self.marks };
        for (die, reclaim) in (0..).zip(&mut self.reclaim) {
            while step(reclaim, ftl, die, marks) {}
        }
    }
}

/// Performs one step of garbage collection. Returns false if there is none.
fn step(reclaim: &mut Reclaim, ftl: &mut Ftl, die: u32, marks: Watermarks) -> bool {
    match reclaim.next(ftl, die, marks) {
        Some(Step::Read(_)) => {}
        Some(Step::Program) => {
            let first = ftl.begin_row(die, Stream::Reclaim);
            reclaim.programmed(ftl, die, first);
        }
        Some(Step::Erase(block)) => ftl.erase(block),
        None => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_layer_is_the_one_that_is_written() {
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 2,
            planes: 1,
            page_size: 4096,
            pages_per_block: 8,
            blocks_per_die: 20,
        };
        let marks = Watermarks { start: 2, stop: 4 };
        let places = |ftl: &Ftl| Vec::from_iter((0..200).map(|unit| ftl.find(unit)));
        let kinds = [Preconditioned::No, Preconditioned::Sequential, Preconditioned::Random];
        for (before, seed) in kinds.into_iter().cycle().zip([1, 1, 1, 2, 2, 2, 1, 1, 1, 1]) {
            let expected = written(Ftl::new(geometry, 200), before, marks, seed);
            for _ in 0..2 {
                let found = aged(Ftl::new(geometry, 200), before, marks, seed);
                found.check();
                assert_eq!(places(&found), places(&expected), "{before:?} {seed}");
            }
        }
        assert!(LAST.lock().expect("it is not poisoned").len() <= KEPT);
    }
}
