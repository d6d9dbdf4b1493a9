//! [`AlignedBuf`]: bytes that direct I/O accepts; [`SharedBuf`]: the bytes of a buffer that no I/O changes any more,
//! for any number of readers; and [`IoBuf`]: the promise of a payload whose bytes the kernel may reach by address.
//!
//! A buffer is a range of an allocation, or of a buffer in a pool (`pool.rs`), that overlaps no other range. Dividing a
//! buffer makes two ranges of the same owner; nothing is copied or allocated.
//!
//! Beneath it, [`Memory`] is page-aligned memory that lives as long as a range of it does: a page of a block, or an
//! [`Allocation`]. [`Lease`] ties a range to its buffer in a pool, and returns the buffer after the last range.
//!
//! Single pages, for short buffers, are cut from blocks of many: an allocator that keeps its records beside the memory,
//! as glibc's does, spends two pages on an aligned one. Allocators fill aligned memory with zeroes themselves, which
//! takes a fault for each page. Long memory is therefore allocated without alignment and aligned here: then it comes
//! from the system, which gives a page when it is first used.

use blkmq_core::{IoResult, Payload};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
        let places = BTreeSet::from_iter(bufs.iter().map(place));
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
