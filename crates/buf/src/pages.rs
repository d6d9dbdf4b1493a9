//! Single pages for short buffers, cut from blocks of many: an allocator that keeps its records beside the memory, as glibc's
//! does, spends two pages on an aligned one. Longer buffers are separate allocations.

use crate::allocation::{Allocation, PAGE};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages of a block: one for each bit of a word.
const IN_BLOCK: usize = u64::BITS as usize;

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks { all: BTreeMap::new(), open: BTreeSet::new() });

struct Blocks {
    /// By their first addresses.
    all: BTreeMap<usize, Block>,
    /// Blocks with a free page. The lowest is used first, so that high ones become empty.
    open: BTreeSet<usize>,
}

struct Block {
    memory: Allocation,
    /// A bit for each free page.
    free: u64,
    /// A bit for each page that has been used, and may hold old data.
    used: u64,
}

/// A page of zeroes, to be returned by [`give`]. O(log blocks).
pub(crate) fn take() -> NonNull<u8> {
    let (page, is_used) = blocks().take();
    if is_used {
        // SAFETY: a page of a block, which no buffer has: its bit was free until now.
        unsafe { page.write_bytes(0, PAGE) };
    }
    page
}

/// Takes back a page that nothing refers to any more. O(log blocks).
pub(crate) fn give(page: NonNull<u8>) {
    let emptied = blocks().give(page);
    // Its memory is freed outside of the lock.
    drop(emptied);
}

fn blocks() -> MutexGuard<'static, Blocks> {
    // No step panics in between.
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Blocks {
    /// A free page, and whether it may hold old data.
    fn take(&mut self) -> (NonNull<u8>, bool) {
        let start = self.open.first().copied().unwrap_or_else(|| self.grow());
        let block = self.all.get_mut(&start).expect("an open block is one of all");
        let at = block.free.trailing_zeros();
        let bit = 1 << at;
        let is_used = block.used & bit != 0;
        (block.free, block.used) = (block.free & !bit, block.used | bit);
        if block.free == 0 {
            self.open.remove(&start);
        }
        // SAFETY: `at` is below 64, since the block has a free page, so the sum is within its memory.
        (unsafe { block.memory.start().add(at as usize * PAGE) }, is_used)
    }

    fn grow(&mut self) -> usize {
        let memory = Allocation::new(IN_BLOCK * PAGE);
        let start = memory.start().addr().get();
        self.all.insert(start, Block { memory, free: u64::MAX, used: 0 });
        self.open.insert(start);
        start
    }

    /// Returns the block of the page if all of its pages are free and another block has free pages.
    fn give(&mut self, page: NonNull<u8>) -> Option<Block> {
        let page = page.addr().get();
        let (&start, block) = self.all.range_mut(..=page).next_back().expect("it is in a block");
        block.free |= 1 << ((page - start) / PAGE);
        self.open.insert(start);
        if block.free != u64::MAX || self.open.len() == 1 {
            return None;
        }
        self.open.remove(&start);
        self.all.remove(&start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Blocks {
        Blocks { all: BTreeMap::new(), open: BTreeSet::new() }
    }

    #[test]
    fn blocks_come_and_go_with_their_pages() {
        let mut blocks = none();
        let mut pages = Vec::from_iter((0..3 * IN_BLOCK).map(|_| blocks.take().0));
        assert_eq!((blocks.all.len(), blocks.open.len()), (3, 0));
        let places = BTreeSet::from_iter(pages.iter().map(|page| page.addr().get()));
        assert_eq!(places.len(), pages.len(), "each is another one");
        assert!(places.iter().all(|place| place % PAGE == 0));
        let kept = pages.pop().expect("there are many");
        let freed = pages.into_iter().filter_map(|page| blocks.give(page)).count();
        assert_eq!((freed, blocks.all.len()), (1, 2), "a whole block stays in reserve");
        assert!(blocks.give(kept).is_some() && blocks.all.len() == 1);
    }

    #[test]
    fn a_page_that_had_data_is_known() {
        let mut blocks = none();
        let (page, is_used) = blocks.take();
        assert!(!is_used);
        blocks.give(page);
        assert_eq!(blocks.take(), (page, true));
    }
}
