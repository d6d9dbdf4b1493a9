//! The flash translation layer without time: keeps the mapping, the blocks, and the write positions consistent.
//!
//! The mapping consists of two flat tables with entries of 32 bits, so that a device of N GiB costs slightly more than
//! 2 N MiB: the place of each logical unit (in flash, in the write buffer, or nowhere), and the logical unit written
//! last to each unit of flash. Every change goes through [`Ftl`], so that the counts of valid units in [`Blocks`]
//! always agree with it. `backend.rs` decides when rows are programmed and blocks are reclaimed; `reclaim.rs` decides
//! which units are moved.
//!
//! [`Blocks`] are those of all dies: the free ones, the number of valid units in each, and the cheapest block to
//! reclaim. Closed blocks are in lists by their number of valid units, one set of lists for each die, so that the
//! greedy choice needs no search and the invalidation of a unit costs O(1). Free blocks are in the order in which they
//! were erased.

use super::geometry::Geometry;

/// No block.
const NONE: u32 = u32::MAX;

/// The source of a write. Each stream has its own open block on every die, so that cold data does not mix with hot
/// data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// The host.
    Host,
    /// Garbage collection.
    Reclaim,
}

/// The write position of a stream on a die.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// The open block; `NONE` if the next row needs a new one.
    block: u32,
    /// The next row of the block; past its end while the last row is being programmed.
    page: u32,
}

const NOWHERE: Point = Point { block: NONE, page: 0 };

/// Counters of the units that a device has written and moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlashStats {
    /// Units that the host wrote.
    pub host_units: u64,
    /// Units written by the host that replaced older contents still in the buffer.
    pub absorbed_units: u64,
    /// Units programmed: those of the host, moved units, and padding.
    pub programmed_units: u64,
    /// Programmed units that garbage collection moved.
    pub moved_units: u64,
    /// Programmed units that padded incomplete rows.
    pub padding_units: u64,
    /// Blocks erased.
    pub erased_blocks: u64,
    /// Units of flash that hold the newest contents of a logical unit.
    pub valid_units: u64,
    /// Times that a program or an erase was interrupted for reads.
    pub suspensions: u64,
    /// The number of repeated page reads.
    pub retries: u64,
}

impl FlashStats {
    /// Returns the units programmed for each unit written by the host, in thousandths; 0 if it wrote none.
    #[must_use]
    pub fn write_amplification_permille(&self) -> u64 {
        (self.programmed_units * 1000).checked_div(self.host_units).unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Ftl {
    pub(super) geometry: Geometry,
    mapping: Mapping,
    pub(super) blocks: Blocks,
    /// By die.
    host: Vec<Point>,
    reclaim: Vec<Point>,
    pub(super) stats: FlashStats,
}

impl Ftl {
    /// Creates a device of `logical` unwritten units.
    pub(super) fn new(geometry: Geometry, logical: u32) -> Self {
        let flash = u32::try_from(geometry.units()).expect("checked when parameters were read");
        Self {
            geometry,
            mapping: Mapping::new(logical, flash),
            blocks: Blocks::new(&geometry),
            host: vec![NOWHERE; geometry.dies() as usize],
            reclaim: vec![NOWHERE; geometry.dies() as usize],
            stats: FlashStats::default(),
        }
    }

    pub(super) fn logical(&self) -> u32 {
        self.mapping.logical()
    }

    pub(super) fn find(&self, logical: u32) -> Place {
        self.mapping.find(logical)
    }

    /// The logical unit whose newest contents are in `unit` of flash, if there is one.
    pub(super) fn owner(&self, unit: u32) -> Option<u32> {
        self.mapping.owner(unit)
    }

    /// Moves `logical` to a slot of the buffer, or to nowhere. Returns its previous place.
    pub(super) fn supersede(&mut self, logical: u32, place: Place) -> Place {
        debug_assert!(!matches!(place, Place::Flash(_)), "flash is written by rows");
        let before = self.mapping.set(logical, place);
        if let Place::Flash(unit) = before {
            self.blocks.lose(self.geometry.block_of(unit));
            self.stats.valid_units -= 1;
        }
        before
    }

    /// Returns whether the host can write a row on `die` without taking the block that garbage collection needs.
    pub(super) fn host_has_room(&self, die: u32) -> bool {
        self.has_begun(die, Stream::Host) || self.blocks.free(die) > 1
    }

    /// Returns whether `stream` has an open block on `die` with rows that are not written.
    pub(super) fn has_begun(&self, die: u32, stream: Stream) -> bool {
        let points = match stream {
            Stream::Host => &self.host,
            Stream::Reclaim => &self.reclaim,
        };
        points[die as usize].block != NONE
    }

    fn point(&mut self, die: u32, stream: Stream) -> &mut Point {
        match stream {
            Stream::Host => &mut self.host[die as usize],
            Stream::Reclaim => &mut self.reclaim[die as usize],
        }
    }

    /// Begins the next row of `stream` on `die`, and returns its first unit. The stream programs no other row on this
    /// die until [`finish_row`](Self::finish_row).
    ///
    /// # Panics
    /// If the row needs a new block and none is free.
    pub(super) fn begin_row(&mut self, die: u32, stream: Stream) -> u32 {
        if self.point(die, stream).block == NONE {
            let block =
                self.blocks.take(die).expect("whoever begins a row has seen to room for it");
            *self.point(die, stream) = Point { block, page: 0 };
        }
        let point = self.point(die, stream);
        let Point { block, page } = *point;
        point.page += 1;
        self.geometry.first_unit(block, page)
    }

    /// Moves the contents of `logical`, which were read from `expected`, to `unit` of flash, unless newer contents have
    /// replaced them since.
    pub(super) fn commit(&mut self, logical: u32, expected: Place, unit: u32) {
        if self.mapping.find(logical) != expected {
            return;
        }
        self.mapping.set(logical, Place::Flash(unit));
        self.blocks.gain(self.geometry.block_of(unit));
        match expected {
            Place::Flash(from) => self.blocks.lose(self.geometry.block_of(from)),
            Place::Buffer(_) | Place::Nowhere => self.stats.valid_units += 1,
        }
    }

    /// Ends the row begun last; `used` of its units are data and the others are padding.
    pub(super) fn finish_row(&mut self, die: u32, stream: Stream, used: u32) {
        let (row, pages) = (self.geometry.row_units(), self.geometry.pages_per_block);
        self.stats.programmed_units += u64::from(row);
        self.stats.padding_units += u64::from(row - used);
        if stream == Stream::Reclaim {
            self.stats.moved_units += u64::from(used);
        }
        let point = self.point(die, stream);
        if point.page == pages {
            let block = point.block;
            *point = NOWHERE;
            self.blocks.close(block);
        }
    }

    /// Makes an empty block free after its erasure.
    pub(super) fn erase(&mut self, block: u32) {
        self.blocks.erase(block);
        self.stats.erased_blocks += 1;
    }
}

#[cfg(test)]
impl Ftl {
    /// Checks that no two logical units share a place, and that every block counts exactly the valid units in it.
    pub(super) fn check(&self) {
        let geometry = &self.geometry;
        let mut valid = vec![0; geometry.blocks() as usize];
        for logical in 0..self.logical() {
            if let Place::Flash(unit) = self.find(logical) {
                assert_eq!(self.owner(unit), Some(logical), "two units in one place");
                valid[geometry.block_of(unit) as usize] += 1;
            }
        }
        let sum: u32 = valid.iter().sum();
        assert_eq!(u64::from(sum), self.stats.valid_units);
        let owned = (0..geometry.units() as u32).filter(|unit| self.owner(*unit).is_some());
        assert_eq!(owned.count() as u32, sum, "a unit of flash is owned by what is elsewhere");
        for (block, expected) in (0..).zip(valid) {
            assert_eq!(self.blocks.valid(block), expected, "block {block}");
        }
    }
}

/// No unit.
const ABSENT: u32 = u32::MAX;

/// The place of a logical unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The unit was never written, or has been discarded since.
    Nowhere,
    /// In this unit of flash.
    Flash(u32),
    /// In this slot of the write buffer.
    Buffer(u32),
}

#[derive(Clone, Debug)]
struct Mapping {
    /// By logical unit: a unit of flash, a slot of the buffer (encoded as a greater number), or `ABSENT`.
    places: Vec<u32>,
    /// By unit of flash: the logical unit last written there, or `ABSENT`.
    owners: Vec<u32>,
}

impl Mapping {
    /// Creates a table of `logical` unmapped units, and `flash` empty units.
    pub(super) fn new(logical: u32, flash: u32) -> Self {
        Self { places: vec![ABSENT; logical as usize], owners: vec![ABSENT; flash as usize] }
    }

    /// The number of logical units.
    pub(super) fn logical(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) fn find(&self, logical: u32) -> Place {
        let place = self.places[logical as usize];
        let flash = self.owners.len() as u32;
        match place {
            ABSENT => Place::Nowhere,
            unit if unit < flash => Place::Flash(unit),
            slot => Place::Buffer(slot - flash),
        }
    }

    /// Sets the place of `logical`. Returns its previous place.
    pub(super) fn set(&mut self, logical: u32, place: Place) -> Place {
        let before = self.find(logical);
        self.places[logical as usize] = match place {
            Place::Nowhere => ABSENT,
            Place::Flash(unit) => {
                self.owners[unit as usize] = logical;
                unit
            }
            Place::Buffer(slot) => self.owners.len() as u32 + slot,
        };
        before
    }

    /// The logical unit whose newest contents are in `unit` of flash, if there is one.
    pub(super) fn owner(&self, unit: u32) -> Option<u32> {
        let logical = self.owners[unit as usize];
        (logical != ABSENT && self.places[logical as usize] == unit).then_some(logical)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Erased, waiting to be written.
    Free,
    /// Being written, or being reclaimed.
    Open,
    /// Full, waiting to be reclaimed.
    Closed,
}

/// The two ends of a list of blocks.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE };

#[derive(Clone, Debug)]
pub(super) struct Blocks {
    per_die: u32,
    /// Units of a block.
    units: u32,
    valid: Vec<u32>,
    state: Vec<State>,
    /// The neighbours of each block in its list.
    next: Vec<u32>,
    previous: Vec<u32>,
    /// By die.
    free: Vec<List>,
    free_count: Vec<u32>,
    /// By die and number of valid units.
    closed: Vec<List>,
    /// By die: a lower bound of the valid units of its closed blocks.
    least: Vec<u32>,
}

impl Blocks {
    /// All blocks of all dies, free.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let (all, dies) = (geometry.blocks() as usize, geometry.dies() as usize);
        let lists = dies * (geometry.block_units() as usize + 1);
        let mut blocks = Self {
            per_die: geometry.blocks_per_die,
            units: geometry.block_units(),
            valid: vec![0; all],
            state: vec![State::Open; all],
            next: vec![NONE; all],
            previous: vec![NONE; all],
            free: vec![EMPTY; dies],
            free_count: vec![0; dies],
            closed: vec![EMPTY; lists],
            least: vec![geometry.block_units(); dies],
        };
        (0..geometry.blocks()).for_each(|block| blocks.erase(block));
        blocks
    }

    fn die_of(&self, block: u32) -> u32 {
        block / self.per_die
    }

    fn list(&self, block: u32) -> usize {
        let valid = self.valid[block as usize];
        (self.die_of(block) * (self.units + 1) + valid) as usize
    }

    /// Returns the number of free blocks of a die.
    pub(super) fn free(&self, die: u32) -> u32 {
        self.free_count[die as usize]
    }

    /// Returns the number of valid units of a block.
    pub(super) fn valid(&self, block: u32) -> u32 {
        self.valid[block as usize]
    }

    /// Takes the free block that was erased first, to write to it.
    pub(super) fn take(&mut self, die: u32) -> Option<u32> {
        let block = self.free[die as usize].head;
        if block == NONE {
            return None;
        }
        let list = &mut self.free[die as usize];
        list.head = self.next[block as usize];
        if list.head == NONE {
            list.tail = NONE;
        }
        self.free_count[die as usize] -= 1;
        self.state[block as usize] = State::Open;
        Some(block)
    }

    /// Makes a block free after its erasure.
    ///
    /// # Panics
    /// If the block still holds valid units, or is not open.
    pub(super) fn erase(&mut self, block: u32) {
        let at = block as usize;
        assert!(self.valid[at] == 0, "block {block} holds {} valid units", self.valid[at]);
        assert!(self.state[at] == State::Open, "block {block} is {:?}", self.state[at]);
        self.state[at] = State::Free;
        let die = self.die_of(block) as usize;
        self.next[at] = NONE;
        let list = &mut self.free[die];
        match list.tail {
            NONE => list.head = block,
            last => self.next[last as usize] = block,
        }
        list.tail = block;
        self.free_count[die] += 1;
    }

    /// Closes a full block, which may be reclaimed from now on.
    pub(super) fn close(&mut self, block: u32) {
        debug_assert!(self.state[block as usize] == State::Open, "only an open block is closed");
        self.state[block as usize] = State::Closed;
        self.enter(block);
    }

    /// Takes the closed block of `die` with the fewest valid units, to be reclaimed. Returns `None` if all units of
    /// every closed block are valid, so that reclaiming would gain nothing.
    pub(super) fn victim(&mut self, die: u32) -> Option<u32> {
        let block = self.cheapest(die)?;
        self.leave(block);
        self.state[block as usize] = State::Open;
        Some(block)
    }

    /// Returns whether `die` has a block that is worth reclaiming.
    pub(super) fn has_victim(&mut self, die: u32) -> bool {
        self.cheapest(die).is_some()
    }

    fn cheapest(&mut self, die: u32) -> Option<u32> {
        let from = die * (self.units + 1);
        while self.least[die as usize] < self.units {
            let list = self.closed[(from + self.least[die as usize]) as usize];
            if list.head != NONE {
                return Some(list.head);
            }
            self.least[die as usize] += 1;
        }
        None
    }

    /// Counts another valid unit of `block`.
    fn gain(&mut self, block: u32) {
        debug_assert!(self.state[block as usize] == State::Open, "only an open block is written");
        self.valid[block as usize] += 1;
    }

    /// Counts one valid unit of `block` less.
    pub(super) fn lose(&mut self, block: u32) {
        let closed = self.state[block as usize] == State::Closed;
        if closed {
            self.leave(block);
        }
        self.valid[block as usize] -= 1;
        if closed {
            self.enter(block);
        }
    }

    /// Appends a closed block to the list for its number of valid units.
    fn enter(&mut self, block: u32) {
        let list = self.list(block);
        let last = self.closed[list].tail;
        (self.previous[block as usize], self.next[block as usize]) = (last, NONE);
        match last {
            NONE => self.closed[list].head = block,
            last => self.next[last as usize] = block,
        }
        self.closed[list].tail = block;
        let (die, valid) = (self.die_of(block) as usize, self.valid[block as usize]);
        self.least[die] = self.least[die].min(valid);
    }

    fn leave(&mut self, block: u32) {
        let list = self.list(block);
        let (before, behind) = (self.previous[block as usize], self.next[block as usize]);
        match before {
            NONE => self.closed[list].head = behind,
            before => self.next[before as usize] = behind,
        }
        match behind {
            NONE => self.closed[list].tail = before,
            behind => self.previous[behind as usize] = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    #[test]
    fn a_unit_of_flash_is_owned_until_its_contents_move() {
        let mut mapping = Mapping::new(4, 10);
        assert_eq!(mapping.set(3, Place::Flash(7)), Place::Nowhere);
        assert_eq!((mapping.find(3), mapping.owner(7)), (Place::Flash(7), Some(3)));
        assert_eq!(mapping.set(3, Place::Buffer(5)), Place::Flash(7));
        assert_eq!((mapping.find(3), mapping.owner(7)), (Place::Buffer(5), None));
        assert_eq!(mapping.set(3, Place::Flash(8)), Place::Buffer(5));
        assert_eq!(mapping.set(2, Place::Flash(7)), Place::Nowhere);
        assert_eq!((mapping.owner(7), mapping.owner(8)), (Some(2), Some(3)));
        assert_eq!(mapping.set(2, Place::Nowhere), Place::Flash(7));
        assert_eq!((mapping.find(2), mapping.owner(7)), (Place::Nowhere, None));
    }

    const GEOMETRY: Geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes: 1,
        page_size: 4096,
        pages_per_block: 6,
        blocks_per_die: 10,
    };

    #[test]
    fn the_victim_is_always_one_with_the_fewest_valid_units() {
        let mut rng = Rng::new(11);
        let mut blocks = Blocks::new(&GEOMETRY);
        let mut closed: Vec<u32> = Vec::new();
        for _ in 0..20_000 {
            let die = rng.below(2) as u32;
            if rng.chance(1, 3)
                && let Some(block) = blocks.take(die)
            {
                (0..rng.below(7)).for_each(|_| blocks.gain(block));
                blocks.close(block);
                closed.push(block);
            }
            if !closed.is_empty() {
                let block = closed[rng.below(closed.len() as u64) as usize];
                if blocks.valid(block) > 0 {
                    blocks.lose(block);
                }
            }
            if rng.chance(1, 4) {
                let on_die = closed.iter().filter(|block| **block / 10 == die);
                let least = on_die.map(|block| blocks.valid(*block)).min();
                let expected = least.filter(|valid| *valid < 6);
                assert_eq!(blocks.has_victim(die), expected.is_some());
                let victim = blocks.victim(die);
                assert_eq!(victim.map(|block| blocks.valid(block)), expected);
                if let Some(block) = victim {
                    closed.retain(|other| *other != block);
                    (0..blocks.valid(block)).for_each(|_| blocks.lose(block));
                    blocks.erase(block);
                }
            }
            let held = closed.iter().filter(|block| **block / 10 == die).count() as u32;
            assert_eq!(blocks.free(die) + held, 10);
        }
    }

    #[test]
    fn free_blocks_are_taken_in_the_order_in_which_they_were_erased() {
        let mut blocks = Blocks::new(&GEOMETRY);
        let taken = [0, 1, 2].map(|_| blocks.take(1).unwrap());
        assert_eq!(taken, [10, 11, 12]);
        [11, 10].into_iter().for_each(|block| blocks.erase(block));
        let taken = Vec::from_iter(std::iter::from_fn(|| blocks.take(1)));
        assert_eq!(taken, [13, 14, 15, 16, 17, 18, 19, 11, 10]);
    }

    #[test]
    #[should_panic(expected = "holds 1 valid units")]
    fn what_holds_something_is_not_erased() {
        let mut blocks = Blocks::new(&GEOMETRY);
        let block = blocks.take(0).unwrap();
        blocks.gain(block);
        blocks.erase(block);
    }
}
