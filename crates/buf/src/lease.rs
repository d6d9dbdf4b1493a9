//! [`Lease`]: ties a range to its buffer in a pool, and gives the buffer back behind the last range.

use crate::memory::Memory;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

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
