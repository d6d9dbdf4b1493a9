//! What a device can take in one request. The bounds of merging, and of what a submitter may ask for.

use core::fmt;

/// Queue limits, with Linux's names and defaults (`spec/framework.md` sections 1 and 13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Logical block size in bytes: 512, 1024, 2048 or 4096. Every I/O is a multiple of it.
    pub logical_block_size: u32,
    /// Sectors in one read or write.
    pub max_sectors: u32,
    /// Sectors in one discard; 0 if the device cannot discard.
    pub max_discard_sectors: u32,
    /// Ranges in one discard; above 1, discards merge wherever they lie.
    pub max_discard_segments: u16,
    /// Scatter-gather segments in one request.
    pub max_segments: u16,
    /// Bytes in one segment.
    pub max_segment_size: u32,
    /// A request may not cross a multiple of this many sectors; 0 for no such boundary.
    pub chunk_sectors: u32,
    /// Segments may meet only at multiples of this mask plus one, in bytes; 0 for no such rule.
    pub virt_boundary_mask: u64,
    /// Size of the device in sectors.
    pub capacity: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            max_sectors: 8192,
            max_discard_sectors: 0,
            max_discard_segments: 1,
            max_segments: 128,
            max_segment_size: 65536,
            chunk_sectors: 0,
            virt_boundary_mask: 0,
            capacity: u64::MAX >> 9,
        }
    }
}

/// Limits that contradict themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitsError {
    /// Not a power of two from 512 to 4096.
    LogicalBlockSize(u32),
    /// Less than one logical block.
    MaxSectors(u32),
    /// Zero segments.
    MaxSegments,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogicalBlockSize(n) => {
                write!(f, "logical_block_size is {n}; accepted are 512, 1024, 2048 and 4096")
            }
            Self::MaxSectors(n) => {
                write!(f, "max_sectors is {n}; it must hold at least one logical block")
            }
            Self::MaxSegments => f.write_str("max_segments is 0; it must be at least 1"),
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// Checks that the limits can be met at all.
    ///
    /// # Errors
    /// The first limit that no request could satisfy.
    pub const fn validate(&self) -> Result<(), LimitsError> {
        if !matches!(self.logical_block_size, 512 | 1024 | 2048 | 4096) {
            return Err(LimitsError::LogicalBlockSize(self.logical_block_size));
        }
        if self.max_sectors < self.logical_block_size / crate::SECTOR_SIZE {
            return Err(LimitsError::MaxSectors(self.max_sectors));
        }
        if self.max_segments == 0 {
            return Err(LimitsError::MaxSegments);
        }
        Ok(())
    }

    /// The most sectors that a request starting at `sector` may span, chunk boundary included.
    #[must_use]
    pub const fn max_sectors_at(&self, sector: u64, discard: bool) -> u32 {
        let max = if discard { self.max_discard_sectors } else { self.max_sectors };
        if self.chunk_sectors == 0 {
            return max;
        }
        let room = self.chunk_sectors - (sector % self.chunk_sectors as u64) as u32;
        if room < max { room } else { max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_boundary_leaves_only_the_remaining_room() {
        let limits = Limits { chunk_sectors: 64, max_sectors: 48, ..Limits::default() };
        assert_eq!(limits.max_sectors_at(0, false), 48);
        assert_eq!(limits.max_sectors_at(60, false), 4);
        assert_eq!(limits.max_sectors_at(64, false), 48);
    }

    #[test]
    fn impossible_limits_say_what_is_accepted() {
        let limits = Limits { logical_block_size: 513, ..Limits::default() };
        assert_eq!(limits.validate(), Err(LimitsError::LogicalBlockSize(513)));
        assert!(Limits::default().validate().is_ok());
    }
}
