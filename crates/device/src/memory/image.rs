//! [`Image`]: the sparse contents of a device, in chunks of pages, and the arithmetic of sector ranges on pages.
//!
//! A [`Chunk`] has the pages of one aligned range of an image in one allocation. With an allocation for each page,
//! random writes would spend more time in the allocator than on their bytes. The kernel allocates the pages of a chunk
//! when they are first written, so that a chunk with one stored page takes little more memory than the page.

use blkmq_core::SECTOR_SIZE;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Sparse contents of a device: pages that are not stored read as zero.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Chunks with at least one stored page, by number.
    chunks: BTreeMap<u64, Chunk>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("pages", &self.len()).finish()
    }
}

impl Image {
    /// Copies the bytes from `offset` on to `out`, with zeroes beyond the end of the device.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) {
        let (mut offset, mut left) = (offset, out);
        while !left.is_empty() {
            let start = (offset % PAGE as u64) as usize;
            let (now, later) = left.split_at_mut(left.len().min(PAGE - start));
            now.copy_from_slice(&self.page(offset / PAGE as u64)[start..][..now.len()]);
            offset += now.len() as u64;
            left = later;
        }
    }

    /// The bytes of the stored pages. Memory is allocated in chunks of 64 pages, and freed when none of them is stored.
    /// O(chunks).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len() * PAGE as u64
    }

    /// Number of stored pages.
    fn len(&self) -> u64 {
        self.chunks.values().map(Chunk::len).sum()
    }

    /// The contents of page `n`; zeroes if it is not stored.
    pub(super) fn page(&self, n: u64) -> &Page {
        let (chunk, at) = place(n);
        self.chunks.get(&chunk).map_or(&ZEROES, |chunk| chunk.page(at))
    }

    /// Returns page `n`, adding it if it is not stored.
    pub(super) fn page_mut(&mut self, n: u64) -> &mut Page {
        let (chunk, at) = place(n);
        self.chunks.entry(chunk).or_insert_with(Chunk::new).page_mut(at)
    }

    /// Zeroes the sectors of page `n` that are in `mask`.
    pub(super) fn zero(&mut self, n: u64, mask: u8) {
        let (number, at) = place(n);
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        if mask != WHOLE {
            return chunk.zero(at, mask);
        }
        chunk.remove(at);
        if chunk.is_empty() {
            self.chunks.remove(&number);
        }
    }

    /// The numbers of the stored pages within `range`.
    pub(super) fn numbers(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let chunks = range.start / PAGES..range.end.div_ceil(PAGES);
        let pages = |(n, chunk): (&u64, &Chunk)| {
            let first = n * PAGES;
            chunk.stored().map(move |at| first + at as u64)
        };
        self.chunks.range(chunks).flat_map(pages).filter(move |n| range.contains(n))
    }
}

/// The number of the chunk that contains page `n`, and the index of the page in it.
fn place(n: u64) -> (u64, usize) {
    (n / PAGES, (n % PAGES) as usize)
}

/// Pages in a chunk.
const PAGES: u64 = u64::BITS as u64;

/// The contents of [`PAGES`] pages.
struct Chunk {
    /// The stored pages, a bit each.
    stored: u64,
    /// The bytes of all pages; zero in those that are not stored.
    bytes: Box<[u8]>,
}

impl Chunk {
    /// A chunk without a stored page.
    pub(super) fn new() -> Self {
        // Allocated as zeroes by the kernel, without using memory yet: do not fill it here.
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

    /// Returns page `at`, which becomes a stored page.
    pub(super) fn page_mut(&mut self, at: usize) -> &mut Page {
        self.stored |= 1 << at;
        &mut self.bytes.as_chunks_mut().0[at]
    }

    /// Zeroes page `at`, which is then not stored.
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
    /// Copies only stored pages, so that the others take no memory in the copy either.
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

/// Bytes in a page, as in Linux. A logical block never crosses a page boundary.
pub const PAGE: usize = 4096;
/// Sectors in a page.
pub(super) const PAGE_SECTORS: u64 = PAGE as u64 / SECTOR_SIZE as u64;
/// Every sector of a page, as a mask.
pub(super) const WHOLE: u8 = u8::MAX;
const _: () = assert!(PAGE_SECTORS == u8::BITS as u64, "a bit per sector");

pub(super) type Page = [u8; PAGE];

/// The contents of a page that is not stored.
pub(super) static ZEROES: Page = [0; PAGE];

/// A range of sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) sector: u64,
    pub(super) sectors: u32,
}

/// The part of an extent that lies on one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The number of the page.
    pub(super) page: u64,
    /// Its first byte on the page.
    pub(super) start: usize,
    /// Its length in bytes.
    pub(super) len: usize,
    /// Its first byte in the extent.
    pub(super) at: usize,
}

impl Extent {
    /// The parts of the extent, page by page.
    pub(super) fn parts(self) -> impl Iterator<Item = Part> {
        let (mut sector, end) = (self.sector, self.sector + u64::from(self.sectors));
        std::iter::from_fn(move || {
            let page = sector / PAGE_SECTORS;
            let until = ((page + 1) * PAGE_SECTORS).min(end);
            let bytes = |sectors: u64| (sectors * u64::from(SECTOR_SIZE)) as usize;
            let part = Part {
                page,
                start: bytes(sector % PAGE_SECTORS),
                len: bytes(until.checked_sub(sector).filter(|left| *left > 0)?),
                at: bytes(sector - self.sector),
            };
            sector = until;
            Some(part)
        })
    }

    /// The numbers of the pages that the extent touches.
    pub(super) fn pages(self) -> Range<u64> {
        let end = self.sector + u64::from(self.sectors);
        self.sector / PAGE_SECTORS..end.div_ceil(PAGE_SECTORS)
    }

    /// The sectors of page `n` that the extent covers, as a mask.
    pub(super) fn mask(self, n: u64) -> u8 {
        let first = n * PAGE_SECTORS;
        let from = self.sector.saturating_sub(first).min(PAGE_SECTORS);
        let to = (self.sector + u64::from(self.sectors)).saturating_sub(first).min(PAGE_SECTORS);
        (((1_u16 << to) - 1) & !((1_u16 << from) - 1)) as u8
    }
}

/// The sectors in a mask.
pub(super) fn sectors_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..PAGE_SECTORS as usize).filter(move |sector| mask & 1 << sector != 0)
}

/// The byte range of a sector on its page.
pub(super) fn bytes_of(sector: usize) -> Range<usize> {
    let size = SECTOR_SIZE as usize;
    sector * size..(sector + 1) * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_across_pages_that_are_there_and_not() {
        let mut image = Image::default();
        image.page_mut(1)[0] = 7;
        let mut out = [1; 3];
        image.read_at(4095, &mut out);
        assert_eq!(out, [0, 7, 0]);
        image.zero(1, 0b10);
        assert_eq!(image.page(1)[0], 7);
        image.zero(1, WHOLE);
        assert_eq!(image, Image::default());
    }

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

    #[test]
    fn extents_fall_into_pages() {
        let extent = Extent { sector: 6, sectors: 12 };
        let parts: Vec<_> = extent.parts().map(|p| (p.page, p.start, p.len, p.at)).collect();
        assert_eq!(parts, [(0, 3072, 1024, 0), (1, 0, 4096, 1024), (2, 0, 1024, 5120)]);
        assert_eq!(extent.pages(), 0..3);
        let masks: Vec<_> = (0..4).map(|n| extent.mask(n)).collect();
        assert_eq!(masks, [0b1100_0000, WHOLE, 0b11, 0]);
        assert_eq!(Extent { sector: 8, sectors: 0 }.parts().count(), 0);
    }
}
