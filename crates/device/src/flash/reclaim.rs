//! Garbage collection on one die: the block to reclaim, the units to move out of it, and the steps; and
//! preconditioning: the writes to a device before its first request (none, one fill, or a fill and random overwrites).
//! The tests compare it, and the translation layer, with a naive twin.
//!
//! The choice is greedy: always the block with the fewest valid units. Garbage collection begins when the number of
//! free blocks falls to the lower watermark, and ends when it reaches the upper one. In between it keeps pace with the
//! host: for every row that the host writes, it first reclaims one, so that no write waits for a whole block.
//! `backend.rs` performs the steps in time, [`Writer`] without time, by the translation layer and the garbage
//! collection of a run.

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
struct Writer {
    reclaim: Vec<Reclaim>,
    row: Vec<u32>,
    die: u32,
    marks: Watermarks,
}

impl Writer {
    fn new(ftl: &Ftl, marks: Watermarks) -> Self {
        let row = ftl.geometry.row_units();
        Self {
            reclaim: (0..ftl.geometry.dies()).map(|_| Reclaim::new(row)).collect(),
            row: Vec::with_capacity(row as usize),
            die: 0,
            marks,
        }
    }

    fn write(&mut self, ftl: &mut Ftl, logical: u32) {
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
    use crate::registry;

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

    const GEOMETRY: Geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes: 2,
        page_size: 8192,
        pages_per_block: 5,
        blocks_per_die: 13,
    };
    /// Two dies of thirteen blocks of twenty units have 520 units.
    const LOGICAL: u32 = 400;
    const MARKS: Watermarks = Watermarks { start: 2, stop: 4 };

    /// The contents of every unit of flash, and the newest contents of every logical unit, which the device itself does
    /// not store. Contents are represented by a logical unit and the number of its earlier writes.
    struct Twin {
        cells: Vec<Option<(u32, u64)>>,
        newest: Vec<Option<u64>>,
        writes: u64,
    }

    impl Twin {
        fn new() -> Self {
            let cells = vec![None; GEOMETRY.units() as usize];
            Self { cells, newest: vec![None; LOGICAL as usize], writes: 0 }
        }

        /// Every mapped unit has the newest contents, and no discarded unit is mapped.
        fn check(&self, ftl: &Ftl) {
            ftl.check();
            for logical in 0..LOGICAL {
                let found = match ftl.find(logical) {
                    Place::Flash(unit) => self.cells[unit as usize],
                    Place::Buffer(_) => panic!("nothing is buffered here"),
                    Place::Nowhere => None,
                };
                let expected = self.newest[logical as usize].map(|version| (logical, version));
                assert_eq!(found, expected, "logical unit {logical}");
            }
        }

        fn host_row(&mut self, ftl: &mut Ftl, die: u32, row: &[u32]) {
            let first = ftl.begin_row(die, Stream::Host);
            for (unit, logical) in (first..).zip(row.iter().copied()) {
                ftl.supersede(logical, Place::Nowhere);
                ftl.commit(logical, Place::Nowhere, unit);
                self.writes += 1;
                self.newest[logical as usize] = Some(self.writes);
                self.cells[unit as usize] = Some((logical, self.writes));
            }
            ftl.finish_row(die, Stream::Host, row.len() as u32);
        }

        /// Performs one step; `between` runs after units were read and before they are programmed.
        fn step(&mut self, ftl: &mut Ftl, reclaim: &mut Reclaim, die: u32) -> bool {
            match reclaim.next(ftl, die, MARKS) {
                None => return false,
                Some(Step::Read(_)) => {}
                Some(Step::Erase(block)) => {
                    let from = ftl.geometry.first_unit(block, 0) as usize;
                    self.cells[from..][..ftl.geometry.block_units() as usize].fill(None);
                    ftl.erase(block);
                }
                Some(Step::Program) => {
                    let places = Vec::from_iter((0..LOGICAL).map(|logical| ftl.find(logical)));
                    let first = ftl.begin_row(die, Stream::Reclaim);
                    reclaim.programmed(ftl, die, first);
                    for (logical, before) in (0..LOGICAL).zip(places) {
                        if let (Place::Flash(from), Place::Flash(to)) = (before, ftl.find(logical))
                            && from != to
                        {
                            self.cells[to as usize] = self.cells[from as usize];
                        }
                    }
                }
            }
            true
        }
    }

    #[test]
    fn nothing_is_lost_doubled_or_miscounted_whatever_comes_between() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut ftl, mut twin) = (Ftl::new(GEOMETRY, LOGICAL), Twin::new());
            let mut reclaims = [Reclaim::new(4), Reclaim::new(4)];
            let mut rows = 0;
            for _ in 0..3000 {
                let die = rng.below(2) as u32;
                let reclaim = &mut reclaims[die as usize];
                if ftl.host_has_room(die) && !reclaim.is_due() && rng.chance(1, 2) {
                    let row: Vec<u32> =
                        (0..1 + rng.below(4)).map(|_| rng.below(LOGICAL.into()) as u32).collect();
                    twin.host_row(&mut ftl, die, &row);
                    reclaim.wake(&mut ftl, die, MARKS);
                    reclaim.owe(4);
                    rows += 1;
                } else if rng.chance(1, 8) {
                    let logical = rng.below(LOGICAL.into()) as u32;
                    ftl.supersede(logical, Place::Nowhere);
                    twin.newest[logical as usize] = None;
                } else {
                    reclaim.wake(&mut ftl, die, MARKS);
                    twin.step(&mut ftl, reclaim, die);
                }
                twin.check(&ftl);
            }
            assert!(
                rows > 300 && ftl.stats.moved_units > 0 && ftl.stats.erased_blocks > 20,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn garbage_collection_goes_on_until_its_end_and_keeps_what_is_mapped() {
        let (mut ftl, mut twin) = (Ftl::new(GEOMETRY, LOGICAL), Twin::new());
        let mut reclaim = Reclaim::new(4);
        let mut rng = Rng::new(1);
        // One die alone, with 180 of its 260 units mapped, until only the block for garbage collection is left.
        while ftl.host_has_room(0) {
            let row = [0; 4].map(|_| rng.below(180) as u32);
            twin.host_row(&mut ftl, 0, &row);
        }
        assert_eq!(ftl.blocks.free(0), 1);
        reclaim.wake(&mut ftl, 0, MARKS);
        while twin.step(&mut ftl, &mut reclaim, 0) {
            twin.check(&ftl);
        }
        assert_eq!((ftl.blocks.free(0), reclaim.is_active()), (MARKS.stop, false));
        reclaim.wake(&mut ftl, 0, MARKS);
        assert!(!reclaim.is_active(), "there is enough room");
    }

    /// Returns the units programmed for each unit written, in thousandths, after many random writes.
    fn amplification(overprovisioning: u32) -> u64 {
        let logical = 1 << 15;
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 1,
            planes: 1,
            page_size: 4096,
            pages_per_block: 128,
            blocks_per_die: (logical * (100 + overprovisioning)).div_ceil(100 * 128),
        };
        let marks = Watermarks { start: 1, stop: 2 };
        let mut ftl = Ftl::new(geometry, logical);
        let mut writer = Writer::new(&ftl, marks);
        let mut rng = Rng::new(9);
        (0..logical).for_each(|unit| writer.write(&mut ftl, unit));
        let mut random = |n: u32| {
            (0..n).for_each(|_| writer.write(&mut ftl, rng.below(logical.into()) as u32));
            ftl.stats.programmed_units
        };
        let before = random(6 * logical);
        let written = 4 * logical;
        let programmed = random(written) - before;
        ftl.check();
        programmed * 1000 / u64::from(written)
    }

    /// The write amplification by theory. Under uniform writes to large blocks, greedy choice reclaims blocks in the
    /// order in which they were filled (Desnoyers 2012; Xiang and Kurkoski 2012). If a fraction `x` of a victim is
    /// valid, then `t (1 - x)` units are written for each `t` units of flash, so that `x = exp(-t / u (1 - x))` for `u`
    /// logical units, and `1 / (1 - x)` units are programmed for each.
    fn theory(used: f64) -> f64 {
        let x = (0..10_000).fold(0.5, |x: f64, _| (-used * (1.0 - x)).exp());
        1000.0 / (1.0 - x)
    }

    #[test]
    fn write_amplification_of_random_overwrites_is_what_theory_says() {
        for overprovisioning in [7, 10, 15, 28, 50] {
            // On average, two blocks are being filled or are free.
            let blocks = f64::from((1_u32 << 15) * (100 + overprovisioning)) / 12_800.0;
            let expected = theory((blocks.ceil() - 2.0) * 128.0 / f64::from(1 << 15));
            let model = amplification(overprovisioning) as f64;
            let deviation = (model / expected - 1.0) * 100.0;
            let line = format!(
                "| {overprovisioning} % | {:.3} | {:.3} | {deviation:+.1} % |",
                expected / 1000.0,
                model / 1000.0
            );
            println!("{line}");
            assert!(deviation.abs() < 8.0);
            let page = registry::page("flash").expect("it is registered");
            assert!(page.contains(&line), "not on the page: {line}");
        }
    }
}
