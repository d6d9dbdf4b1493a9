//! Data that is not durable: the dirty sectors of pages, each with the number of the completion since which a flush
//! must cover it.
//!
//! Contains the volatile cache as well as writes in flight: a read sees the newest bytes of a sector from either.
//! `store.rs` decides when pages leave.

use super::image::{Extent, Image, Page, Part, WHOLE, ZEROES, bytes_of, sectors_of};
use std::collections::BTreeMap;
use std::ops::Range;

/// No flush must cover the sector: only writes that have not completed dirtied it.
const NOT_OWED: u64 = u64::MAX;

/// The maximum number of pages kept for reuse.
const SPARES: usize = 256;

/// Dirty sectors of one page.
#[derive(Debug)]
struct Dirty {
    /// `None` if all dirty sectors are zero.
    data: Option<Box<Page>>,
    /// The dirty sectors; not empty once the page has been marked.
    mask: u8,
    /// For each sector, the number of the completion since which a flush must cover it.
    owed: [u64; 8],
}

impl Dirty {
    fn new() -> Self {
        Self { data: None, mask: 0, owed: [NOT_OWED; 8] }
    }

    /// The sectors among `mask` that flushes have had to cover since before `number`.
    fn owed_before(&self, number: u64, mask: u8) -> u8 {
        sectors_of(self.mask & mask)
            .filter(|sector| self.owed[*sector] < number)
            .fold(0, |found, sector| found | 1 << sector)
    }
}

/// Dirty pages by number.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pages: BTreeMap<u64, Dirty>,
    /// Pages for reuse, at most [`SPARES`]: a steady number of writes in flight needs no allocation.
    spares: Vec<Box<Page>>,
    /// The page at which eviction continues.
    cursor: u64,
}

impl Cache {
    /// Number of pages in the cache.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Number of dirty bytes.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let sectors: u32 = self.pages.values().map(|dirty| dirty.mask.count_ones()).sum();
        u64::from(sectors) * u64::from(blkmq_core::SECTOR_SIZE)
    }

    /// The numbers of the dirty pages within `range`.
    pub(super) fn numbers(&self, range: Range<u64>) -> Vec<u64> {
        self.pages.range(range).map(|(n, _)| *n).collect()
    }

    /// The dirty sectors of page `n`.
    pub(super) fn mask(&self, n: u64) -> u8 {
        self.pages.get(&n).map_or(0, |dirty| dirty.mask)
    }

    /// The bytes of page `n`, of which only the dirty sectors count.
    pub(super) fn page(&self, n: u64) -> &Page {
        self.pages.get(&n).and_then(|dirty| dirty.data.as_deref()).unwrap_or(&ZEROES)
    }

    fn entry(&mut self, n: u64) -> &mut Dirty {
        self.pages.entry(n).or_insert_with(Dirty::new)
    }

    /// Removes page `n`.
    fn remove(&mut self, n: u64) {
        let left = self.pages.remove(&n).and_then(|dirty| dirty.data);
        if let Some(page) = left.filter(|_| self.spares.len() < SPARES) {
            self.spares.push(page);
        }
    }

    /// The number of the first dirty page within `range`.
    pub(super) fn first(&self, range: Range<u64>) -> Option<u64> {
        self.pages.range(range).next().map(|(n, _)| *n)
    }

    /// The bytes of `part`, to be written. The caller must call [`mark`](Self::mark) next.
    pub(super) fn slot(&mut self, part: &Part) -> &mut [u8] {
        let dirty = self.pages.entry(part.page).or_insert_with(Dirty::new);
        let data = dirty.data.get_or_insert_with(|| match self.spares.pop() {
            // Dirty sectors without data are zero; bytes of other sectors do not matter.
            Some(mut page) if dirty.mask != 0 => {
                *page = ZEROES;
                page
            }
            Some(page) => page,
            None => Box::new(ZEROES),
        });
        &mut data[part.start..][..part.len]
    }

    /// Marks the sectors of page `n` in `mask` as dirty.
    pub(super) fn mark(&mut self, n: u64, mask: u8) {
        self.entry(n).mask |= mask;
        self.forget(n, 0);
    }

    /// Makes sectors of page `n` dirty and zero.
    pub(super) fn zero(&mut self, n: u64, mask: u8) {
        let dirty = self.entry(n);
        dirty.mask |= mask;
        if mask == WHOLE {
            dirty.data = None;
        } else if let Some(data) = &mut dirty.data {
            sectors_of(mask).for_each(|sector| data[bytes_of(sector)].fill(0));
        }
    }

    /// Notes that a write of `extent` has completed as number `number`: the next flush must cover its dirty sectors.
    pub(super) fn owe(&mut self, extent: Extent, number: u64) {
        for (n, dirty) in self.pages.range_mut(extent.pages()) {
            for sector in sectors_of(dirty.mask & extent.mask(*n)) {
                dirty.owed[sector] = dirty.owed[sector].min(number);
            }
        }
    }

    /// Removes sectors of page `n` that have become durable otherwise, or are lost.
    pub(super) fn forget(&mut self, n: u64, mask: u8) {
        let Some(dirty) = self.pages.get_mut(&n) else { return };
        dirty.mask &= !mask;
        sectors_of(mask).for_each(|sector| dirty.owed[sector] = NOT_OWED);
        if dirty.mask == 0 {
            self.remove(n);
        }
    }

    /// Writes the dirty sectors of page `n` that are in `mask` to `image`.
    pub(super) fn write_back(&mut self, n: u64, mask: u8, image: &mut Image) {
        let mask = mask & self.mask(n);
        match self.pages.get(&n).map(|dirty| &dirty.data) {
            Some(Some(data)) if mask == WHOLE => *image.page_mut(n) = **data,
            Some(Some(data)) if mask != 0 => {
                let page = image.page_mut(n);
                for sector in sectors_of(mask) {
                    page[bytes_of(sector)].copy_from_slice(&data[bytes_of(sector)]);
                }
            }
            Some(None) => image.zero(n, mask),
            _ => {}
        }
        self.forget(n, mask);
    }

    /// Writes back every sector that flushes have had to cover since before `number`. O(pages).
    pub(super) fn write_back_owed(&mut self, number: u64, image: &mut Image) {
        let owed = self.pages.iter().map(|(n, dirty)| (*n, dirty.owed_before(number, WHOLE)));
        for (n, mask) in owed.filter(|(_, mask)| *mask != 0).collect::<Vec<_>>() {
            self.write_back(n, mask, image);
        }
    }

    /// Writes back pages in ascending order, cyclically from the last position, until at most `most` are left.
    pub(super) fn evict(&mut self, most: usize, image: &mut Image) {
        while self.pages.len() > most {
            let next = self.pages.range(self.cursor..).next().or_else(|| self.pages.iter().next());
            let n = *next.expect("there are more than `most`").0;
            self.cursor = n + 1;
            self.write_back(n, WHOLE, image);
        }
    }
}
