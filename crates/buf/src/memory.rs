//! [`Memory`]: page-aligned memory, which ranges of it keep alive together; and [`Lease`], which ties a range to its
//! buffer in a pool, and gives the buffer back behind the last range.
//!
//! Allocators fill aligned memory with zeroes themselves, which takes a fault for each page. Long memory is therefore
//! allocated without alignment and aligned here: then it comes from the system, which gives a page when it is first
//! used.

use crate::pages;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The alignment of buffers, in bytes: at least the alignment that any disk and file system requires for direct I/O.
pub const PAGE: usize = 4096;

/// Bytes from which on memory is aligned here. Below, the page that this wastes counts for more.
const LONG: usize = 32 * PAGE;
/// An alignment that every allocator gives without extra work.
const ANY: usize = align_of::<usize>();

/// Page-aligned memory, zero at creation.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// The allocation, which `start` and `len` lie within; `None` of a page among others.
    alone: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: `Memory` owns its bytes but never reads or writes them. They are reached only through ranges, each of which
// holds a share, so that they are freed after the last range, on whichever thread that one ends.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives only the address of the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` bytes, above 0, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "an allocation has at least one byte");
        // Checked in every build: a length that wraps around would become a layout of no bytes.
        let whole = len.checked_next_multiple_of(PAGE);
        let whole = whole.filter(|whole| *whole <= isize::MAX as usize - PAGE);
        let len = whole.expect("a length that fits the address space");
        if len == PAGE {
            return Self { start: pages::take(), len, alone: None };
        }
        let (size, align) = if len < LONG { (len, PAGE) } else { (len + PAGE, ANY) };
        let layout = Layout::from_size_align(size, align).expect("it was checked above");
        // SAFETY: the layout's size is above 0: `len` is, and rounding up has not wrapped around.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let skip = base.as_ptr().addr().wrapping_neg() % PAGE;
        // SAFETY: `skip` is 0 where the allocation is aligned, and below a page, which is there in addition, elsewhere.
        let start = unsafe { base.add(skip) };
        Self { start, len, alone: Some((base, layout)) }
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
        match self.alone {
            // SAFETY: allocated in `new` with this layout, and every range of it has an `Arc` to it.
            Some((base, layout)) => unsafe { dealloc(base.as_ptr(), layout) },
            None => pages::give(self.start),
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
