//! Payloads in several ranges of memory: their segments, and the cuts that keep a request within the limits on them.
//!
//! Arithmetic on addresses only; no byte is accessed. A payload in one range is divided by its length, in `cut.rs`.

use crate::{Limits, Op, Payload, SECTOR_SIZE};

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
