//! The limits of one request to a device: the bounds of merging and of splitting.
//!
//! `cut.rs` decides where an I/O that exceeds them is divided.

use crate::{Op, SECTOR_SIZE};
use core::fmt;

/// Queue limits, with Linux's names and defaults (`spec/framework.md` sections 1 and 13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Logical block size in bytes: 512, 1024, 2048 or 4096. Every I/O is a multiple of it.
    pub logical_block_size: u32,
    /// The unit that the device can write without reading first, in bytes: a power of two. A value below the logical
    /// block size counts as that.
    pub physical_block_size: u32,
    /// Most sectors in one read or write.
    pub max_sectors: u32,
    /// Most sectors in one discard; 0 if the device cannot discard.
    pub max_discard_sectors: u32,
    /// The unit in which the device can discard, in bytes: a multiple of the logical block size. A value below the
    /// physical block size counts as that.
    pub discard_granularity: u32,
    /// Most sectors in one write of zeroes; 0 if the device has no such operation.
    pub max_write_zeroes_sectors: u32,
    /// Most ranges in one discard; above 1, discards merge wherever they lie.
    pub max_discard_segments: u16,
    /// Most scatter-gather segments in one request.
    pub max_segments: u16,
    /// Most bytes in one segment, at least a logical block.
    pub max_segment_size: u32,
    /// A read or write may not cross a multiple of this many sectors; 0 for no such boundary. A multiple of the
    /// logical block size.
    pub chunk_sectors: u32,
    /// Segments may meet only at multiples of this mask plus one, in bytes; 0 for no such rule.
    pub virt_boundary_mask: u64,
    /// For a payload in several ranges: the alignment of the start of each range in bytes, a power of two. The length
    /// of each range is then a multiple of the logical block size. 0 if ranges may have any start and length. The
    /// device itself checks a payload in one range.
    pub range_alignment: u32,
    /// Size of the device in sectors, up to [`Limits::MAX_CAPACITY`].
    pub capacity: u64,
    /// The device rotates, or reports that it does, so that positions matter. For policies; the engine does not use
    /// it.
    pub rotational: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            physical_block_size: 512,
            max_sectors: 8192,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            max_discard_segments: 1,
            max_segments: 128,
            max_segment_size: 65536,
            chunk_sectors: 0,
            virt_boundary_mask: 0,
            range_alignment: 0,
            capacity: Self::MAX_CAPACITY,
            rotational: false,
        }
    }
}

/// Contradictory limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitsError {
    /// Not a power of two from 512 to 4096.
    LogicalBlockSize(u32),
    /// Not a power of two.
    PhysicalBlockSize(u32),
    /// Less than one logical block.
    MaxSectors(u32),
    /// Less than one logical block, and not zero.
    MaxDiscardSectors(u32),
    /// Not a multiple of the logical block size.
    DiscardGranularity(u32),
    /// Less than one logical block, and not zero.
    MaxWriteZeroesSectors(u32),
    /// Zero segments.
    MaxSegments,
    /// Less than one logical block.
    MaxSegmentSize(u32),
    /// Not a multiple of the logical block size.
    ChunkSectors(u32),
    /// Not a power of two, and not zero.
    RangeAlignment(u32),
    /// More than [`Limits::MAX_CAPACITY`].
    Capacity(u64),
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogicalBlockSize(n) => {
                write!(f, "logical_block_size is {n}; accepted are 512, 1024, 2048 and 4096")
            }
            Self::PhysicalBlockSize(n) => {
                write!(f, "physical_block_size is {n}; it must be a power of two")
            }
            Self::MaxSectors(n) => {
                write!(f, "max_sectors is {n}; it must hold at least one logical block")
            }
            Self::MaxDiscardSectors(n) => write!(
                f,
                "max_discard_sectors is {n}; it must hold at least one logical block, or be 0"
            ),
            Self::DiscardGranularity(n) => write!(
                f,
                "discard_granularity is {n}; it must be a multiple of the logical block size"
            ),
            Self::MaxWriteZeroesSectors(n) => write!(
                f,
                "max_write_zeroes_sectors is {n}; it must hold at least one logical block, or be 0"
            ),
            Self::MaxSegments => f.write_str("max_segments is 0; it must be at least 1"),
            Self::MaxSegmentSize(n) => {
                write!(f, "max_segment_size is {n}; it must hold at least one logical block")
            }
            Self::ChunkSectors(n) => {
                write!(f, "chunk_sectors is {n}; it must be a multiple of the logical block size")
            }
            Self::RangeAlignment(n) => {
                write!(f, "range_alignment is {n}; it must be a power of two, or 0")
            }
            Self::Capacity(n) => {
                write!(f, "capacity is {n} sectors; it must be {} at most", Limits::MAX_CAPACITY)
            }
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// The most sectors of a device: its bytes can be counted in 64 bits.
    pub const MAX_CAPACITY: u64 = u64::MAX >> 9;

    /// Checks that requests can satisfy the limits.
    ///
    /// # Errors
    /// The first limit that no request could satisfy.
    pub const fn validate(&self) -> Result<(), LimitsError> {
        if !matches!(self.logical_block_size, 512 | 1024 | 2048 | 4096) {
            return Err(LimitsError::LogicalBlockSize(self.logical_block_size));
        }
        if !self.physical_block_size.is_power_of_two() {
            return Err(LimitsError::PhysicalBlockSize(self.physical_block_size));
        }
        let block = self.logical_block_size / SECTOR_SIZE;
        if self.max_sectors < block {
            return Err(LimitsError::MaxSectors(self.max_sectors));
        }
        if self.max_discard_sectors != 0 && self.max_discard_sectors < block {
            return Err(LimitsError::MaxDiscardSectors(self.max_discard_sectors));
        }
        if !self.discard_granularity.is_multiple_of(self.logical_block_size) {
            return Err(LimitsError::DiscardGranularity(self.discard_granularity));
        }
        if self.max_write_zeroes_sectors != 0 && self.max_write_zeroes_sectors < block {
            return Err(LimitsError::MaxWriteZeroesSectors(self.max_write_zeroes_sectors));
        }
        if self.max_segments == 0 {
            return Err(LimitsError::MaxSegments);
        }
        if self.max_segment_size < self.logical_block_size {
            return Err(LimitsError::MaxSegmentSize(self.max_segment_size));
        }
        if !self.chunk_sectors.is_multiple_of(block) {
            return Err(LimitsError::ChunkSectors(self.chunk_sectors));
        }
        if self.range_alignment != 0 && !self.range_alignment.is_power_of_two() {
            return Err(LimitsError::RangeAlignment(self.range_alignment));
        }
        if self.capacity > Self::MAX_CAPACITY {
            return Err(LimitsError::Capacity(self.capacity));
        }
        Ok(())
    }

    /// The most sectors that one request for `op` may span, wherever it is; 0 if the device does not have the
    /// operation, and for a flush, which spans none.
    #[must_use]
    pub const fn max_sectors_of(&self, op: Op) -> u32 {
        match op {
            Op::Read | Op::Write => self.max_sectors,
            Op::Flush => 0,
            Op::Discard => self.max_discard_sectors,
            Op::WriteZeroes => self.max_write_zeroes_sectors,
        }
    }

    /// The most sectors that a request for `op` starting at `sector` may span, chunk boundary included.
    #[must_use]
    pub const fn max_sectors_at(&self, sector: u64, op: Op) -> u32 {
        self.within_chunk(op, sector, self.max_sectors_of(op))
    }

    /// `most` sectors from `sector` on, or fewer if a chunk ends before. Operations that move no data are not bound by chunks, as in
    /// Linux.
    #[must_use]
    pub const fn within_chunk(&self, op: Op, sector: u64, most: u32) -> u32 {
        if self.chunk_sectors == 0 || !matches!(op, Op::Read | Op::Write) {
            return most;
        }
        let room = self.chunk_sectors - (sector % self.chunk_sectors as u64) as u32;
        if room < most { room } else { most }
    }

    /// The number of segments of an I/O of this many sectors in one range of memory, so that only the maximum segment
    /// size divides it; an I/O that moves no data is one range. [`segments_of`](Self::segments_of) counts the ranges.
    #[must_use]
    pub const fn segments(&self, op: Op, sectors: u32) -> u64 {
        match op {
            Op::Read | Op::Write if sectors > 0 => {
                (sectors as u64 * SECTOR_SIZE as u64).div_ceil(self.max_segment_size as u64)
            }
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_boundary_leaves_only_the_remaining_room() {
        let limits = Limits { chunk_sectors: 64, max_sectors: 48, ..Limits::default() };
        assert_eq!(limits.max_sectors_at(0, Op::Read), 48);
        assert_eq!(limits.max_sectors_at(60, Op::Write), 4);
        assert_eq!(limits.max_sectors_at(64, Op::Read), 48);
    }

    #[test]
    fn impossible_limits_say_what_is_accepted() {
        let good = Limits { logical_block_size: 4096, ..Limits::default() };
        assert!(good.validate().is_ok() && Limits::default().validate().is_ok());
        for (limits, error) in [
            (Limits { logical_block_size: 513, ..good }, LimitsError::LogicalBlockSize(513)),
            (Limits { physical_block_size: 6144, ..good }, LimitsError::PhysicalBlockSize(6144)),
            (Limits { max_sectors: 7, ..good }, LimitsError::MaxSectors(7)),
            (Limits { max_discard_sectors: 7, ..good }, LimitsError::MaxDiscardSectors(7)),
            (Limits { discard_granularity: 512, ..good }, LimitsError::DiscardGranularity(512)),
            (Limits { max_write_zeroes_sectors: 7, ..good }, LimitsError::MaxWriteZeroesSectors(7)),
            (Limits { max_segments: 0, ..good }, LimitsError::MaxSegments),
            (Limits { max_segment_size: 512, ..good }, LimitsError::MaxSegmentSize(512)),
            (Limits { chunk_sectors: 12, ..good }, LimitsError::ChunkSectors(12)),
            (Limits { range_alignment: 12, ..good }, LimitsError::RangeAlignment(12)),
            (Limits { capacity: 1 << 55, ..good }, LimitsError::Capacity(1 << 55)),
        ] {
            assert_eq!(limits.validate(), Err(error));
        }
    }

    #[test]
    fn a_segment_is_as_long_as_it_may_be() {
        let limits = Limits { max_segment_size: 4096, ..Limits::default() };
        let segments = |sectors| limits.segments(Op::Write, sectors);
        assert_eq!([1, 8, 9, 16, 17].map(segments), [1, 1, 2, 2, 3]);
        assert_eq!(limits.segments(Op::Discard, 1000), 1);
        assert_eq!(limits.segments(Op::Flush, 0), 1);
    }
}
