//! [`BufList`]: the bytes of several buffers, in their order, as one payload.
//!
//! The parts of a divided list share its buffers. A part is a window: the range of the list's bytes that belongs to it.
//! Dividing and joining copy nothing and allocate nothing.

use crate::aligned::{AlignedBuf, IoBuf};
use blkmq_core::{IoResult, Payload};
use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// Several buffers that are read into or written from as one, in one I/O: a header, data and padding, for example.
///
/// Devices reach the bytes in place. A list may have up to [`MOST`](Self::MOST) buffers of any length. The limits of a
/// device say how many it takes in one request; an I/O beyond them is divided, inside of a buffer if need be.
///
/// ```
/// use blkmq_buf::{AlignedBuf, BufList};
///
/// let header = AlignedBuf::copy_of(b"head");
/// let padding = AlignedBuf::new(500);
/// let mut list = BufList::new(vec![header, AlignedBuf::copy_of(b"8 bytes."), padding])?;
/// assert_eq!((list.len(), list.slices_mut().count()), (512, 3));
/// // After the I/O the buffers are there again.
/// let bufs = list.into_bufs().expect("no part of it is elsewhere");
/// assert_eq!(bufs.len(), 3);
/// # Ok::<(), blkmq_buf::TooManyBufs>(())
/// ```
///
/// As with [`AlignedBuf`], bytes are reached through `&mut` only, and the type is `Send` and not `Sync`.
#[derive(Default)]
pub struct BufList {
    /// `None` if there are no bytes and no buffers.
    shared: Option<Arc<Shared>>,
    /// The bytes of the list that belong to this part of it.
    window: Range<usize>,
    /// The number of the range in which the window begins; arbitrary if it is empty.
    first: usize,
}

/// The buffers of a list.
struct Shared {
    /// In the order of their bytes; none is empty. They lie in `bufs`.
    ranges: Box<[Piece]>,
    /// Owns the bytes. Not touched until no other part is left.
    bufs: Vec<AlignedBuf>,
}

/// A range of memory, and the place of its bytes in the list.
#[derive(Clone, Copy)]
struct Piece {
    start: NonNull<u8>,
    /// The place of its first byte, and of the byte behind its last.
    from: usize,
    to: usize,
}

// SAFETY: the bytes of a window are reached only through its one `BufList`, and windows are disjoint. The buffers, which
// are `Send`, are reached by the last part only, for which the `Arc` has acquired the writes that the drops of the
// other parts released. `ranges` is never changed.
unsafe impl Send for BufList {}

/// A list of more than [`BufList::MOST`] buffers. Gives the buffers back.
pub struct TooManyBufs(Vec<AlignedBuf>);

// SAFETY: a shared reference gives only the number of buffers. With it, the error goes into `Box<dyn Error + Send + Sync>`.
unsafe impl Sync for TooManyBufs {}

impl TooManyBufs {
    /// Returns the buffers, as they were given.
    #[must_use]
    pub fn into_bufs(self) -> Vec<AlignedBuf> {
        self.0
    }
}

impl fmt::Debug for TooManyBufs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TooManyBufs").field(&self.0.len()).finish()
    }
}

impl fmt::Display for TooManyBufs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buffers in a list; accepted: up to {}", self.0.len(), BufList::MOST)
    }
}

impl std::error::Error for TooManyBufs {}

impl BufList {
    /// The most buffers of a list: as many as the kernel takes in one call.
    pub const MOST: usize = 1024;

    /// The bytes of `bufs`, one buffer behind the other. Buffers without bytes are kept for
    /// [`into_bufs`](Self::into_bufs). Allocates, unless `bufs` is empty. O(buffers).
    ///
    /// # Errors
    /// Gives the buffers back if there are more than [`MOST`](Self::MOST).
    ///
    /// # Panics
    /// If the bytes are more than an address can count.
    pub fn new(bufs: Vec<AlignedBuf>) -> Result<Self, TooManyBufs> {
        if bufs.len() > Self::MOST {
            return Err(TooManyBufs(bufs));
        }
        if bufs.is_empty() {
            return Ok(Self::default());
        }
        let mut len = 0_usize;
        let mut ranges = Vec::with_capacity(bufs.len());
        for range in bufs.iter().flat_map(Payload::ranges).filter(|range| !range.is_empty()) {
            let start = NonNull::new(range.cast()).expect("a buffer with bytes has an address");
            let from = len;
            len = len.checked_add(range.len()).expect("a length that fits the address space");
            ranges.push(Piece { start, from, to: len });
        }
        #[expect(
            clippy::arc_with_non_send_sync,
            reason = "`BufList` is sent, which says why it may be"
        )]
        let shared = Arc::new(Shared { ranges: ranges.into(), bufs });
        Ok(Self { shared: Some(shared), window: 0..len, first: 0 })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// The bytes, buffer by buffer, for reading and writing. Buffers without bytes are left out.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        // SAFETY: the bytes are valid and initialised as long as the buffers in `shared` live, ranges do not overlap,
        // and no other window has these bytes. The slices borrow `self` exclusively.
        self.ranges().map(|range| unsafe { &mut *range })
    }

    /// Takes the list apart into the buffers that it was made of. O(1).
    ///
    /// # Errors
    /// Gives the list back if other parts of it exist, which have bytes of the same buffers. After the completion of an
    /// I/O its parts are one again.
    pub fn into_bufs(self) -> Result<Vec<AlignedBuf>, Self> {
        let Self { shared, window, first } = self;
        let Some(shared) = shared else { return Ok(Vec::new()) };
        match Arc::try_unwrap(shared) {
            Ok(shared) => Ok(shared.bufs),
            Err(shared) => Err(Self { shared: Some(shared), window, first }),
        }
    }

    fn pieces(&self) -> &[Piece] {
        self.shared.as_ref().map_or(&[], |shared| &shared.ranges)
    }

    /// The number of the range that has byte `at` of the list; the number of ranges if `at` is the end. O(log buffers).
    fn range_at(&self, at: usize) -> usize {
        self.pieces().partition_point(|piece| piece.to <= at)
    }

    /// The ranges of `len` bytes from byte `at` of this part on.
    fn part(&self, at: usize, len: usize) -> Ranges<'_> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(fits, "{len} bytes at {at} of a list of {}", self.len());
        let from = self.window.start + at;
        let first = if at == 0 { self.first } else { self.range_at(from) };
        Ranges { pieces: self.pieces().get(first..).unwrap_or(&[]).iter(), left: from..from + len }
    }
}

impl fmt::Debug for BufList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.ranges().count();
        f.debug_struct("BufList").field("len", &self.len()).field("ranges", &ranges).finish()
    }
}

/// A list of one buffer.
impl From<AlignedBuf> for BufList {
    fn from(buf: AlignedBuf) -> Self {
        Self::new(vec![buf]).expect("one is not too many")
    }
}

/// The ranges of a stretch of a list.
#[derive(Clone)]
struct Ranges<'a> {
    /// The first one has the first byte of `left`.
    pieces: slice::Iter<'a, Piece>,
    left: Range<usize>,
}

impl Iterator for Ranges<'_> {
    type Item = *mut [u8];

    #[inline]
    fn next(&mut self) -> Option<*mut [u8]> {
        if self.left.is_empty() {
            return None;
        }
        let piece = self.pieces.next()?;
        let from = self.left.start;
        let to = piece.to.min(self.left.end);
        self.left.start = to;
        // Within the range: `from` is behind its beginning, since the range has that byte.
        let start = piece.start.as_ptr().wrapping_add(from - piece.from);
        Some(ptr::slice_from_raw_parts_mut(start, to - from))
    }
}

impl Payload for BufList {
    fn data_len(&self) -> Option<usize> {
        (!self.is_empty()).then(|| self.len())
    }

    #[inline]
    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        self.part(0, self.len())
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        let mut rest = memory;
        for range in self.part(at, rest.len()) {
            let (now, behind) = rest.split_at_mut(range.len());
            // SAFETY: the range is valid while the buffers live. `memory` is borrowed exclusively, and no list lends its
            // bytes while it is borrowed shared, so they do not overlap. Nothing else writes here during the copy: see
            // `AlignedBuf::write_to`.
            unsafe { ptr::copy_nonoverlapping(range.cast(), now.as_mut_ptr(), now.len()) };
            rest = behind;
        }
        Ok(())
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        let mut rest = memory;
        for range in self.part(at, rest.len()) {
            let (now, behind) = rest.split_at(range.len());
            // SAFETY: as above. No slice of these bytes exists: `slices_mut` would still have `self` borrowed.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), range.cast(), now.len()) };
            rest = behind;
        }
        Ok(())
    }

    /// O(log buffers). Dividing a list without bytes gives two such lists.
    fn split_off(&mut self, at: usize) -> Option<Self> {
        let cut = self.window.start + at.min(self.len());
        let rest = Self {
            shared: self.shared.clone(),
            window: cut..self.window.end,
            first: self.range_at(cut),
        };
        self.window.end = cut;
        Some(rest)
    }

    /// O(1).
    ///
    /// # Panics
    /// If `rest` does not lie directly behind.
    fn join(&mut self, rest: Self) {
        let is_one = match (&self.shared, &rest.shared) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        assert!(is_one && rest.window.start == self.window.end, "parts of one list, in order");
        if self.is_empty() {
            self.first = rest.first;
        }
        self.window.end = rest.window.end;
    }
}

// SAFETY: the ranges lie in memory that the buffers in `shared` keep in place, which no one reaches as long as there is a
// window. The list may be moved, but its bytes are reached only through it (`&mut`, or `Payload`), and windows and
// ranges are disjoint.
unsafe impl IoBuf for BufList {}

#[cfg(test)]
mod tests;
