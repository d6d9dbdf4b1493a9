//! Preconditioning: the writes to a device before the first request (none, one fill, or a fill and random
//! overwrites).
//!
//! Uses the translation layer and the garbage collection of the run, without time.

use super::ftl::{Ftl, Stream};
use super::mapping::Place;
use super::reclaim::{Reclaim, Step, Watermarks};
use blkmq_core::Rng;

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

/// A device with the preconditioning `before`.
pub(super) fn aged(mut ftl: Ftl, before: Preconditioned, marks: Watermarks, seed: u64) -> Ftl {
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

/// Writes units row by row, each row on the next die, and collects garbage meanwhile.
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
            // As if the unit had been in the buffer until now: of several writes to one unit in a row, the last one
            // counts.
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

/// Carries out one step of garbage collection; false if there is none.
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
