//! [`Chunk`]: the pages of one aligned stretch of an image, in one allocation.
//!
//! A page of its own would be an allocation of its own: writes at random places would spend more time in the allocator
//! than on their bytes. The kernel gives memory to the pages of a chunk as they are first written, so that a chunk
//! with one stored page takes little more memory than the page.

use super::page::{PAGE, Page, bytes_of, sectors_of};

/// Pages in a chunk.
pub(super) const PAGES: u64 = u64::BITS as u64;

/// The contents of [`PAGES`] pages.
pub(super) struct Chunk {
    /// The stored pages, a bit each.
    stored: u64,
    /// The bytes of all pages; zero in those that are not stored.
    bytes: Box<[u8]>,
}

impl Chunk {
    /// A chunk without a stored page.
    pub(super) fn new() -> Self {
        // From the kernel, already zero and not yet in memory: do not fill it here.
        Self { stored: 0, bytes: vec![0; PAGES as usize * PAGE].into_boxed_slice() }
    }

    /// Returns whether the chunk has no stored page.
    pub(super) fn is_empty(&self) -> bool {
        self.stored == 0
    }

    /// Number of stored pages.
    pub(super) fn len(&self) -> u64 {
        self.stored.count_ones().into()
    }

    /// The contents of page `at`; zeroes if it is not stored.
    pub(super) fn page(&self, at: usize) -> &Page {
        &self.bytes.as_chunks().0[at]
    }

    /// Page `at`, stored from now on.
    pub(super) fn page_mut(&mut self, at: usize) -> &mut Page {
        self.stored |= 1 << at;
        &mut self.bytes.as_chunks_mut().0[at]
    }

    /// Zeroes page `at`, which is no longer stored.
    pub(super) fn remove(&mut self, at: usize) {
        if self.stored & 1 << at != 0 {
            self.page_mut(at).fill(0);
            self.stored &= !(1 << at);
        }
    }

    /// Zeroes the sectors of page `at` that are in `mask`, if the page is stored.
    pub(super) fn zero(&mut self, at: usize, mask: u8) {
        if self.stored & 1 << at != 0 {
            let page = self.page_mut(at);
            sectors_of(mask).for_each(|sector| page[bytes_of(sector)].fill(0));
        }
    }

    /// The stored pages, in order.
    pub(super) fn stored(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.stored;
        std::iter::from_fn(move || {
            let at = left.trailing_zeros();
            (at < u64::BITS).then(|| {
                left &= left - 1;
                at as usize
            })
        })
    }
}

impl Clone for Chunk {
    /// Copies the stored pages only, so that the others take no memory in the copy either.
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        self.stored().for_each(|at| *copy.page_mut(at) = *self.page(at));
        copy
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.stored == other.stored && self.stored().all(|at| self.page(at) == other.page(at))
    }
}

impl Eq for Chunk {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_stored_again_is_zero() {
        let mut chunk = Chunk::new();
        chunk.page_mut(63).fill(7);
        chunk.page_mut(0)[1] = 1;
        assert_eq!(chunk.stored().collect::<Vec<_>>(), [0, 63]);
        chunk.zero(63, 1);
        assert_eq!((chunk.page(63)[511], chunk.page(63)[512]), (0, 7));
        chunk.remove(63);
        chunk.zero(5, 1);
        assert_eq!((chunk.len(), chunk.page(63)[512]), (1, 0));
        assert!(chunk.page_mut(63).iter().all(|b| *b == 0));
        assert!(chunk.len() == 2 && !chunk.is_empty());
    }

    #[test]
    fn a_copy_has_the_stored_pages() {
        let mut chunk = Chunk::new();
        chunk.page_mut(9)[0] = 1;
        let mut copy = chunk.clone();
        assert!(copy == chunk);
        copy.page_mut(10);
        assert!(copy != chunk, "a stored page of zeroes is stored");
    }
}
