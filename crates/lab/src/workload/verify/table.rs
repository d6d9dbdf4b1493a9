//! The knowledge about each block of a region: its latest write, and whether an I/O is in flight to it.
//!
//! The contents of blocks and their layout are not here.

use std::ops::Range;

/// An I/O in flight touches the block.
const BUSY: u32 = 1 << 31;
/// The block holds its latest generation. Not set if it was never written, was trimmed, or a write of it failed.
const KNOWN: u32 = 1 << 30;
/// The block was written and not read back since.
const DUE: u32 = 1 << 29;
/// The rest is the generation: the number of writes, from 1. A trim does not reset it, so that data from before the
/// trim is never taken for the next write.
const GENERATION: u32 = DUE - 1;

/// Blocks by number. Four bytes each, which the operating system hands out when they are first touched.
#[derive(Clone, Debug)]
pub(super) struct Table(Box<[u32]>);

impl Table {
    /// `blocks` blocks with unknown contents.
    pub(super) fn new(blocks: usize) -> Self {
        Self(vec![0; blocks].into_boxed_slice())
    }

    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no I/O touches any of `blocks`. O(blocks), as the other methods.
    pub(super) fn is_idle(&self, blocks: Range<usize>) -> bool {
        self.0[blocks].iter().all(|entry| entry & BUSY == 0)
    }

    /// An I/O that does not write touches `blocks` from now on. No other I/O may touch them.
    pub(super) fn claim(&mut self, blocks: Range<usize>) {
        for entry in &mut self.0[blocks] {
            debug_assert!(*entry & BUSY == 0, "two I/Os on one block");
            *entry |= BUSY;
        }
    }

    /// As [`claim`](Self::claim), for a write: the next generation of each of `blocks` is on its way.
    pub(super) fn claim_write(&mut self, blocks: Range<usize>) {
        self.claim(blocks.clone());
        for entry in &mut self.0[blocks] {
            // A generation is never 0; it wraps after half a billion writes of one block.
            let next = (*entry & GENERATION) % GENERATION + 1;
            *entry = *entry & !GENERATION | next;
        }
    }

    /// The I/O has ended; the knowledge about the blocks is unchanged.
    pub(super) fn release(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry &= !BUSY);
    }

    /// The write has ended; `blocks` hold their latest generation.
    pub(super) fn written(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry = *entry & !BUSY | KNOWN | DUE);
    }

    /// The I/O has ended; the contents of `blocks` are unknown.
    pub(super) fn forget(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry &= GENERATION);
    }

    /// The number of writes of block `block`, the write in flight included.
    pub(super) fn generation(&self, block: usize) -> u32 {
        self.0[block] & GENERATION
    }

    /// The generation that block `block` holds, if it is known.
    pub(super) fn known(&self, block: usize) -> Option<u32> {
        (self.0[block] & KNOWN != 0).then(|| self.generation(block))
    }

    /// The generation that each block holds; 0 where it is not known, or an I/O in flight may change it.
    pub(super) fn generations(&self) -> impl Iterator<Item = u32> {
        let held = |entry: &u32| entry & (BUSY | KNOWN) == KNOWN;
        self.0.iter().map(move |entry| if held(entry) { entry & GENERATION } else { 0 })
    }

    /// Blocks that hold these generations; 0 is not known.
    pub(super) fn of(generations: impl Iterator<Item = u32>) -> Self {
        let entry = |generation: u32| match generation & GENERATION {
            0 => 0,
            generation => generation | KNOWN | DUE,
        };
        Self(generations.map(entry).collect())
    }

    /// The next blocks from `from` on that are known and due to be read back, at most `most` of them, without a gap.
    /// They are not due any more.
    pub(super) fn take_due(&mut self, from: usize, most: usize) -> Option<Range<usize>> {
        let is_due = |entry: &u32| entry & (KNOWN | DUE) == KNOWN | DUE;
        let start = from + self.0.get(from..)?.iter().position(is_due)?;
        let len = self.0[start..].iter().take(most).take_while(|entry| is_due(entry)).count();
        self.0[start..start + len].iter_mut().for_each(|entry| *entry &= !DUE);
        Some(start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_from_the_end_of_a_write_to_the_next_trim() {
        let mut table = Table::new(4);
        assert_eq!((table.known(1), table.generation(1)), (None, 0));
        table.claim_write(1..3);
        assert_eq!((table.known(1), table.generation(1)), (None, 1), "not before it is over");
        table.written(1..3);
        assert_eq!((table.known(0), table.known(1), table.known(2)), (None, Some(1), Some(1)));
        table.claim(2..4);
        table.forget(2..4);
        assert_eq!((table.known(1), table.known(2), table.known(3)), (Some(1), None, None));
        table.claim_write(2..3);
        table.written(2..3);
        assert_eq!(table.known(2), Some(2), "what was trimmed is not written again");
    }

    #[test]
    fn a_read_changes_nothing_and_keeps_others_away() {
        let mut table = Table::new(8);
        table.claim_write(0..4);
        table.written(0..4);
        table.claim(2..6);
        assert!(table.is_idle(0..2) && table.is_idle(6..8));
        assert!(!table.is_idle(0..3) && !table.is_idle(5..8) && !table.is_idle(0..8));
        table.release(2..6);
        assert!(table.is_idle(0..8));
        assert_eq!((table.known(3), table.known(4)), (Some(1), None));
    }

    #[test]
    fn a_failed_overwrite_leaves_nothing_known_and_no_generation_twice() {
        let mut table = Table::new(1);
        table.claim_write(0..1);
        table.written(0..1);
        table.claim_write(0..1);
        table.forget(0..1);
        assert_eq!(table.known(0), None);
        table.claim_write(0..1);
        table.written(0..1);
        assert_eq!(table.known(0), Some(3));
    }

    #[test]
    fn generations_survive_and_what_is_in_flight_is_not_known() {
        let mut table = Table::new(4);
        table.claim_write(0..3);
        table.written(0..3);
        table.claim_write(1..2);
        table.written(1..2);
        table.claim_write(2..3);
        assert_eq!(table.generations().collect::<Vec<_>>(), [1, 2, 0, 0]);
        let again = Table::of(table.generations());
        let known = [0, 1, 2, 3].map(|block| again.known(block));
        assert_eq!(known, [Some(1), Some(2), None, None]);
    }

    #[test]
    fn a_generation_comes_round_to_one() {
        let mut table = Table(vec![GENERATION | KNOWN].into());
        table.claim_write(0..1);
        table.written(0..1);
        assert_eq!(table.known(0), Some(1));
    }

    #[test]
    fn blocks_are_due_once_after_each_write_in_portions_without_gaps() {
        let mut table = Table::new(12);
        for blocks in [1..4, 6..7, 7..12] {
            table.claim_write(blocks.clone());
            table.written(blocks);
        }
        let (mut at, mut found) = (0, Vec::new());
        while let Some(next) = table.take_due(at, 4) {
            at = next.end;
            found.push(next);
        }
        assert_eq!(found, [1..4, 6..10, 10..12]);
        assert_eq!((table.take_due(99, 4), table.take_due(0, 4)), (None, None));
        table.claim_write(3..4);
        table.written(3..4);
        table.claim_write(6..7);
        table.forget(6..7);
        assert_eq!((table.take_due(0, 4), table.take_due(0, 4)), (Some(3..4), None));
    }
}
