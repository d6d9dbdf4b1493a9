//! Read-ahead: the arm fills the read cache while it has no other work.
//!
//! It continues behind the last read until it is a certain distance ahead. `segments.rs` knows which sectors are in
//! the cache; `drive.rs` answers reads from it, and stops it for other work.

use super::geometry::Track;
use super::mechanics::{Mechanics, Passage, Stream};
use super::params::Figures;
use super::segments::Segments;
use crate::memory::BadBlocks;
use blkmq_core::Instant;
use std::ops::Range;

/// The state of the arm while it reads ahead, or has finished and waits in place.
#[derive(Debug)]
struct Ahead {
    /// The segment that it fills.
    segment: usize,
    stream: Stream,
    began: Instant,
    /// The sector that it had reached at the last look.
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

/// The read cache and its read-ahead.
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

    /// The segment that holds all of `range`, as of the last look.
    pub(super) fn find(&mut self, range: &Range<u64>) -> Option<usize> {
        self.segments.find(range)
    }

    /// The range that segment `segment` holds.
    pub(super) fn held(&self, segment: usize) -> &Range<u64> {
        self.segments.range(segment)
    }

    /// Follows read-ahead until `at`. Returns the track of the arm and the segment that may hold more than before;
    /// `None` if the arm does not read ahead.
    pub(super) fn follow(&mut self, mechanics: &Mechanics, at: Instant) -> Option<(Track, usize)> {
        let ahead = self.ahead.as_mut()?;
        ahead.reached = ahead.stream.reached(mechanics, at);
        self.segments.extend(ahead.segment, ahead.reached);
        Some((ahead.stream.track(), ahead.segment))
    }

    /// The sectors of running read-ahead, up to the next one under the head: a read that begins there needs no
    /// positioning.
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

    /// The passage of read-ahead up to `end`, which is behind all that it has reached. `None` if the arm does not
    /// read ahead.
    pub(super) fn pass_to(&self, mechanics: &Mechanics, at: Instant, end: u64) -> Option<Passage> {
        let ahead = self.ahead.as_ref()?;
        Some(Passage { begin: at, ..ahead.stream.pass_to(mechanics, end) })
    }

    /// `range` has been read on demand: puts it into the cache. `None` if it is not kept.
    pub(super) fn has_read(&mut self, range: &Range<u64>) -> Option<HasRead> {
        let segment = self.segments.put(range)?;
        Some(HasRead { segment, end: range.end })
    }

    /// The limit of read-ahead from `next` on after a read up to `end`: it stops at a bad sector.
    fn limit(&self, next: u64, end: u64, bad: &BadBlocks) -> u64 {
        let limit = self.capacity.min(end + self.distance);
        bad.first_in(next, limit.saturating_sub(next) as u32).unwrap_or(limit)
    }

    /// An idle arm, at `here`, begins to read ahead behind `read`.
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

    /// Reads up to `end` have used segment `segment`: moves the limit of its running read-ahead on. If no read-ahead
    /// runs, returns the place behind which an idle arm should begin it again.
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

    /// Stops read-ahead, because the arm is needed for other work.
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

    /// Drops the segments that overlap `range`, which is being written. The caller has stopped read-ahead over it.
    pub(super) fn invalidate(&mut self, range: &Range<u64>) {
        debug_assert!(!self.overlaps(range), "that is stopped first");
        self.segments.invalidate(range);
    }
}
