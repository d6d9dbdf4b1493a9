//! [`BufferPool`]: one allocation, divided into equal buffers that are handed out and return when they are dropped.
//! Taking a buffer allocates nothing, and a device can have the kernel map the whole pool in advance.

use crate::aligned::AlignedBuf;
use crate::aligned::{Lease, Memory, PAGE, Shared};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Buffers of one size in one piece of memory. Cheap to clone; all clones are the same pool.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

impl BufferPool {
    /// `count` buffers of `len` bytes each, all zeroes; both above 0. Each begins on a page of its own, which costs
    /// up to a page per buffer if `len` is not a multiple of [`PAGE`].
    ///
    /// # Panics
    /// If either is 0, or there is not that much memory.
    #[must_use]
    pub fn new(count: u32, len: usize) -> Self {
        assert!(count > 0 && len > 0, "a pool of {count} buffers of {len} bytes holds nothing");
        let stride = len.checked_next_multiple_of(PAGE);
        let bytes = stride.and_then(|stride| stride.checked_mul(count as usize));
        let (stride, bytes) = stride.zip(bytes).expect("a pool fits the address space");
        Self(Arc::new(Shared {
            memory: Memory::new(bytes),
            len,
            stride,
            free: Mutex::new((0..count).rev().collect()),
            ranges: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }))
    }

    /// Takes a buffer, with its last contents; `None` if none is free.
    #[must_use]
    pub fn take(&self) -> Option<AlignedBuf> {
        let index = self.0.free.lock().expect("no code panics while holding the list").pop()?;
        // The buffer was free, so no range of it exists. The lock has made earlier writes to it visible.
        self.0.ranges[index as usize].store(1, Ordering::Relaxed);
        // SAFETY: there are `count` strides in the memory, and `index` is below that.
        let start = unsafe { self.0.memory.start().add(index as usize * self.0.stride) };
        let lease = Lease { pool: Arc::clone(&self.0), index };
        Some(AlignedBuf::leased(start, self.0.len, lease))
    }

    /// A buffer of `len` bytes: from the pool, with its last contents, if they fit and one is free; otherwise in
    /// memory of its own, which is the only case that allocates.
    #[must_use]
    pub fn take_or_new(&self, len: usize) -> AlignedBuf {
        let fits = (1..=self.buffer_len()).contains(&len);
        let Some(mut buf) = fits.then(|| self.take()).flatten() else {
            return AlignedBuf::new(len);
        };
        buf.set_len(len);
        buf
    }

    /// Bytes in each buffer.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.0.len
    }

    /// The number of free buffers.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free.lock().expect("no code panics while holding the list").len()
    }

    /// The address and length of the whole pool. Valid as long as there is a clone of the pool.
    #[must_use]
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.memory.start(), self.0.memory.len())
    }

    /// Returns whether both are the same pool.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("count", &self.0.ranges.len())
            .field("len", &self.0.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Payload;

    /// The address of its range.
    fn place(buf: &AlignedBuf) -> usize {
        buf.ranges().map(|range| range.cast::<u8>() as usize).sum()
    }

    #[test]
    fn buffers_come_back_when_they_are_dropped_the_last_one_first() {
        let pool = BufferPool::new(2, 512);
        let (one, two) = (pool.take().expect("free"), pool.take().expect("free"));
        assert!(pool.take().is_none() && pool.free() == 0);
        let places = [&one, &two].map(place);
        assert_eq!(places[1] - places[0], PAGE, "each has a page of its own");
        drop(one);
        let again = pool.take().expect("it is back");
        assert_eq!((place(&again), again.len()), (places[0], 512));
    }

    #[test]
    fn what_the_pool_does_not_have_is_allocated() {
        let pool = BufferPool::new(1, 512);
        let (none, long) = (pool.take_or_new(0), pool.take_or_new(513));
        assert_eq!((pool.free(), none.len(), long.len()), (1, 0, 513));
        let (first, second) = (pool.take_or_new(7), pool.take_or_new(512));
        assert_eq!((pool.free(), first.len(), second.len()), (0, 7, 512));
        drop((long, second));
        assert_eq!(pool.free(), 0, "neither is of the pool");
        drop(first);
        assert_eq!(pool.take_or_new(512).len(), 512, "as long as the buffer, not as it was last");
    }

    #[test]
    fn a_divided_buffer_comes_back_with_its_last_part() {
        let pool = BufferPool::new(1, PAGE);
        let mut head = pool.take().expect("free");
        let mut tail = head.split_off(512).expect("it can be divided");
        let last = tail.split_off(512).expect("and again");
        drop(head);
        tail.join(last);
        assert_eq!((pool.free(), tail.len()), (0, PAGE - 512));
        drop(tail);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_buffer_grows_again_when_it_is_whole() {
        let pool = BufferPool::new(2, PAGE);
        for mut buf in [pool.take().expect("free"), AlignedBuf::new(PAGE)] {
            buf.set_len(512);
            assert_eq!(buf.as_mut_slice().len(), 512);
            buf.set_len(PAGE);
            let tail = buf.split_off(1024).expect("it can be divided");
            buf.set_len(512);
            let grows =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.set_len(2048)));
            assert!(grows.is_err(), "what is behind is the other part's");
            drop(tail);
            buf.set_len(PAGE);
        }
    }

    #[test]
    #[should_panic(expected = "of a buffer of 512")]
    fn a_buffer_of_a_pool_grows_no_further_than_it_was() {
        BufferPool::new(1, 512).take().expect("free").set_len(513);
    }

    /// Regression test: the count wrapped around. After 2^32 forgotten parts, the next drop gave the buffer back, and
    /// the pool handed out memory that other ranges still had.
    #[test]
    fn ranges_beyond_all_counting_are_refused() {
        let pool = BufferPool::new(1, PAGE);
        let mut buf = pool.take().expect("free");
        pool.0.ranges[0].store(u32::MAX, Ordering::Relaxed);
        let divide = || std::mem::forget(buf.split_off(0));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(divide)).is_err());
        assert_eq!(pool.0.ranges[0].load(Ordering::Relaxed), u32::MAX, "nothing was counted");
        pool.0.ranges[0].store(1, Ordering::Relaxed);
        drop(buf);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    #[should_panic(expected = "a pool fits the address space")]
    fn a_pool_beyond_the_address_space_is_refused() {
        let _ = BufferPool::new(1, usize::MAX);
    }

    #[test]
    fn threads_take_from_one_pool_and_never_the_same() {
        // Miri runs a thousand times slower and checks every access.
        const TAKEN: u32 = if cfg!(miri) { 20 } else { 2000 };
        let pool = BufferPool::new(3, 512);
        std::thread::scope(|scope| {
            for who in 1..=4_u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    let mut taken = 0;
                    while taken < TAKEN {
                        let Some(mut buf) = pool.take() else {
                            std::thread::yield_now();
                            continue;
                        };
                        buf.as_mut_slice().fill(who);
                        std::hint::spin_loop();
                        assert!(buf.as_mut_slice().iter().all(|b| *b == who));
                        taken += 1;
                    }
                });
            }
        });
        assert_eq!(pool.free(), 3);
    }
}
