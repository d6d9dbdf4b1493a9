//! The cuts of an I/O that exceeds the limits of its device (`spec/framework.md` section 13, Split).
//!
//! Arithmetic only. The engine divides the I/O and joins it again.

use crate::{Limits, Op, SECTOR_SIZE};

/// The parts of an I/O in ascending order: the start and the length of each, in sectors.
#[derive(Clone, Debug)]
pub struct Parts {
    limits: Limits,
    op: Op,
    sector: u64,
    left: u32,
}

impl Iterator for Parts {
    type Item = (u64, u32);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let part = (self.sector, self.limits.first_part(self.op, self.sector, self.left));
        debug_assert!(part.1 > 0, "limits that were validated take at least a block");
        self.sector += u64::from(part.1);
        self.left -= part.1;
        Some(part)
    }
}

impl Limits {
    /// The preferred alignment of cuts, in sectors: the physical block, or the discard granularity.
    const fn alignment(&self, op: Op) -> u32 {
        let preferred = match op {
            Op::Discard => larger(self.discard_granularity, self.physical_block_size),
            _ => self.physical_block_size,
        };
        larger(preferred, self.logical_block_size) / SECTOR_SIZE
    }

    const fn block_sectors(&self) -> u32 {
        self.logical_block_size / SECTOR_SIZE
    }

    /// The largest I/O, in sectors, that the device takes whole if it crosses no chunk boundary:
    /// [`max_sectors_of`](Self::max_sectors_of) in whole blocks, within the segments of one request.
    #[must_use]
    pub const fn max_whole_sectors(&self, op: Op) -> u32 {
        let most = self.max_sectors_of(op) as u64;
        let most = match op {
            Op::Read | Op::Write => {
                let bytes = self.max_segments as u64 * self.max_segment_size as u64;
                smaller(bytes / SECTOR_SIZE as u64, most)
            }
            _ => most,
        };
        (most - most % self.block_sectors() as u64) as u32
    }

    /// The length of an I/O's first part in sectors: the whole I/O if the device takes it undivided. Requires valid
    /// limits, an operation that the device has, and an I/O of whole blocks.
    ///
    /// A cut is aligned down to the physical block size (for a discard, to the discard granularity), or to the logical
    /// block size if nothing would be left. O(1).
    #[must_use]
    pub const fn first_part(&self, op: Op, sector: u64, sectors: u32) -> u32 {
        let most = self.within_chunk(op, sector, self.max_whole_sectors(op));
        if sectors <= most {
            return sectors;
        }
        // Both bounds are multiples of the logical block size, and so is every chunk.
        self.cut_within(op, sector, most)
    }

    /// The length in sectors of a part that begins at `sector`, has up to `most` sectors and is not the last. The cut
    /// is at the preferred alignment or, failing that, behind the last whole block; 0 if there is no whole block.
    pub(crate) const fn cut_within(&self, op: Op, sector: u64, most: u32) -> u32 {
        let end = sector + most as u64;
        let aligned = end - end % self.alignment(op) as u64;
        if aligned > sector {
            (aligned - sector) as u32
        } else {
            most - most % self.block_sectors()
        }
    }

    /// The parts that an I/O is divided into; a single part if the device takes it whole. Conditions as for
    /// [`first_part`](Self::first_part).
    #[must_use]
    pub const fn parts(&self, op: Op, sector: u64, sectors: u32) -> Parts {
        Parts { limits: *self, op, sector, left: sectors }
    }

    /// The most parts that an I/O of this many sectors in one range of memory has, wherever it begins: the credit that
    /// a submitter needs. May exceed the true maximum where chunks are not multiples of other limits. 0 if the device
    /// lacks the operation.
    #[must_use]
    pub const fn most_parts(&self, op: Op, sectors: u32) -> u64 {
        let (most, align) = (self.max_whole_sectors(op), self.alignment(op));
        if most == 0 {
            return 0;
        }
        if self.chunk_sectors == 0 || !matches!(op, Op::Read | Op::Write) {
            return parts_of_stretch(sectors, most, align);
        }
        // An I/O is cut at every chunk boundary that it crosses. A cut before the boundary may be aligned down, which
        // leaves a further part in the chunk.
        let chunks = sectors.div_ceil(self.chunk_sectors) as u64 + 1;
        let stretch = smaller(sectors as u64, self.chunk_sectors as u64);
        chunks * (parts_of_stretch(stretch as u32, most, align) + 1)
    }
}

/// `u32::max`, which is not `const`.
const fn larger(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

/// `u64::min`, which is not `const`.
const fn smaller(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

/// The number of parts of a stretch of `sectors` without a chunk boundary, if each part has up to `most` sectors and
/// cuts are aligned to `align`.
const fn parts_of_stretch(sectors: u32, most: u32, align: u32) -> u64 {
    if sectors <= most {
        1
    } else if most >= align {
        // Behind the first cut all parts have their full length.
        1 + sectors.div_ceil(most - most % align) as u64
    } else {
        (sectors.div_ceil(align) as u64 + 1) * align.div_ceil(most) as u64
    }
}

#[cfg(test)]
mod tests;
