//! Garbage collection on one die: the block to reclaim, the units to move out of it, and the steps.
//!
//! The choice is greedy: always the block with the fewest valid units. Garbage collection begins when the number of
//! free blocks falls to the lower watermark, and ends when it reaches the upper one. In between it keeps pace with the
//! host: for every row that the host writes, it first reclaims one, so that no write waits for a whole block. `dies.rs`
//! performs the steps in time, `age.rs` without time.

use super::ftl::{Ftl, Place, Stream};

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
