//! The read cache: a few segments, each a range of sectors that was read last or is likely to be read next.
//!
//! Holds only the ranges; `read_ahead.rs` reads ahead into them, and `drive.rs` decides when.

use std::ops::Range;

/// Returns whether all of `inner` is in `outer`.
pub(super) fn covers(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[derive(Clone, Debug, Default)]
struct Segment {
    range: Range<u64>,
    /// A higher number means a more recent use.
    used: u64,
}

/// The segments. All operations are O(segments).
#[derive(Debug)]
pub(super) struct Segments {
    list: Box<[Segment]>,
    /// Sectors that a segment holds.
    capacity: u64,
    uses: u64,
}

impl Segments {
    /// `count` segments of `capacity` sectors each.
    pub(super) fn new(count: u16, capacity: u64) -> Self {
        let count = if capacity == 0 { 0 } else { count };
        Self { list: vec![Segment::default(); count.into()].into(), capacity, uses: 0 }
    }

    /// Finds the segment that holds all of `range`, which becomes the most recently used one.
    pub(super) fn find(&mut self, range: &Range<u64>) -> Option<usize> {
        let found = self.list.iter().position(|segment| covers(&segment.range, range));
        found.inspect(|index| self.touch(*index))
    }

    fn touch(&mut self, index: usize) {
        self.uses += 1;
        self.list[index].used = self.uses;
    }

    /// The range that segment `index` holds.
    pub(super) fn range(&self, index: usize) -> &Range<u64> {
        &self.list[index].range
    }

    /// Adds `range`, which has been read from the medium: to the segment that it continues, or else in place of the
    /// least recently used one. `None` if there are no segments.
    pub(super) fn put(&mut self, range: &Range<u64>) -> Option<usize> {
        let continued = |segment: &Segment| {
            segment.range.start <= range.start && segment.range.end >= range.start
        };
        let index = match self.list.iter().position(|s| !s.range.is_empty() && continued(s)) {
            Some(index) => index,
            None => {
                let segments = self.list.iter().enumerate();
                let index = segments.min_by_key(|(_, segment)| segment.used)?.0;
                self.list[index].range = range.start..range.start;
                index
            }
        };
        self.touch(index);
        self.extend(index, range.end);
        Some(index)
    }

    /// Extends segment `index` to `end`; drops sectors at its beginning that exceed the capacity.
    pub(super) fn extend(&mut self, index: usize, end: u64) {
        let range = &mut self.list[index].range;
        range.end = range.end.max(end);
        range.start = range.start.max(range.end.saturating_sub(self.capacity));
    }

    /// `range` is being written: drops the segments that overlap it, which are out of date.
    pub(super) fn invalidate(&mut self, range: &Range<u64>) {
        for segment in &mut self.list {
            if segment.range.start < range.end && range.start < segment.range.end {
                *segment = Segment::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stays_in_one_segment_and_keeps_its_end() {
        let mut segments = Segments::new(2, 100);
        assert_eq!(segments.find(&(0..8)), None);
        let index = segments.put(&(0..60));
        assert_eq!((index, segments.put(&(60..120))), (Some(0), Some(0)));
        assert_eq!(segments.range(0), &(20..120));
        assert_eq!((segments.find(&(20..28)), segments.find(&(16..24))), (Some(0), None));
    }

    #[test]
    fn the_least_recently_used_one_makes_room() {
        let mut segments = Segments::new(2, 100);
        assert_eq!((segments.put(&(0..8)), segments.put(&(1000..1008))), (Some(0), Some(1)));
        assert_eq!(segments.find(&(0..8)), Some(0));
        assert_eq!(segments.put(&(5000..5008)), Some(1));
        assert_eq!((segments.find(&(1000..1008)), segments.find(&(0..4))), (None, Some(0)));
    }

    #[test]
    fn a_write_makes_what_it_overlaps_out_of_date() {
        let mut segments = Segments::new(2, 100);
        segments.put(&(0..50));
        segments.put(&(1000..1050));
        segments.invalidate(&(49..60));
        assert_eq!((segments.find(&(0..8)), segments.find(&(1000..1050))), (None, Some(1)));
    }

    #[test]
    fn without_segments_nothing_is_kept() {
        for mut none in [Segments::new(0, 100), Segments::new(4, 0)] {
            assert_eq!((none.put(&(0..8)), none.find(&(0..8))), (None, None));
        }
    }
}
