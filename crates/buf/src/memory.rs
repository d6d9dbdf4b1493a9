//! [`Memory`]: page-aligned memory that lives as long as a range of it does: a page of a block, or an [`Allocation`].
//! [`Lease`] ties a range to its buffer in a pool, and returns the buffer after the last range.
//!
//! Single pages, for short buffers, are cut from blocks of many: an allocator that keeps its records beside the memory,
//! as glibc's does, spends two pages on an aligned one. Allocators fill aligned memory with zeroes themselves, which
//! takes a fault for each page. Long memory is therefore allocated without alignment and aligned here: then it comes
//! from the system, which gives a page when it is first used.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Page-aligned memory, zero at creation.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// `None` for a page of a block.
    alone: Option<Allocation>,
}

// SAFETY: `Memory` owns its bytes but never reads or writes them. They are reached only through ranges, each of which
// holds a share, so the last range frees them, on whichever thread it is dropped.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives only the address of the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of `len` bytes, above 0, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "memory has at least one byte");
        if len <= PAGE {
            return Self { start: take_page(), len: PAGE, alone: None };
        }
        let alone = Allocation::new(len);
        Self { start: alone.start(), len: len.next_multiple_of(PAGE), alone: Some(alone) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes, a multiple of the page size.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Just behind the last byte.
    pub(crate) fn end(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.alone.is_none() {
            give_page(self.start);
        }
    }
}

/// The memory of a pool, and which buffers of it are free.
pub(crate) struct Shared {
    pub(crate) memory: Memory,
    /// The length of a buffer as handed out, in bytes.
    pub(crate) len: usize,
    /// Bytes from one buffer to the next.
    pub(crate) stride: usize,
    /// Taken from the end, so that the buffer used last, which the cache still has, is used next.
    pub(crate) free: Mutex<Vec<u32>>,
    /// The number of ranges of each buffer.
    pub(crate) ranges: Box<[AtomicU32]>,
}

/// A share in a buffer of a pool. The last one to be dropped gives the buffer back.
pub(crate) struct Lease {
    pub(crate) pool: Arc<Shared>,
    pub(crate) index: u32,
}

impl Lease {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool) && self.index == other.index
    }

    /// Just behind the last byte of the buffer.
    pub(crate) fn end(&self) -> *mut u8 {
        let begin = self.index as usize * self.pool.stride;
        self.pool.memory.start().as_ptr().wrapping_add(begin + self.pool.len)
    }

    /// Returns whether this is the only range of the buffer. Ranges are made from ranges, so if true, no other can
    /// appear. Acquires the writes that the drops of the other ranges released.
    pub(crate) fn is_only(&self) -> bool {
        self.ranges().load(Ordering::Acquire) == 1
    }

    fn ranges(&self) -> &AtomicU32 {
        &self.pool.ranges[self.index as usize]
    }
}

impl Clone for Lease {
    /// # Panics
    /// At 2^32 ranges of one buffer. Parts that are forgotten are never counted down, so safe code can reach that
    /// number; a count that wrapped around would give the buffer back while ranges of it exist.
    fn clone(&self) -> Self {
        // As in `Arc`: this share is counted already, so the count cannot reach 0 during this call.
        let more = |ranges: u32| ranges.checked_add(1);
        let counted = self.ranges().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.expect("fewer than 2^32 ranges of one buffer");
        Self { pool: Arc::clone(&self.pool), index: self.index }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Releases the accesses through this range and acquires those through the others: the list passes all of them
        // on to the next thread that takes the buffer.
        if self.ranges().fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut free = self.pool.free.lock().expect("no code panics while holding the list");
            // The list has room for every buffer.
            free.push(self.index);
        }
    }
}

/// The alignment of buffers, in bytes: at least the alignment that any disk and file system requires for direct I/O.
pub const PAGE: usize = 4096;

/// Bytes from which on memory is aligned here. Below, the page that this wastes counts for more.
const LONG: usize = 32 * PAGE;
/// An alignment that every allocator gives without extra work.
const ANY: usize = align_of::<usize>();

/// Page-aligned memory, zero at creation.
struct Allocation {
    start: NonNull<u8>,
    /// The first byte from the allocator, at `start` or less than a page before it.
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Allocation` owns its bytes but never reads or writes them. They are reached only through ranges, which end
// before it does, on whichever thread that is.
unsafe impl Send for Allocation {}
// SAFETY: as above; a shared reference gives only the address of the bytes.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates `len` bytes, above 0, rounded up to whole pages.
    fn new(len: usize) -> Self {
        assert!(len > 0, "an allocation has at least one byte");
        // Checked in every build: a length that wraps around would become a layout of no bytes.
        let whole = len.checked_next_multiple_of(PAGE);
        let whole = whole.filter(|whole| *whole <= isize::MAX as usize - PAGE);
        let len = whole.expect("a length that fits the address space");
        let (size, align) = if len < LONG { (len, PAGE) } else { (len + PAGE, ANY) };
        let layout = Layout::from_size_align(size, align).expect("it was checked above");
        // SAFETY: the layout's size is above 0: `len` is, and rounding up has not wrapped around.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let skip = base.as_ptr().addr().wrapping_neg() % PAGE;
        // SAFETY: `skip` is 0 where the allocation is aligned, and below a page, which is there in addition, elsewhere.
        let start = unsafe { base.add(skip) };
        Self { start, base, layout }
    }

    fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no range of it is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

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

/// A page of zeroes, to be returned by [`give_page`]. O(log blocks).
fn take_page() -> NonNull<u8> {
    let (page, is_used) = blocks().take();
    if is_used {
        // SAFETY: a page of a block, which no buffer has: its bit was free until now.
        unsafe { page.write_bytes(0, PAGE) };
    }
    page
}

/// Takes back a page that nothing refers to any more. O(log blocks).
fn give_page(page: NonNull<u8>) {
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
