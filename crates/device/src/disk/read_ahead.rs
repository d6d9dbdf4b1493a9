//! The read cache and read-ahead: the arm fills the cache while it has no other work.
//!
//! The cache has a few segments, each a range of sectors that was read recently or is likely to be read next.
//! Read-ahead continues after the last read up to a certain distance. `drive.rs` answers reads from the cache, and
//! stops read-ahead for other work.

use super::geometry::Track;
use super::mechanics::{Figures, Mechanics, Passage, Stream};
use crate::memory::BadBlocks;
use blkmq_core::Instant;
use std::ops::Range;

/// The state of read-ahead, while it runs or has finished with the arm in place.
#[derive(Debug)]
struct Ahead {
    /// The segment that it fills.
    segment: usize,
    stream: Stream,
    began: Instant,
    /// The sector reached at the last update.
    reached: u64,
}

impl Ahead {
    /// Returns whether read-ahead has not reached its limit yet.
    fn is_running(&self) -> bool {
        self.reached < self.stream.limit
    }
}

/// A range that was read on demand: its end, and the segment that keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasRead {
    pub(super) segment: usize,
    end: u64,
}

/// Read-ahead that was stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// The track of the arm.
    pub(super) track: Track,
}

#[derive(Debug)]
pub(super) struct ReadAhead {
    segments: Segments,
    ahead: Option<Ahead>,
    /// Sectors to read ahead.
    distance: u64,
    /// Number of sectors of the disk.
    capacity: u64,
}

impl ReadAhead {
    /// An empty cache.
    pub(super) fn new(figures: &Figures) -> Self {
        let distance = u64::from(figures.read_ahead) * 2;
        // Room for the last read and for the sectors read ahead of it.
        let segments = Segments::new(figures.segments, 2 * distance);
        Self { segments, ahead: None, distance, capacity: figures.capacity }
    }

    /// Returns the segment that contained all of `range` at the last update.
    pub(super) fn find(&mut self, range: &Range<u64>) -> Option<usize> {
        self.segments.find(range)
    }

    /// The range that segment `segment` holds.
    pub(super) fn held(&self, segment: usize) -> &Range<u64> {
        self.segments.range(segment)
    }

    /// Updates read-ahead to `at`. Returns the track of the arm and the segment that may have grown, or `None` if the
    /// arm does not read ahead.
    pub(super) fn follow(&mut self, mechanics: &Mechanics, at: Instant) -> Option<(Track, usize)> {
        let ahead = self.ahead.as_mut()?;
        ahead.reached = ahead.stream.reached(mechanics, at);
        self.segments.extend(ahead.segment, ahead.reached);
        Some((ahead.stream.track(), ahead.segment))
    }

    /// The sectors covered by running read-ahead, including the next one under the head: a read that begins there needs
    /// no positioning.
    pub(super) fn passing(&self) -> Range<u64> {
        match self.ahead.as_ref().filter(|ahead| ahead.is_running()) {
            Some(ahead) => self.segments.range(ahead.segment).start..ahead.reached + 1,
            None => 0..0,
        }
    }

    /// The part of `range` that is not in the cache, if its beginning has been read ahead.
    pub(super) fn missing(&self, range: &Range<u64>) -> Range<u64> {
        match &self.ahead {
            Some(it) if self.segments.range(it.segment).contains(&range.start) => {
                it.reached..range.end
            }
            _ => range.clone(),
        }
    }

    /// The passage of read-ahead up to `end`, which is beyond the sector reached. Returns `None` if the arm does not
    /// read ahead.
    pub(super) fn pass_to(&self, mechanics: &Mechanics, at: Instant, end: u64) -> Option<Passage> {
        let ahead = self.ahead.as_ref()?;
        Some(Passage { begin: at, ..ahead.stream.pass_to(mechanics, end) })
    }

    /// Adds `range`, which was read on demand, to the cache. Returns `None` if it is not kept.
    pub(super) fn has_read(&mut self, range: &Range<u64>) -> Option<HasRead> {
        let segment = self.segments.put(range)?;
        Some(HasRead { segment, end: range.end })
    }

    /// The limit of read-ahead from `next` on after a read up to `end`: it stops at a bad sector.
    fn limit(&self, next: u64, end: u64, bad: &BadBlocks) -> u64 {
        let limit = self.capacity.min(end + self.distance);
        bad.first_in(next, limit.saturating_sub(next) as u32).unwrap_or(limit)
    }

    /// Begins to read ahead after `read` with an idle arm at `here`.
    pub(super) fn begin(
        &mut self,
        mechanics: &Mechanics,
        bad: &BadBlocks,
        here: (Instant, Track),
        read: HasRead,
    ) {
        let HasRead { segment, end } = read;
        let next = self.segments.range(segment).end;
        let limit = self.limit(next, end, bad);
        if next < limit {
            let stream = Stream::begin(mechanics, here, next, limit);
            self.ahead = Some(Ahead { segment, stream, began: here.0, reached: next });
        }
    }

    /// Advances the limit of running read-ahead after reads up to `end` have used segment `segment`. If no read-ahead
    /// runs, returns the position after which an idle arm should resume it.
    pub(super) fn consumed(
        &mut self,
        segment: usize,
        end: u64,
        bad: &BadBlocks,
    ) -> Option<HasRead> {
        if let Some(ahead) = self.ahead.as_ref().filter(|ahead| ahead.is_running()) {
            if ahead.segment == segment {
                let limit = self.limit(ahead.reached, end, bad).max(ahead.stream.limit);
                self.ahead.as_mut().expect("it was looked at").stream.limit = limit;
            }
            return None;
        }
        let left = self.segments.range(segment).end - end;
        (2 * left < self.distance).then_some(HasRead { segment, end })
    }

    /// Stops read-ahead because the arm is needed for other work.
    pub(super) fn stop(&mut self, mechanics: &Mechanics, at: Instant) -> Option<Stopped> {
        self.follow(mechanics, at)?;
        let ahead = self.ahead.take()?;
        let ended = if ahead.is_running() {
            at
        } else {
            at.min(ahead.stream.pass_to(mechanics, ahead.reached).end)
        };
        let track = ahead.stream.track();
        Some(Stopped { began: ahead.began, ended, track })
    }

    /// Returns whether `range` overlaps the segment that is being filled, up to the limit of read-ahead.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| {
            let start = self.segments.range(ahead.segment).start;
            start < range.end && range.start < ahead.stream.limit
        })
    }

    /// Drops the segments that overlap `range`, which is being written. The caller has stopped read-ahead in the range.
    pub(super) fn invalidate(&mut self, range: &Range<u64>) {
        debug_assert!(!self.overlaps(range), "that is stopped first");
        self.segments.invalidate(range);
    }
}

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

    /// Finds the segment that contains all of `range`, and makes it the most recently used.
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

    /// Adds `range`, which was read from the medium, to the segment that it continues, or in place of the least
    /// recently used one. Returns `None` if there are no segments.
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

    /// Drops the segments that overlap `range`, which is being written.
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
