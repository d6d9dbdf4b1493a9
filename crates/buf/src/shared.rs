//! [`SharedBuf`]: the bytes of a buffer that no I/O changes any more, for any number of readers.

use crate::aligned::{AlignedBuf, Owner};
use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::ptr::NonNull;
use std::slice;

/// Bytes that do not change, for any number of threads: an [`AlignedBuf`] after its I/O, for a cache or an answer to
/// many clients. Clones and parts share the memory; nothing is copied.
///
/// A buffer of a [`BufferPool`](crate::BufferPool) returns to its pool when the last clone or part is dropped.
///
/// ```
/// use blkmq_buf::AlignedBuf;
///
/// let page = AlignedBuf::copy_of(b"header and body").freeze();
/// let body = page.slice(11..);
/// drop(page);
/// assert_eq!(&*body, b"body");
/// ```
///
/// With the feature `bytes`, it becomes a `bytes::Bytes`, without a copy.
pub struct SharedBuf {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the bytes are only read as long as there is a `SharedBuf` of them: the one `AlignedBuf` of the range was taken, ranges
// of other buffers do not overlap it, and `try_into_mut` needs the last share. Memory and pool are freed on any thread.
unsafe impl Send for SharedBuf {}
// SAFETY: as above; readers on several threads do not disturb each other.
unsafe impl Sync for SharedBuf {}

impl AlignedBuf {
    /// Makes the bytes unchangeable, and shareable. O(1): copies nothing.
    #[must_use]
    pub fn freeze(self) -> SharedBuf {
        let Self { start, len, owner } = self;
        SharedBuf { start, len, owner }
    }
}

impl SharedBuf {
    /// A part of the bytes, which shares the memory. O(1).
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let part = &self[(range.start_bound().cloned(), range.end_bound().cloned())];
        Self { start: NonNull::from(part).cast(), len: part.len(), owner: self.owner.clone() }
    }

    /// Turns the bytes into a buffer for further I/Os, if nothing else uses their memory. O(1).
    ///
    /// # Errors
    /// Gives the bytes back if there are clones, or other parts of the buffer.
    pub fn try_into_mut(mut self) -> Result<AlignedBuf, Self> {
        if !self.owner.is_only() {
            return Err(self);
        }
        let Self { start, len, owner } = self;
        Ok(AlignedBuf { start, len, owner })
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is valid and initialised as long as its owner lives, which the result borrows, and nothing writes
        // to it: see above.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for SharedBuf {
    fn clone(&self) -> Self {
        Self { start: self.start, len: self.len, owner: self.owner.clone() }
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf").field("len", &self.len).finish()
    }
}

/// Without a copy.
#[cfg(feature = "bytes")]
impl From<SharedBuf> for bytes::Bytes {
    fn from(buf: SharedBuf) -> Self {
        Self::from_owner(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferPool, PAGE};
    use blkmq_core::Payload;

    #[test]
    fn frozen_bytes_are_read_by_many_threads_and_thawed_by_the_last() {
        let pool = BufferPool::new(1, 2 * PAGE);
        for mut buf in [AlignedBuf::new(2 * PAGE), pool.take().expect("free")] {
            buf.as_mut_slice().fill(7);
            let shared = buf.freeze();
            let parts = [shared.slice(..PAGE), shared.slice(PAGE..), shared.slice(5..5)];
            let shared = shared.try_into_mut().expect_err("there are parts of it");
            std::thread::scope(|scope| {
                for part in parts {
                    scope.spawn(move || assert!(part.iter().all(|byte| *byte == 7)));
                }
            });
            let mut again = shared.try_into_mut().expect("the last");
            again.as_mut_slice().fill(8);
            assert_eq!(again.len(), 2 * PAGE);
        }
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_buffer_does_not_grow_into_frozen_bytes() {
        let mut buf = AlignedBuf::copy_of(b"abcd");
        let tail = buf.split_off(2).expect("it can be divided").freeze();
        let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buf.set_len(4)));
        assert!(grown.is_err());
        assert_eq!(&*tail, b"cd");
        drop(tail);
        buf.set_len(4);
        assert_eq!(buf.as_mut_slice(), b"abcd");
    }

    #[test]
    fn vectors_are_copied_both_ways() {
        let buf = AlignedBuf::from(vec![1, 2, 3]);
        assert_eq!(Vec::from(buf), [1, 2, 3]);
        assert!(AlignedBuf::empty().freeze().is_empty());
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_slice_ends_with_the_buffer() {
        let _ = AlignedBuf::new(4).freeze().slice(2..5);
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn bytes_are_the_same_memory() {
        let buf = AlignedBuf::copy_of(b"page").freeze();
        let place = buf.as_ptr();
        let bytes = bytes::Bytes::from(buf.clone());
        assert_eq!((bytes.as_ptr(), &bytes[..]), (place, &b"page"[..]));
        drop(bytes);
        assert!(buf.try_into_mut().is_ok());
    }
}
