//! The places of a thread's blocks: block by block in each of its regions.
//!
//! Between two regions the numbers leave one block out, which is never written, so that no read for verification runs
//! from one file into the next.

use crate::workload::Region;
use blkmq_core::SECTOR_SIZE;

/// The blocks of a region.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// First sector of the file, on the device.
    file: u64,
    /// First sector of the region, on the device.
    start: u64,
    /// The number of its first block.
    first: usize,
}

/// The blocks of all regions of a thread; at least one region.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    /// By number of the first block, and as long as there is one, by place.
    spans: Box<[Span]>,
    /// Indices into `spans`, by place on the device.
    by_place: Box<[usize]>,
    /// Sectors in a block.
    block: u64,
    blocks: usize,
}

impl Spans {
    /// The blocks of `interval` bytes of `regions`.
    pub(super) fn new(regions: &[Region], interval: u32) -> Self {
        let sectors = |bytes: u64| bytes / u64::from(SECTOR_SIZE);
        let (mut spans, mut blocks) = (Vec::with_capacity(regions.len()), 0usize);
        for region in regions {
            let first = if spans.is_empty() { 0 } else { blocks.saturating_add(1) };
            spans.push(Span { file: sectors(region.file), start: sectors(region.start), first });
            let count = usize::try_from(region.size / u64::from(interval)).unwrap_or(usize::MAX);
            blocks = first.saturating_add(count);
        }
        let mut by_place = Vec::from_iter(0..spans.len());
        by_place.sort_by_key(|at| spans[*at].start);
        let block = sectors(interval.into());
        Self { spans: spans.into(), by_place: by_place.into(), block, blocks }
    }

    /// The number of numbers, those left out included.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// First sector of the first region.
    pub(super) fn start(&self) -> u64 {
        self.spans[0].start
    }

    /// The block that begins at `sector`, which lies in one of the regions. O(log regions).
    pub(super) fn block(&self, sector: u64) -> usize {
        let span = match &*self.spans {
            [span] => span,
            spans => {
                let behind = self.by_place.partition_point(|at| spans[*at].start <= sector);
                &spans[self.by_place[behind - 1]]
            }
        };
        let at = sector - span.start;
        debug_assert!(at.is_multiple_of(self.block), "the interval divides every I/O");
        span.first + (at / self.block) as usize
    }

    /// The first sector of block `block`, on the device. O(log regions).
    pub(super) fn sector(&self, block: usize) -> u64 {
        let span = self.of_block(block);
        span.start + (block - span.first) as u64 * self.block
    }

    /// Like [`sector`](Self::sector), but counted from the start of the block's file.
    pub(super) fn sector_of_file(&self, block: usize) -> u64 {
        self.sector(block) - self.of_block(block).file
    }

    fn of_block(&self, block: usize) -> &Span {
        match &*self.spans {
            [span] => span,
            spans => &spans[spans.partition_point(|span| span.first <= block) - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_place_and_a_number_in_every_region() {
        let region =
            |file: u64, start: u64| Region { file, start, size: 16384, room: 16384, asked: 16384 };
        // The second file lies in front of the first.
        let regions =
            [region(1 << 20, (1 << 20) + 8192), region(0, 4096), region(2 << 20, 2 << 20)];
        let spans = Spans::new(&regions, 4096);
        assert_eq!((spans.blocks(), spans.start()), (14, 2064));
        for number in [0, 3, 5, 8, 10, 13] {
            assert_eq!(spans.block(spans.sector(number)), number);
        }
        assert_eq!((spans.sector(5), spans.sector_of_file(5)), (8, 8));
        assert_eq!((spans.sector(0), spans.sector_of_file(0)), (2064, 16));
        assert_eq!(spans.sector_of_file(10), 0);
        let one = Spans::new(&regions[1..2], 4096);
        assert_eq!((one.blocks(), one.block(16), one.sector(1)), (4, 1, 16));
    }
}
