//! The limits of one request to a device, the bounds of merging and of splitting; and the cuts of an I/O that exceeds
//! them (`spec/framework.md` section 13, Split), and of a payload in several ranges of memory: its segments, and the
//! cuts that keep a request within the limits on them.
//!
//! Arithmetic only, on lengths and addresses; no byte is accessed. The engine divides the I/O and joins it again.

use crate::{Op, Payload, SECTOR_SIZE};
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

    /// `most` sectors from `sector` on, or fewer if a chunk ends before. Operations that move no data are not bound by
    /// chunks, as in Linux.
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
    const fn cut_within(&self, op: Op, sector: u64, most: u32) -> u32 {
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

/// Returns whether the memory of `payload` is in more than one range. Costs nothing for a type that has one at most.
#[inline(always)]
pub fn is_list(payload: &impl Payload) -> bool {
    payload.ranges().nth(1).is_some()
}

/// The address of a range and its length in bytes; `None` if it is empty.
fn place(range: *mut [u8]) -> Option<(usize, usize)> {
    (!range.is_empty()).then(|| (range.cast::<u8>().addr(), range.len()))
}

/// A block of an I/O cannot be in one request: its bytes are in too many ranges, or in ranges that must not meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooScattered;

/// The ranges of a payload from a byte on.
#[derive(Clone, Debug)]
struct Rest<R> {
    ranges: R,
    /// The rest of the range that was begun.
    begun: (usize, usize),
}

impl<R: Iterator<Item = *mut [u8]>> Rest<R> {
    fn new(ranges: R) -> Self {
        Self { ranges, begun: (0, 0) }
    }

    /// The next range, or the rest of it.
    fn next(&mut self) -> Option<(usize, usize)> {
        match core::mem::take(&mut self.begun) {
            (_, 0) => self.ranges.find_map(place),
            begun => Some(begun),
        }
    }

    /// Advances by `bytes` bytes, or to the end.
    fn skip(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some((at, len)) = self.next()
        {
            let skipped = bytes.min(len as u64);
            bytes -= skipped;
            // Within the range, or just behind it: an address that does not wrap around.
            self.begun = (at.wrapping_add(skipped as usize), len - skipped as usize);
        }
    }
}

/// The parts of a read or write whose payload is a list, in ascending order: the start and the length of each, in
/// sectors. O(ranges) in total, except that the ranges behind an aligned-down cut are scanned twice.
#[derive(Clone, Debug)]
pub struct ListParts<R> {
    limits: Limits,
    op: Op,
    sector: u64,
    left: u32,
    rest: Rest<R>,
}

impl<R: Iterator<Item = *mut [u8]> + Clone> Iterator for ListParts<R> {
    type Item = Result<(u64, u32), TooScattered>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let longest = self.limits.first_part(self.op, self.sector, self.left);
        let reached = self.limits.reach(self.rest.clone(), bytes(longest));
        let sectors = if reached < bytes(longest) {
            let most = (reached / u64::from(SECTOR_SIZE)) as u32;
            self.limits.cut_within(self.op, self.sector, most)
        } else {
            longest
        };
        if sectors == 0 {
            self.left = 0;
            return Some(Err(TooScattered));
        }
        let part = (self.sector, sectors);
        self.rest.skip(bytes(sectors));
        self.sector += u64::from(sectors);
        self.left -= sectors;
        Some(Ok(part))
    }
}

fn bytes(sectors: u32) -> u64 {
    u64::from(sectors) * u64::from(SECTOR_SIZE)
}

impl Limits {
    /// The segments of an I/O of this many sectors: at least one for each range of its payload. An upper bound, because
    /// adjacent ranges are counted separately. O(ranges).
    #[must_use]
    #[inline]
    pub fn segments_of(&self, op: Op, sectors: u32, payload: &impl Payload) -> u64 {
        if !matches!(op, Op::Read | Op::Write) || !is_list(payload) {
            return self.segments(op, sectors);
        }
        let len = |(_, len): (usize, usize)| (len as u64).div_ceil(self.max_segment_size.into());
        payload.ranges().filter_map(place).map(len).sum()
    }

    /// Returns whether each range has the [alignment](Self::range_alignment) that the device requires.
    pub fn takes_ranges(&self, ranges: impl Iterator<Item = *mut [u8]>) -> bool {
        let (start, block) = (self.range_alignment as usize, self.logical_block_size as usize);
        start == 0
            || ranges
                .filter_map(place)
                .all(|(at, len)| at.is_multiple_of(start) && len.is_multiple_of(block))
    }

    /// The parts into which a read or write with its payload in `ranges` is divided; a single part if the device takes
    /// it whole. Ends with an error at a block that no request can hold. Conditions as for
    /// [`first_part`](Self::first_part).
    pub fn parts_of_list<R>(&self, op: Op, sector: u64, sectors: u32, ranges: R) -> ListParts<R>
    where
        R: Iterator<Item = *mut [u8]> + Clone,
    {
        ListParts { limits: *self, op, sector, left: sectors, rest: Rest::new(ranges) }
    }

    /// The number of bytes, `most` at most, that one request may have from the start of `rest` on. The memory beyond
    /// the last range counts as contiguous: the device refuses a payload that is too short.
    fn reach<R>(&self, mut rest: Rest<R>, most: u64) -> u64
    where
        R: Iterator<Item = *mut [u8]>,
    {
        let segment = u64::from(self.max_segment_size);
        let mut segments = u64::from(self.max_segments);
        let (mut reached, mut end) = (0, None);
        while reached < most {
            let Some((at, len)) = rest.next() else { return most };
            let joint = end.map_or(0, |end| end as u64 | at as u64);
            if joint & self.virt_boundary_mask != 0 {
                break;
            }
            let part = (len as u64).min(most - reached).min(segments * segment);
            reached += part;
            segments -= part.div_ceil(segment);
            if part < len as u64 {
                break;
            }
            end = Some(at.wrapping_add(len));
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::ptr::{slice_from_raw_parts_mut, without_provenance_mut};

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

    const SEEDS: u64 = 20_000;

    /// Returns whether a part may begin at `sector` and have this many sectors. Checks each limit separately.
    fn obeys(limits: &Limits, op: Op, sector: u64, sectors: u32) -> bool {
        let within = sectors <= limits.max_sectors_of(op);
        let moves_data = matches!(op, Op::Read | Op::Write);
        let chunk = if moves_data { u64::from(limits.chunk_sectors) } else { 0 };
        let crosses =
            (sector + 1..sector + u64::from(sectors)).any(|at| chunk > 0 && at % chunk == 0);
        let (mut segments, mut in_segment) = (1, 0);
        for _ in 0..sectors * SECTOR_SIZE {
            if in_segment == limits.max_segment_size {
                (segments, in_segment) = (segments + 1, 0);
            }
            in_segment += 1;
        }
        within && !crosses && (!moves_data || segments <= u32::from(limits.max_segments))
    }

    /// The length of the first part: grown block by block as far as possible, and if that is not the end, cut back to
    /// the last preferred position.
    fn naive_first_part(limits: &Limits, op: Op, sector: u64, sectors: u32) -> u32 {
        let block = limits.logical_block_size / SECTOR_SIZE;
        let wanted = match op {
            Op::Discard => limits.discard_granularity.max(limits.physical_block_size),
            _ => limits.physical_block_size,
        };
        let lengths = || (1..=sectors / block).map(|blocks| blocks * block);
        let longest = lengths().take_while(|n| obeys(limits, op, sector, *n)).last();
        let longest = longest.expect("a block is always taken");
        if longest == sectors {
            return sectors;
        }
        let aligned = |n: &u32| ((sector + u64::from(*n)) * 512).is_multiple_of(wanted.into());
        lengths().take_while(|n| *n <= longest).filter(aligned).last().unwrap_or(longest)
    }

    fn draw_limits(rng: &mut Rng) -> Limits {
        let block = 1 << rng.below(4);
        let any = |rng: &mut Rng, most: u64| (block + rng.below(most)) as u32;
        let limits = Limits {
            logical_block_size: block as u32 * SECTOR_SIZE,
            physical_block_size: SECTOR_SIZE << rng.below(6),
            max_sectors: any(rng, 40),
            max_discard_sectors: any(rng, 60),
            discard_granularity: (block * rng.below(10)) as u32 * SECTOR_SIZE,
            max_write_zeroes_sectors: any(rng, 20),
            max_segments: 1 + rng.below(6) as u16,
            // Any number of bytes will do.
            max_segment_size: any(rng, 20) * SECTOR_SIZE + rng.below(512) as u32,
            chunk_sectors: if rng.chance(1, 2) { (block * rng.below(20)) as u32 } else { 0 },
            ..Limits::default()
        };
        limits.validate().expect("drawn within bounds");
        limits
    }

    /// Parts tile the I/O, obey every limit, and lie where the model cuts; and there are no more than announced.
    #[test]
    fn s16_14_parts_are_those_of_the_model() {
        for seed in 0..SEEDS {
            let rng = &mut Rng::new(seed);
            let limits = draw_limits(rng);
            let block = limits.logical_block_size / SECTOR_SIZE;
            let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes][rng.below(4) as usize];
            let (sector, sectors) =
                (rng.below(50) * u64::from(block), block * (1 + rng.below(20) as u32));
            let (mut at, mut left, mut count) = (sector, sectors, 0);
            for (part_at, part) in limits.parts(op, sector, sectors) {
                let what =
                    || alloc::format!("seed {seed}: {op:?} {sector}+{sectors} at {at}: {limits:?}");
                assert_eq!(part_at, at, "{}", what());
                assert!(obeys(&limits, op, at, part), "{}", what());
                assert_eq!(part, naive_first_part(&limits, op, at, left), "{}", what());
                at += u64::from(part);
                left = left.checked_sub(part).expect("parts are no longer than the I/O");
                count += 1;
                assert!(count <= u64::from(sectors), "parts that have no end");
            }
            assert_eq!(left, 0);
            let most = limits.most_parts(op, sectors);
            assert!(count <= most, "seed {seed}: {count} parts and at most {most} of {limits:?}");
            assert_eq!(count > 1, !obeys(&limits, op, sector, sectors), "no cut without a reason");
        }
    }

    /// Stops at one more than there are sectors, so that an endless series of parts fails instead of hanging.
    fn parts(limits: &Limits, op: Op, sector: u64, sectors: u32) -> Vec<(u64, u32)> {
        limits.parts(op, sector, sectors).take(sectors as usize + 1).collect()
    }

    #[test]
    fn s16_14_each_limit_takes_its_limit_whole_and_one_more_in_two() {
        let base = Limits { max_sectors: 16, ..Limits::default() };
        let segments =
            Limits { max_sectors: 8192, max_segments: 2, max_segment_size: 4096, ..base };
        let chunks = Limits { max_sectors: 8192, chunk_sectors: 16, ..base };
        let discard = Limits { max_discard_sectors: 16, ..Limits::default() };
        let zeroes = Limits { max_write_zeroes_sectors: 16, ..Limits::default() };
        for (limits, op) in [
            (base, Op::Read),
            (base, Op::Write),
            (segments, Op::Write),
            (chunks, Op::Write),
            (discard, Op::Discard),
            (Limits { chunk_sectors: 8, ..discard }, Op::Discard),
            (zeroes, Op::WriteZeroes),
            (Limits { chunk_sectors: 8, ..zeroes }, Op::WriteZeroes),
        ] {
            assert_eq!(parts(&limits, op, 32, 16), [(32, 16)], "{op:?} {limits:?}");
            assert_eq!(parts(&limits, op, 32, 17), [(32, 16), (48, 1)], "{op:?} {limits:?}");
        }
    }

    #[test]
    fn cuts_lie_at_physical_blocks_and_where_there_is_none_at_logical_ones() {
        let limits = Limits { physical_block_size: 4096, max_sectors: 20, ..Limits::default() };
        assert_eq!(parts(&limits, Op::Write, 3, 40), [(3, 13), (16, 16), (32, 11)]);
        let small = Limits { max_sectors: 3, ..limits };
        assert_eq!(parts(&small, Op::Write, 0, 10), [(0, 3), (3, 3), (6, 2), (8, 2)]);
        let chunks = Limits { chunk_sectors: 12, ..limits };
        assert_eq!(parts(&chunks, Op::Write, 0, 24), [(0, 8), (8, 4), (12, 12)]);
    }

    #[test]
    fn discards_are_cut_at_their_own_granularity() {
        let limits = Limits {
            physical_block_size: 4096,
            discard_granularity: 8192,
            max_discard_sectors: 40,
            ..Limits::default()
        };
        assert_eq!(parts(&limits, Op::Discard, 8, 64), [(8, 40), (48, 24)]);
        assert_eq!(parts(&limits, Op::Discard, 10, 64), [(10, 38), (48, 26)]);
        let none = Limits { discard_granularity: 0, ..limits };
        assert_eq!(
            parts(&none, Op::Discard, 10, 64),
            [(10, 38), (48, 26)],
            "physical blocks, then"
        );
        assert_eq!(parts(&none, Op::Discard, 4, 64), [(4, 36), (40, 28)]);
    }

    #[test]
    fn an_unsupported_operation_has_no_parts_to_count() {
        let limits = Limits::default();
        assert_eq!(
            (limits.most_parts(Op::Discard, 8), limits.most_parts(Op::WriteZeroes, 8)),
            (0, 0)
        );
        assert_eq!(limits.most_parts(Op::Read, 8192), 1);
        assert_eq!(parts(&limits, Op::Read, 0, 8193), vec![(0, 8192), (8192, 1)]);
    }

    /// A submitter reserves this much credit, so the bound must be no looser than documented.
    #[test]
    fn the_most_parts_are_those_of_a_stretch_in_each_chunk() {
        let most = |limits: &Limits, sectors| limits.most_parts(Op::Write, sectors);
        let plain = Limits { max_sectors: 4, ..Limits::default() };
        assert_eq!([4, 5, 8, 9].map(|sectors| most(&plain, sectors)), [1, 3, 3, 4]);
        let aligned = Limits { max_sectors: 12, physical_block_size: 4096, ..plain };
        assert_eq!(
            [12, 13, 16, 17].map(|sectors| most(&aligned, sectors)),
            [1, 3, 3, 4],
            "cuts of 8"
        );
        let wide = Limits { max_sectors: 20, ..aligned };
        assert_eq!(
            [20, 21, 32, 33].map(|sectors| most(&wide, sectors)),
            [1, 3, 3, 4],
            "cuts of 16"
        );
        // A physical block takes three parts, and an I/O may touch one more block than it fills.
        let small = Limits { max_sectors: 3, physical_block_size: 4096, ..plain };
        assert_eq!([3, 4, 8, 9].map(|sectors| most(&small, sectors)), [1, 6, 6, 9]);
        // A stretch is no longer than the I/O and no longer than a chunk, and an I/O touches one chunk more than it
        // fills.
        let chunked = Limits { chunk_sectors: 16, ..plain };
        let expected = [2 * (1 + 1), 2 * (3 + 1), 2 * (5 + 1), 3 * (5 + 1), 5 * (5 + 1)];
        assert_eq!([4, 8, 16, 17, 64].map(|sectors| most(&chunked, sectors)), expected);
    }

    const LIST_SEEDS: u64 = 3_000;

    /// A payload in these ranges, of an address and a length each.
    struct List(Vec<(usize, usize)>);

    fn range((at, len): (usize, usize)) -> *mut [u8] {
        slice_from_raw_parts_mut(without_provenance_mut(at), len)
    }

    impl Payload for List {
        fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
            self.0.iter().copied().map(range)
        }
    }

    /// The parts; `None` if a block fits in no request.
    fn list_parts(
        limits: &Limits,
        sector: u64,
        sectors: u32,
        list: &List,
    ) -> Option<Vec<(u64, u32)>> {
        limits.parts_of_list(Op::Write, sector, sectors, list.ranges()).map(Result::ok).collect()
    }

    /// The addresses of all bytes; `None` in front of each but the first range.
    fn walk(list: &List) -> Vec<Option<usize>> {
        let mut all = Vec::new();
        for (n, (at, len)) in list.0.iter().filter(|(_, len)| *len > 0).enumerate() {
            all.extend((n > 0).then_some(None));
            all.extend((0..*len).map(|n| Some(at + n)));
        }
        all
    }

    /// Returns whether one request may have these bytes. `walk` does not begin with a joint.
    fn list_obeys(limits: &Limits, walk: &[Option<usize>]) -> bool {
        let (mut segments, mut in_segment) = (1, 0);
        for (n, step) in walk.iter().enumerate() {
            match step {
                None => {
                    let (Some(before), Some(behind)) = (walk[n - 1], walk[n + 1]) else {
                        return false;
                    };
                    let joint = (before + 1) as u64 | behind as u64;
                    if joint & limits.virt_boundary_mask != 0 {
                        return false;
                    }
                    (segments, in_segment) = (segments + 1, 0);
                }
                Some(_) if in_segment == limits.max_segment_size => {
                    (segments, in_segment) = (segments + 1, 1);
                }
                Some(_) => in_segment += 1,
            }
        }
        segments <= u32::from(limits.max_segments)
    }

    /// The steps of `walk` that are `bytes` bytes.
    fn steps(walk: &[Option<usize>], bytes: usize) -> usize {
        let mut left = bytes;
        walk.iter()
            .take_while(|step| {
                left > 0
                    && (step.is_none() || {
                        left -= 1;
                        true
                    })
            })
            .count()
    }

    /// Grows the first part block by block as long as it obeys, and cuts it back to the preferred alignment.
    fn naive_parts(
        limits: &Limits,
        sector: u64,
        sectors: u32,
        list: &List,
    ) -> Option<Vec<(u64, u32)>> {
        let block = limits.logical_block_size / SECTOR_SIZE;
        let all = walk(list);
        let (mut walk, mut at, end) = (&all[..], sector, sector + u64::from(sectors));
        let mut parts = Vec::new();
        while at < end {
            walk = if walk.first() == Some(&None) { &walk[1..] } else { walk };
            let fits = |n: &u32| {
                let longest = limits.first_part(Op::Write, at, *n) == *n;
                longest && list_obeys(limits, &walk[..steps(walk, (*n * SECTOR_SIZE) as usize)])
            };
            let lengths = || (1..=((end - at) as u32) / block).map(|blocks| blocks * block);
            let longest = lengths().take_while(fits).last()?;
            let is_aligned = |n: &u32| {
                let preferred = limits.physical_block_size.max(limits.logical_block_size);
                ((at + u64::from(*n)) * 512).is_multiple_of(preferred.into())
            };
            let to_end = at + u64::from(longest) == end;
            let aligned = lengths().take_while(|n| *n <= longest).filter(is_aligned).last();
            let part = if to_end { longest } else { aligned.unwrap_or(longest) };
            parts.push((at, part));
            walk = &walk[steps(walk, (part * SECTOR_SIZE) as usize)..];
            at += u64::from(part);
        }
        Some(parts)
    }

    fn draw(rng: &mut Rng) -> (Limits, u64, u32, List) {
        let block = 1 << rng.below(3);
        let limits = Limits {
            logical_block_size: block as u32 * SECTOR_SIZE,
            physical_block_size: SECTOR_SIZE << rng.below(5),
            max_sectors: (block + rng.below(24)) as u32,
            max_segments: 1 + rng.below(6) as u16,
            max_segment_size: (block as u32 + rng.below(8) as u32) * SECTOR_SIZE
                + rng.below(99) as u32,
            chunk_sectors: if rng.chance(1, 3) { (block * (1 + rng.below(12))) as u32 } else { 0 },
            virt_boundary_mask: if rng.chance(1, 3) { 511 } else { 0 },
            ..Limits::default()
        };
        limits.validate().expect("drawn within bounds");
        let sectors = (block * (1 + rng.below(24))) as u32;
        let mut left = (sectors * SECTOR_SIZE) as usize;
        let unit = [1, 256, 512][rng.below(3) as usize];
        let mut ranges = Vec::new();
        while left > 0 {
            let len = (unit * (rng.below(2600) as usize / unit)).min(left);
            ranges.push(((ranges.len() + 1) << 20 | (rng.below(3) as usize * unit), len));
            left -= len;
        }
        (limits, block * rng.below(40), sectors, List(ranges))
    }

    #[test]
    fn lists_are_cut_as_by_a_model_that_walks_from_byte_to_byte() {
        let (mut divided, mut scattered) = (0, 0);
        for seed in 0..SEEDS {
            let (limits, sector, sectors, list) = draw(&mut Rng::new(seed));
            let found = list_parts(&limits, sector, sectors, &list);
            let expected = naive_parts(&limits, sector, sectors, &list);
            assert_eq!(
                found, expected,
                "seed {seed}: {sectors} at {sector}, {limits:?}, {:?}",
                list.0
            );
            divided += u32::from(found.as_ref().is_some_and(|parts| parts.len() > 1));
            scattered += u32::from(found.is_none());
        }
        let few = LIST_SEEDS as u32 / 10;
        assert!(divided > few && scattered > few, "{divided} divided, {scattered} not to be");
    }

    #[test]
    fn one_range_is_no_list_and_is_divided_by_its_length() {
        let mut rng = Rng::new(1);
        for _ in 0..SEEDS {
            let (limits, sector, sectors, _) = draw(&mut rng);
            let limits = Limits { virt_boundary_mask: 0, ..limits };
            let one = List([(4096, (sectors * SECTOR_SIZE) as usize)].into());
            let by_length = Vec::from_iter(limits.parts(Op::Write, sector, sectors));
            assert!(!is_list(&one) && !is_list(&7_u64));
            assert_eq!(list_parts(&limits, sector, sectors, &one), Some(by_length));
            let segments = limits.segments_of(Op::Write, sectors, &one);
            assert_eq!(segments, limits.segments(Op::Write, sectors));
        }
    }

    #[test]
    fn each_range_is_a_segment_at_least() {
        let limits = Limits { max_segment_size: 4096, ..Limits::default() };
        let list = List([(1 << 20, 100), (2 << 20, 0), (3 << 20, 5000), (4 << 20, 20)].into());
        assert_eq!(limits.segments_of(Op::Read, 10, &list), 1 + 2 + 1);
        assert_eq!(limits.segments_of(Op::Discard, 10, &list), 1, "it uses no payload");
    }

    #[test]
    fn ranges_are_aligned_where_the_device_asks_for_it() {
        let takes = |range_alignment, ranges: &[(usize, usize)]| {
            let limits = Limits { range_alignment, ..Limits::default() };
            limits.takes_ranges(List(ranges.into()).ranges())
        };
        assert!(takes(0, &[(1, 1), (9, 511)]), "no rule");
        assert!(takes(1, &[(1, 512)]) && !takes(1, &[(1, 511), (4096, 1)]), "whole blocks");
        assert!(takes(64, &[(64, 512), (0, 0)]) && !takes(64, &[(32, 512)]));
    }

    /// The device says that the payload is too short; the queue must not be confused by it.
    #[test]
    fn a_payload_that_is_too_short_is_cut_all_the_same() {
        let limits = Limits { max_sectors: 8, ..Limits::default() };
        let short = List([(4096, 100), (8192, 100)].into());
        assert_eq!(list_parts(&limits, 0, 16, &short), Some([(0, 8), (8, 8)].into()));
        assert_eq!(list_parts(&limits, 0, 16, &List(Vec::new())), Some([(0, 8), (8, 8)].into()));
    }
}
