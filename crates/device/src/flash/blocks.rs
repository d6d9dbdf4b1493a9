//! The blocks of all dies: the free ones, the number of valid units in each, and the cheapest block to reclaim.
//!
//! Closed blocks are in lists by their number of valid units, one set of lists for each die, so that the greedy choice
//! needs no search and the invalidation of a unit costs O(1). Free blocks are in the order in which they were erased.
//! The contents of blocks are in `ftl.rs`.

use super::geometry::Geometry;

/// No block.
const NONE: u32 = u32::MAX;

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
    pub(super) fn gain(&mut self, block: u32) {
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
