//! [`AlignedBuf`]: bytes that direct I/O accepts; [`SharedBuf`]: the bytes of a buffer that no I/O changes any more,
//! for any number of readers; and [`IoBuf`]: the promise of a payload whose bytes the kernel may reach by address.
//!
//! A buffer is a range of an allocation, or of a buffer in a pool (`pool.rs`), that overlaps no other range. Dividing a
//! buffer makes two ranges of the same owner; nothing is copied or allocated.

use crate::memory::{Lease, Memory};
use blkmq_core::{IoResult, Payload};
use std::ops::{Deref, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{fmt, iter, slice};

/// A payload of bytes that the kernel may read and write in place: in one range of memory, or in several, which a
/// device gathers into one I/O without a copy.
///
/// # Safety
///
/// From the call that submits an I/O until its completion has been taken, the ranges that
/// [`ranges`](Payload::ranges) names must be valid for reads and writes, must stay the same however often they are
/// requested and wherever the payload itself is moved, and must not be read or written except by the device (and by
/// [`Payload`]'s methods, which are for devices too). Together they are as long as [`Payload::data_len`] says, or empty
/// if that says `None`. Neither the ranges of one payload nor the parts of a divided one overlap.
///
/// Memory that another owner keeps in place, such as a guest's, suits it too: a payload that holds an `Arc` of the
/// owner and a list of addresses keeps this promise if nothing else takes part in an I/O on these bytes.
pub unsafe trait IoBuf: Payload {}

// SAFETY: they carry no data and name no ranges, so that there is nothing to promise. With them, a device whose
// payloads are `IoBuf` can be measured without memory, and tested where the payload is a number.
unsafe impl IoBuf for () {}
// SAFETY: as above.
unsafe impl IoBuf for u64 {}

/// The owner of a range, which keeps its bytes in place.
#[derive(Clone)]
pub(crate) enum Owner {
    /// There are no bytes.
    Empty,
    Alloc(Arc<Memory>),
    Pool(Lease),
}

impl Owner {
    /// Returns whether no other range of the memory exists.
    ///
    /// Acquires the writes that the drops of other ranges released: if another thread wrote into its range before it
    /// dropped the range, these writes happen before accesses behind this call. `Arc::strong_count` does not do that:
    /// it is a relaxed load.
    pub(crate) fn is_only(&mut self) -> bool {
        match self {
            Self::Empty => true,
            Self::Alloc(memory) => Arc::get_mut(memory).is_some(),
            Self::Pool(lease) => lease.is_only(),
        }
    }
}

/// Bytes aligned to [`PAGE`](crate::PAGE), for direct I/O.
///
/// The bytes are reached through `&mut` only: there is no `Deref`, because [`Payload::read_from`] changes them
/// through a shared reference, on behalf of a device with the I/O in flight, and a slice borrowed at the same time
/// would change under its reader. For the same reason the type is `Send` and not `Sync`.
///
/// ```
/// use blkmq_buf::AlignedBuf;
/// let mut buf = AlignedBuf::new(4096);
/// buf.as_mut_slice()[..5].copy_from_slice(b"hello");
/// assert_eq!(buf.as_mut_slice().as_ptr() as usize % 4096, 0);
/// ```
///
/// After the I/O, [`freeze`](Self::freeze) makes the bytes readable by any number of threads.
pub struct AlignedBuf {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
}

// SAFETY: a range is reached only through its one `AlignedBuf`, so sending the buffer sends the bytes.
unsafe impl Send for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zeroes, in separate whole pages. Allocates, unless `len` is 0. A buffer of up to a page takes
    /// a page and less than 200 bytes; for a longer one, an allocator may spend another page on the alignment, as
    /// glibc's does. Buffers in a [`BufferPool`](crate::BufferPool) cost no allocation each.
    ///
    /// # Panics
    /// If `len` does not fit the address space.
    #[must_use]
    pub fn new(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        let memory = Arc::new(Memory::new(len));
        Self { start: memory.start(), len, owner: Owner::Alloc(memory) }
    }

    /// A buffer without bytes, for I/Os that carry none: flushes, discards, zeroes. Allocates nothing.
    #[must_use]
    pub const fn empty() -> Self {
        Self { start: NonNull::dangling(), len: 0, owner: Owner::Empty }
    }

    /// A copy of `bytes` in new memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.as_mut_slice().copy_from_slice(bytes);
        buf
    }

    /// `len` bytes at `start`: a whole pool buffer that was free until the pool made this lease.
    pub(crate) fn leased(start: NonNull<u8>, len: usize, lease: Lease) -> Self {
        Self { start, len, owner: Owner::Pool(lease) }
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the length to `len` bytes, from the same start. Bytes that become part of the buffer again hold their old
    /// contents.
    ///
    /// # Panics
    /// If `len` exceeds the memory that it was made with, or if it is to grow while other parts of the memory exist.
    pub fn set_len(&mut self, len: usize) {
        let is_whole = self.owner.is_only();
        let end = match &self.owner {
            Owner::Empty => self.start.as_ptr(),
            Owner::Alloc(memory) => memory.end(),
            Owner::Pool(lease) => lease.end(),
        };
        let most = end as usize - self.start.as_ptr() as usize;
        assert!(len <= most, "{len} bytes of a buffer of {most}");
        // Bytes behind this range may belong to another range as long as there is one.
        assert!(is_whole || len <= self.len, "a part of a buffer cannot grow");
        self.len = len;
    }

    /// The bytes, for reading and writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the range is valid and initialised as long as its owner lives and no other range overlaps it: a
        // division leaves disjoint ranges, `join` takes in the neighbour's range, and `set_len` grows a range only if
        // its owner has no other, having acquired the writes through its former ranges. The result borrows `self`
        // exclusively, so the bytes cannot be reached through `&self` at the same time.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The address of `len` bytes from `at` on.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} bytes at {at} of a buffer of {}", self.len);
        // SAFETY: within the range, or just behind it.
        unsafe { self.start.as_ptr().add(at) }
    }
}

/// A copy, since a vector's bytes are not aligned.
impl From<Vec<u8>> for AlignedBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self::copy_of(&bytes)
    }
}

/// A copy, since a vector frees its bytes in its own way.
impl From<AlignedBuf> for Vec<u8> {
    fn from(mut buf: AlignedBuf) -> Self {
        buf.as_mut_slice().to_vec()
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_pooled = matches!(self.owner, Owner::Pool(_));
        f.debug_struct("AlignedBuf").field("len", &self.len).field("is_pooled", &is_pooled).finish()
    }
}

impl Payload for AlignedBuf {
    fn data_len(&self) -> Option<usize> {
        (self.len > 0).then_some(self.len)
    }

    #[inline]
    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        iter::once(ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len))
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        let from = self.place(at, memory.len());
        // SAFETY: `place` has checked the range. `memory` is borrowed exclusively, and no buffer lends its bytes
        // while it is borrowed shared, so they do not overlap. Nothing else writes here during the copy: a writer needs
        // either this very buffer, which is not `Sync`, or is the kernel. The kernel has finished with the
        // buffer when the I/O's token is back, and until then the buffer is in a cell that only the token opens.
        unsafe { ptr::copy_nonoverlapping(from, memory.as_mut_ptr(), memory.len()) };
        Ok(())
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        let to = self.place(at, memory.len());
        // SAFETY: as above. No slice of these bytes exists: `as_mut_slice` would still have `self` borrowed.
        unsafe { ptr::copy_nonoverlapping(memory.as_ptr(), to, memory.len()) };
        Ok(())
    }

    /// O(1). Dividing a buffer without bytes gives two such buffers.
    fn split_off(&mut self, at: usize) -> Option<Self> {
        if self.is_empty() {
            return Some(Self::empty());
        }
        let at = at.min(self.len);
        let start = NonNull::new(self.place(at, 0)).expect("an address within an allocation");
        let rest = Self { start, len: self.len - at, owner: self.owner.clone() };
        self.len = at;
        Some(rest)
    }

    /// O(1).
    ///
    /// # Panics
    /// If `rest` does not lie directly behind.
    fn join(&mut self, rest: Self) {
        let is_next = self.place(self.len, 0) == rest.start.as_ptr() && self.is_one_with(&rest);
        assert!(is_next || rest.is_empty() && self.is_empty(), "parts of one buffer, in order");
        self.len += rest.len;
    }
}

impl AlignedBuf {
    /// Ranges of two allocations may happen to touch, but cannot become one range.
    fn is_one_with(&self, other: &Self) -> bool {
        match (&self.owner, &other.owner) {
            (Owner::Alloc(a), Owner::Alloc(b)) => Arc::ptr_eq(a, b),
            (Owner::Pool(a), Owner::Pool(b)) => a.is_same(b),
            _ => false,
        }
    }
}

// SAFETY: the range lies in memory that its owner keeps in place. The buffer may be moved, but its bytes are reached
// only through it (`&mut`, or `Payload`), and parts are disjoint.
unsafe impl IoBuf for AlignedBuf {}

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

// SAFETY: the bytes are only read as long as there is a `SharedBuf` of them: the one `AlignedBuf` of the range was
// taken, ranges of other buffers do not overlap it, and `try_into_mut` needs the last share. Memory and pool are freed
// on any thread.
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
        // SAFETY: the range is valid and initialised as long as its owner lives, which the result borrows, and nothing
        // writes to it: see above.
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The address of its range.
    fn place(buf: &AlignedBuf) -> usize {
        buf.ranges().map(|range| range.cast::<u8>() as usize).sum()
    }

    #[test]
    fn bytes_are_aligned_zeroed_and_copied_both_ways() {
        let mut buf = AlignedBuf::new(5000);
        assert_eq!(place(&buf) % PAGE, 0);
        assert!(buf.as_mut_slice().iter().all(|b| *b == 0) && buf.len() == 5000);
        assert_eq!(buf.read_from(4998, &[7, 8]), Ok(()));
        let mut two = [0; 2];
        assert_eq!((buf.write_to(4998, &mut two), two), (Ok(()), [7, 8]));
        assert_eq!(AlignedBuf::copy_of(b"ab").as_mut_slice(), b"ab");
    }

    /// Short memory is aligned by the allocator, long memory by us.
    #[test]
    fn memory_of_any_length_is_aligned_and_zero() {
        for len in [1, 32 * PAGE - 1, 32 * PAGE, 32 * PAGE + 1] {
            let mut buf = AlignedBuf::new(len);
            assert_eq!(place(&buf) % PAGE, 0, "{len} bytes");
            assert!(buf.as_mut_slice() == vec![0; len], "{len} bytes");
            buf.as_mut_slice().fill(7);
            buf.set_len(len.next_multiple_of(PAGE));
        }
    }

    /// A page took 8.2 KiB of glibc's memory, as each stood at twice its length from the next.
    #[test]
    fn short_buffers_stand_side_by_side() {
        // Miri takes a minute to look at a megabyte.
        let pages = if cfg!(miri) { 16 } else { 256 };
        let mut bufs = Vec::from_iter((0..pages).map(|at| AlignedBuf::new(at * 16 + 16)));
        let places = std::collections::BTreeSet::from_iter(bufs.iter().map(place));
        let followed = places.iter().filter(|place| places.contains(&(*place + PAGE))).count();
        assert!(followed > pages / 2, "{followed} of {pages}");
        // Pages that had data are zeroes for the next buffer.
        bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(7));
        drop(bufs);
        for mut buf in (0..pages).map(|_| AlignedBuf::new(PAGE)) {
            assert!(buf.as_mut_slice().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4999 of a buffer of 5000")]
    fn nothing_is_written_behind_the_end() {
        let _ = AlignedBuf::new(5000).read_from(4999, &[7, 8]);
    }

    #[test]
    fn parts_share_the_memory_and_come_together_again() {
        let mut whole = AlignedBuf::copy_of(&[1, 2, 3, 4, 5, 6]);
        let mut tail = whole.split_off(2).expect("it can be divided");
        let mut last = tail.split_off(2).expect("and again");
        last.as_mut_slice()[0] = 9;
        assert_eq!((whole.len(), tail.as_mut_slice(), last.len()), (2, &mut [3, 4][..], 2));
        tail.join(last);
        whole.join(tail);
        assert_eq!(whole.as_mut_slice(), [1, 2, 3, 4, 9, 6]);
    }

    #[test]
    fn a_part_outlives_the_others() {
        let mut whole = AlignedBuf::copy_of(&[1, 2, 3, 4]);
        let mut tail = whole.split_off(2).expect("it can be divided");
        drop(whole);
        let seen = std::thread::spawn(move || tail.as_mut_slice().to_vec());
        assert_eq!(seen.join().expect("it only looks"), [3, 4]);
    }

    #[test]
    #[should_panic(expected = "parts of one buffer, in order")]
    fn what_does_not_belong_together_is_not_joined() {
        let mut whole = AlignedBuf::new(4);
        let mut tail = whole.split_off(2).expect("it can be divided");
        let last = tail.split_off(1).expect("and again");
        whole.join(last);
    }

    /// Regression test: `set_len` used `Arc::strong_count`, a relaxed load, and nothing ordered the writes through
    /// the other part before the bytes were returned. Fails in that case under ThreadSanitizer and Miri, which check
    /// the orderings themselves.
    #[test]
    fn growing_a_buffer_sees_what_the_other_part_wrote() {
        let pool = BufferPool::new(1, 2 * PAGE);
        for mut whole in [AlignedBuf::new(2 * PAGE), pool.take().expect("free")] {
            let mut tail = whole.split_off(PAGE).expect("it can be divided");
            let other = std::thread::spawn(move || tail.as_mut_slice().fill(7));
            let grow = |whole: &mut AlignedBuf| {
                catch_unwind(AssertUnwindSafe(|| whole.set_len(2 * PAGE))).is_ok()
            };
            while !grow(&mut whole) {
                std::thread::yield_now();
            }
            assert!(whole.as_mut_slice()[PAGE..].iter().all(|b| *b == 7));
            other.join().expect("it only writes");
        }
    }

    /// Regression test: where overflow is not checked, as in release builds, rounding up to whole pages wrapped
    /// around and gave a buffer of the whole address space over an empty allocation.
    #[test]
    #[should_panic(expected = "a length that fits the address space")]
    fn a_length_that_rounds_up_to_nothing_is_refused() {
        let _ = AlignedBuf::new(usize::MAX);
    }

    #[test]
    fn without_bytes_every_part_is_alike() {
        let mut none = AlignedBuf::default();
        assert!(none.is_empty() && none.data_len().is_none() && none.as_mut_slice().is_empty());
        let rest = none.split_off(4096).expect("a discard can be divided");
        none.join(rest);
        assert!(none.is_empty());
    }

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
        let grown = catch_unwind(AssertUnwindSafe(|| buf.set_len(4)));
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
