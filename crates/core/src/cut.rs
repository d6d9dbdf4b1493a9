//! The cuts of an I/O that exceeds the limits of its device (`spec/framework.md` section 13, Split), and of a payload
//! in several ranges of memory: its segments, and the cuts that keep a request within the limits on them.
//!
//! Arithmetic only, on lengths and addresses; no byte is accessed. The engine divides the I/O and joins it again.

use crate::{Limits, Op, Payload, SECTOR_SIZE};

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

    /// The number of bytes, `most` at most, that one request may have from the start of `rest` on. The memory beyond the
    /// last range counts as contiguous: the device refuses a payload that is too short.
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
mod tests;
