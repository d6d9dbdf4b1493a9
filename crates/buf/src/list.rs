//! [`BufList`]: the bytes of several buffers, in their order, as one payload.
//!
//! The parts of a divided list share its buffers. A part is a window: the range of the list's bytes that belongs to it.
//! Dividing and joining copy nothing and allocate nothing.

use crate::aligned::{AlignedBuf, IoBuf};
use blkmq_core::{IoResult, Payload};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{fmt, slice};

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

// SAFETY: the bytes of a window are reached only through its one `BufList`, and windows are disjoint. The buffers,
// which are `Send`, are reached by the last part only, for which the `Arc` has acquired the writes that the drops of
// the other parts released. `ranges` is never changed.
unsafe impl Send for BufList {}

/// A list of more than [`BufList::MOST`] buffers. Gives the buffers back.
#[derive(thiserror::Error)]
#[error("{} buffers in a list; accepted: up to {}", .0.len(), BufList::MOST)]
pub struct TooManyBufs(Vec<AlignedBuf>);

// SAFETY: a shared reference gives only the number of buffers. With it, the error goes into `Box<dyn Error + Send +
// Sync>`.
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
            // SAFETY: the range is valid while the buffers live. `memory` is borrowed exclusively, and no list lends
            // its bytes while it is borrowed shared, so they do not overlap. Nothing else writes here during the copy:
            // see `AlignedBuf::write_to`.
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

// SAFETY: the ranges lie in memory that the buffers in `shared` keep in place, which no one reaches as long as there is
// a window. The list may be moved, but its bytes are reached only through it (`&mut`, or `Payload`), and windows and
// ranges are disjoint.
unsafe impl IoBuf for BufList {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;
    use blkmq_core::Rng;

    /// A list of buffers of these lengths, whose bytes count from 0.
    fn list(lens: &[usize]) -> BufList {
        let mut at = 0;
        let bufs = lens.iter().map(|len| {
            let bytes = Vec::from_iter((at..at + len).map(|n| n as u8));
            at += len;
            AlignedBuf::copy_of(&bytes)
        });
        BufList::new(bufs.collect()).expect("few enough")
    }

    fn bytes(list: &mut BufList) -> Vec<u8> {
        list.slices_mut().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn bytes_are_those_of_the_buffers_in_order() {
        let mut list = list(&[3, 0, 2, 4]);
        assert_eq!(bytes(&mut list), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((list.len(), list.data_len(), list.ranges().count()), (9, Some(9), 3));
        let mut some = [0; 4];
        assert_eq!((list.write_to(2, &mut some), some), (Ok(()), [2, 3, 4, 5]));
        assert_eq!(list.read_from(4, &[40, 50]), Ok(()));
        assert_eq!(bytes(&mut list), [0, 1, 2, 3, 40, 50, 6, 7, 8]);
        let bufs = list.into_bufs().expect("the only part");
        assert_eq!(Vec::from_iter(bufs.iter().map(AlignedBuf::len)), [3, 0, 2, 4]);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4 of a list of 5")]
    fn nothing_is_written_behind_the_end() {
        let _ = list(&[3, 2]).read_from(4, &[7, 8]);
    }

    /// A part ends within the list, and the bytes behind it belong to another part.
    #[test]
    #[should_panic(expected = "2 bytes at 3 of a list of 4")]
    fn nothing_is_written_behind_the_end_of_a_part() {
        let mut whole = list(&[3, 3]);
        let _rest = whole.split_off(4);
        let _ = whole.read_from(3, &[7, 8]);
    }

    /// Divides a list at drawn places, writes and reads each part, and joins them.
    #[test]
    fn parts_have_the_bytes_of_their_place_wherever_the_cuts_are() {
        for seed in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let mut rng = Rng::new(seed);
            let lens = Vec::from_iter((0..1 + rng.below(9)).map(|_| rng.below(6) as usize));
            let mut whole = list(&lens);
            let len = whole.len();
            let mut expected = Vec::from_iter((0..len).map(|n| n as u8));
            let mut cuts = Vec::from_iter((0..rng.below(4)).map(|_| rng.below(len as u64 + 2)));
            cuts.sort_unstable();
            let mut parts = Vec::new();
            for cut in cuts.iter().rev() {
                parts.push(whole.split_off(*cut as usize).expect("a list can be divided"));
            }
            parts.push(whole);
            let mut at = 0;
            for part in parts.iter_mut().rev() {
                let own = &mut expected[at..at + part.len()];
                assert_eq!(bytes(part), own, "seed {seed}: {lens:?} at {cuts:?}");
                let total: usize = part.ranges().map(<*mut [u8]>::len).sum();
                assert_eq!(total, own.len());
                assert!(part.ranges().all(|range| !range.is_empty()));
                if !own.is_empty() {
                    let from = rng.below(own.len() as u64) as usize;
                    own[from..].iter_mut().for_each(|byte| *byte ^= 0x80);
                    assert_eq!(part.read_from(from, &own[from..]), Ok(()));
                    let mut back = vec![0; own.len()];
                    assert_eq!((part.write_to(0, &mut back), &back[..]), (Ok(()), &*own));
                }
                at += part.len();
            }
            assert_eq!(at, len, "no byte is lost");
            let mut whole = parts.pop().expect("the first part");
            while let Some(part) = parts.pop() {
                whole = whole.into_bufs().expect_err("a part is elsewhere");
                whole.join(part);
            }
            assert_eq!(bytes(&mut whole), expected, "seed {seed}");
            assert_eq!(whole.into_bufs().expect("it is whole").len(), lens.len());
        }
    }

    #[test]
    #[should_panic(expected = "parts of one list, in order")]
    fn what_does_not_belong_together_is_not_joined() {
        let mut whole = list(&[4]);
        let mut tail = whole.split_off(2).expect("it can be divided");
        let last = tail.split_off(1).expect("and again");
        whole.join(last);
    }

    #[test]
    #[should_panic(expected = "parts of one list, in order")]
    fn parts_of_two_lists_are_not_joined() {
        let mut whole = list(&[4]);
        let _tail = whole.split_off(2);
        let mut other = list(&[4]);
        whole.join(other.split_off(2).expect("it can be divided"));
    }

    #[test]
    fn a_part_outlives_the_others_and_buffers_go_back_to_their_pool() {
        let pool = BufferPool::new(2, 4096);
        let buf = || pool.take().expect("free");
        let mut whole = BufList::new(vec![buf(), buf()]).expect("few enough");
        let mut tail = whole.split_off(4095).expect("it can be divided");
        let write = std::thread::spawn(move || {
            tail.slices_mut().for_each(|slice| slice.fill(9));
            tail
        });
        whole.slices_mut().for_each(|slice| slice.fill(1));
        let tail = write.join().expect("it only writes");
        whole.join(tail);
        let bytes = bytes(&mut whole);
        assert!(bytes[..4095].iter().all(|byte| *byte == 1));
        assert!(bytes[4095..].iter().all(|byte| *byte == 9));
        let tail = whole.split_off(4096);
        drop(whole);
        assert_eq!(pool.free(), 0, "a part has bytes of them");
        drop(tail);
        assert_eq!(pool.free(), 2);
    }

    /// The writes of a part on another thread come before the buffers are taken out on this one, though only the drop
    /// of the part is between them. Fails without the acquire of the last `Arc` under ThreadSanitizer and Miri.
    #[test]
    fn taking_a_list_apart_sees_what_a_dropped_part_wrote() {
        let mut whole = list(&[8, 8]);
        let mut tail = whole.split_off(4).expect("it can be divided");
        let write = std::thread::spawn(move || tail.slices_mut().for_each(|slice| slice.fill(7)));
        let mut bufs = loop {
            match whole.into_bufs() {
                Ok(bufs) => break bufs,
                Err(list) => whole = list,
            }
            std::thread::yield_now();
        };
        assert_eq!(bufs[1].as_mut_slice(), [7; 8]);
        write.join().expect("it only writes");
    }

    #[test]
    fn a_list_has_a_limit_and_may_be_empty() {
        let bufs = || Vec::from_iter((0..=BufList::MOST).map(|_| AlignedBuf::empty()));
        let error = BufList::new(bufs()).expect_err("one too many");
        assert_eq!(error.to_string(), "1025 buffers in a list; accepted: up to 1024");
        assert_eq!(error.into_bufs().len(), 1025, "they are given back");
        let most = BufList::new(bufs().split_off(1)).expect("as many as accepted");
        assert_eq!(
            (most.data_len(), most.into_bufs().map(|bufs| bufs.len()).ok()),
            (None, Some(1024))
        );
        let mut none = BufList::default();
        let rest = none.split_off(4096).expect("a discard can be divided");
        none.join(rest);
        assert!(none.is_empty() && none.into_bufs().is_ok_and(|bufs| bufs.is_empty()));
        let one = BufList::from(AlignedBuf::new(512));
        assert_eq!((one.len(), one.ranges().count()), (512, 1));
    }
}
