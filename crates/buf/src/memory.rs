//! [`Memory`]: page-aligned memory that lives as long as a range of it does: a page of a block, or an allocation.
//! [`Lease`] ties a range to its buffer in a pool, and returns the buffer after the last range.

use crate::allocation::{Allocation, PAGE};
use crate::pages;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

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
            return Self { start: pages::take(), len: PAGE, alone: None };
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
            pages::give(self.start);
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
