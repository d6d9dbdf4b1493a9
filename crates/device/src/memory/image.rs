//! [`Image`]: the sparse contents of a device.

use super::chunk::{self, Chunk};
use super::page::{PAGE, Page, WHOLE, ZEROES};
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
    /// Copies the bytes from `offset` on into `out`. Zeroes beyond the end of the device.
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

    /// Bytes of the stored pages. Their memory comes in chunks of 64 pages, and goes when none of the 64 is stored.
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

    /// Page `n`, added if it is not stored.
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
        let chunks = range.start / chunk::PAGES..range.end.div_ceil(chunk::PAGES);
        let pages = |(n, chunk): (&u64, &Chunk)| {
            let first = n * chunk::PAGES;
            chunk.stored().map(move |at| first + at as u64)
        };
        self.chunks.range(chunks).flat_map(pages).filter(move |n| range.contains(n))
    }
}

/// The number of the chunk that page `n` is in, and its place there.
fn place(n: u64) -> (u64, usize) {
    (n / chunk::PAGES, (n % chunk::PAGES) as usize)
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
}
