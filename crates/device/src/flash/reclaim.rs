//! Garbage collection on one die: which block is reclaimed, what is moved out of it, and in which steps.
//!
//! Greedy: always the block with the fewest valid units. It begins when few blocks are free and goes on until some
//! more are, and in between keeps pace with the host: for every row that the host takes, it wins one back first, so
//! that no write waits for a whole block. The steps are carried out in time by `drain.rs`, and without by `age.rs`.

use super::ftl::{Ftl, Stream};
use super::mapping::Place;

/// How many free blocks a die is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Garbage collection begins when no more than this are free.
    pub start: u32,
    /// And ends when this many are.
    pub stop: u32,
}

/// What garbage collection does next on a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Read what is valid in a row, so many units.
    Read(u32),
    /// Program a row of what was read.
    Program,
    /// Erase this block.
    Erase(u32),
}

/// A unit that was read and is to be written elsewhere.
#[derive(Clone, Copy, Debug)]
struct Moved {
    logical: u32,
    from: u32,
}

/// A block that is being read.
#[derive(Clone, Copy, Debug)]
struct Victim {
    block: u32,
    /// The next row of it.
    page: u32,
}

/// Garbage collection of one die.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// It has begun, and has not yet reached its end.
    active: bool,
    victim: Option<Victim>,
    /// Read to the end, and not yet empty: the rest of it is in `carry`.
    read: Vec<u32>,
    /// Units read and not yet programmed, in order. Less than two rows.
    carry: Vec<Moved>,
    /// Units that the host has written since they were last won back.
    debt: i64,
}

impl Reclaim {
    pub(super) fn new(row_units: u32) -> Self {
        Self {
            active: false,
            victim: None,
            // Each has at least one unit in `carry`, of which there is less than a row then.
            read: Vec::with_capacity(row_units as usize),
            carry: Vec::with_capacity(2 * row_units as usize),
            debt: 0,
        }
    }

    /// Has it anything to do, so that reads pass it?
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Begins if it is time to.
    pub(super) fn wake(&mut self, ftl: &mut Ftl, die: u32, marks: Watermarks) {
        if !self.active && ftl.blocks.free(die) <= marks.start && ftl.blocks.has_victim(die) {
            self.active = true;
            self.debt = 0;
        }
    }

    /// Is it its turn, ahead of the host?
    pub(super) fn is_due(&self) -> bool {
        self.active && self.debt > 0
    }

    /// The host has taken a row.
    pub(super) fn owe(&mut self, row_units: u32) {
        if self.active {
            self.debt += i64::from(row_units);
        }
    }

    /// What to do next on `die`; `None` if it has come to its end.
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

    /// Is it worth a row to program the rest of what was read? If that takes a block and gives one back, it is not, and
    /// more has to be read with it.
    fn gains(&self, ftl: &Ftl, die: u32) -> bool {
        let rows = ftl.geometry.pages_per_block;
        self.read.len() > 1 || rows > 1 || ftl.has_begun(die, Stream::Reclaim)
    }

    /// Takes what is valid in the next row of the victim that has something; `None` at its end.
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

    /// Leaves everything that has not been moved where it is.
    pub(super) fn give_up(&mut self, ftl: &mut Ftl) {
        let victim = self.victim.take().map(|victim| victim.block);
        self.read.drain(..).chain(victim).for_each(|block| ftl.blocks.close(block));
        self.carry.clear();
        self.active = false;
    }

    /// A row of what was read has been programmed, from unit `first` on.
    pub(super) fn programmed(&mut self, ftl: &mut Ftl, die: u32, first: u32) {
        let used = self.carry.len().min(ftl.geometry.row_units() as usize);
        for (unit, moved) in (first..).zip(self.carry.drain(..used)) {
            ftl.commit(moved.logical, Place::Flash(moved.from), unit);
        }
        ftl.finish_row(die, Stream::Reclaim, used as u32);
    }
}
