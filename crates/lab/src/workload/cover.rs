//! The blocks of a region that a pass has not covered yet: fio's random map, for I/Os of different lengths.
//!
//! With one length, a [`Permutation`](super::Permutation) visits each block once and needs no memory. With several
//! lengths the next free block depends on all I/Os before, so there is a bit for each block. Above the bits are levels
//! of summaries: a bit there says that all 64 bits below are set. So the next free block is found in a few steps,
//! however full the map is.

/// log2 of the number of bits in a word.
const SHIFT: u32 = 6;
const WORD: u64 = 1 << SHIFT;

/// The covered blocks of a region.
#[derive(Clone, Debug)]
pub(super) struct Cover {
    blocks: u64,
    free: u64,
    /// The lowest level has a bit for each block, and each other level a bit for each word below. The last level has
    /// one word. Bits beyond the end are set.
    levels: Vec<Vec<u64>>,
}

impl Cover {
    /// The largest map, in blocks: 2 GiB of bits.
    pub(super) const MAX: u64 = 1 << 34;

    /// A map of `blocks` free blocks, at least one and at most [`MAX`](Self::MAX).
    pub(super) fn new(blocks: u64) -> Self {
        debug_assert!((1..=Self::MAX).contains(&blocks), "the caller bounds the map");
        let (mut levels, mut bits) = (Vec::new(), blocks);
        loop {
            let words = bits.div_ceil(WORD);
            levels.push(vec![0u64; words as usize]);
            if words == 1 {
                break;
            }
            bits = words;
        }
        let mut this = Self { blocks, free: blocks, levels };
        this.close_ends();
        this
    }

    /// Sets the bits beyond the end of each level.
    fn close_ends(&mut self) {
        let mut bits = self.blocks;
        for level in &mut self.levels {
            let used = bits % WORD;
            if used > 0
                && let Some(last) = level.last_mut()
            {
                *last |= u64::MAX << used;
            }
            bits = bits.div_ceil(WORD);
        }
    }

    /// Makes all blocks free again. O(blocks / 64).
    fn clear(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
        self.free = self.blocks;
        self.close_ends();
    }

    /// Makes all blocks free again, unless they are.
    pub(super) fn restart(&mut self) {
        if self.free < self.blocks {
            self.clear();
        }
    }

    /// Takes up to `most` contiguous blocks, from the first free one at or behind `from`, wrapping at the end; returns
    /// the first and their number, at least 1. Clears a map without free blocks first.
    pub(super) fn take(&mut self, from: u64, most: u64) -> (u64, u64) {
        if self.free == 0 {
            self.clear();
        }
        let first = self.next_free(from).or_else(|| self.next_free(0));
        let first = first.expect("a free block was counted");
        let mut taken = 0;
        while taken < most.max(1) && first + taken < self.blocks && self.is_free(first + taken) {
            self.cover(first + taken);
            taken += 1;
        }
        (first, taken)
    }

    fn is_free(&self, block: u64) -> bool {
        self.levels[0][(block >> SHIFT) as usize] >> (block % WORD) & 1 == 0
    }

    fn cover(&mut self, block: u64) {
        self.free -= 1;
        let mut at = block;
        for level in &mut self.levels {
            let word = &mut level[(at >> SHIFT) as usize];
            *word |= 1 << (at % WORD);
            if *word != u64::MAX {
                return;
            }
            at >>= SHIFT;
        }
    }

    /// The first free block at or behind `from`.
    fn next_free(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for height in 0..self.levels.len() {
            let index = (at >> SHIFT) as usize;
            let &word = self.levels[height].get(index)?;
            let open = !word & (u64::MAX << (at % WORD));
            if open != 0 {
                return Some(
                    self.descend(height, index as u64 * WORD + u64::from(open.trailing_zeros())),
                );
            }
            // The rest of this word is set; the search continues behind it, a level higher.
            at = (at >> SHIFT) + 1;
        }
        None
    }

    /// The first free block under bit `at` of level `height`, which is clear.
    fn descend(&self, height: usize, mut at: u64) -> u64 {
        for level in self.levels[..height].iter().rev() {
            at = at * WORD + u64::from(level[at as usize].trailing_ones());
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    /// A naive version of the map: a list of flags.
    fn naive(map: &mut [bool], from: usize, most: usize) -> (u64, u64) {
        if map.iter().all(|covered| *covered) {
            map.fill(false);
        }
        let free = |from: usize| (from..map.len()).find(|at| !map[*at]);
        let first = free(from).or_else(|| free(0)).expect("one is free");
        let mut taken = 0;
        while taken < most && first + taken < map.len() && !map[first + taken] {
            map[first + taken] = true;
            taken += 1;
        }
        (first as u64, taken as u64)
    }

    #[test]
    fn it_agrees_with_a_list_of_flags_over_several_passes() {
        for blocks in [1u64, 2, 63, 64, 65, 127, 4096, 4097, 5000] {
            let (mut cover, mut flags) = (Cover::new(blocks), vec![false; blocks as usize]);
            let mut rng = Rng::new(blocks);
            for _ in 0..3 * blocks {
                let (from, most) = (rng.below(blocks), 1 + rng.below(40));
                let expected = naive(&mut flags, from as usize, most as usize);
                assert_eq!(cover.take(from, most), expected, "{blocks} blocks");
            }
        }
    }

    #[test]
    fn the_last_free_block_of_many_is_found_from_anywhere() {
        let mut cover = Cover::new(300_000);
        assert_eq!(cover.take(0, 123_456), (0, 123_456));
        assert_eq!(cover.take(123_457, u64::MAX), (123_457, 176_543));
        assert_eq!(cover.take(299_999, 9), (123_456, 1));
        assert_eq!(cover.take(299_999, 9), (299_999, 1), "full, so it begins again");
    }
}
