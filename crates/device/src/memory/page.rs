//! Pages, and the arithmetic of sector ranges on them.

use blkmq_core::SECTOR_SIZE;
use std::ops::Range;

/// Bytes in a page, as in Linux. A logical block never crosses a page boundary.
pub const PAGE: usize = 4096;
/// Sectors in a page.
pub(super) const PAGE_SECTORS: u64 = PAGE as u64 / SECTOR_SIZE as u64;
/// Every sector of a page, as a mask.
pub(super) const WHOLE: u8 = u8::MAX;
const _: () = assert!(PAGE_SECTORS == u8::BITS as u64, "a bit per sector");

/// The contents of one page.
pub(super) type Page = [u8; PAGE];

/// The contents of a page that is not stored.
pub(super) const ZEROES: Page = [0; PAGE];

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
