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

    /// The most sectors of an I/O that is taken whole if it crosses no chunk boundary:
    /// [`max_sectors_of`](Self::max_sectors_of), in whole blocks, and within the segments of one request.
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

    /// The number of an I/O's sectors in its first part: all of them if the device takes it whole. The limits are
    /// valid, the device has the operation, and the I/O consists of whole blocks.
    ///
    /// A cut is aligned down to the physical block size (for a discard, to the discard granularity), or, where that
    /// would leave nothing, to the logical block size. O(1).
    #[must_use]
    pub const fn first_part(&self, op: Op, sector: u64, sectors: u32) -> u32 {
        let most = self.within_chunk(op, sector, self.max_whole_sectors(op));
        if sectors <= most {
            return sectors;
        }
        // Both bounds are multiples of the logical block size, and so is every chunk.
        self.cut_within(op, sector, most)
    }

    /// The sectors of a part of an I/O at `sector` that may have `most` sectors and is not the last: a cut at the
    /// preferred alignment or, where there is none, behind the last whole block; 0 if there is no whole block.
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

    /// The most parts of an I/O of this many sectors in one range of memory, wherever it begins: the credit that a
    /// submitter needs. May exceed the true maximum where chunks are not multiples of other limits. 0 if the device does not have the
    /// operation.
    #[must_use]
    pub const fn most_parts(&self, op: Op, sectors: u32) -> u64 {
        let (most, align) = (self.max_whole_sectors(op), self.alignment(op));
        if most == 0 {
            return 0;
        }
        if self.chunk_sectors == 0 || !matches!(op, Op::Read | Op::Write) {
            return parts_of_stretch(sectors, most, align);
        }
        // An I/O has a stretch in each chunk that it touches. The cut before a chunk's end may be aligned down and
        // leave a rest, which is a part of its own.
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
