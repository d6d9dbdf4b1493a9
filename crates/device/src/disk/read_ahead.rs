//! Reading ahead: what the arm does with the read cache when nobody wants anything else of it.
//!
//! Behind what was asked for last it goes on until it is a certain distance ahead. Which sectors are in the cache
//! is in `segments.rs`; who is answered from it, and when it gives way, in `drive.rs`.

use super::geometry::Track;
use super::mechanics::{Mechanics, Passage, Stream};
use super::params::Figures;
use super::segments::Segments;
use crate::memory::BadBlocks;
use blkmq_core::Instant;
use std::ops::Range;

/// The arm, reading ahead, or done with it and waiting where it was.
#[derive(Debug)]
struct Ahead {
    /// What it fills.
    segment: usize,
    stream: Stream,
    began: Instant,
    /// How far it has come, as of the last look.
    reached: u64,
}

impl Ahead {
    /// Has it not come to its end?
    fn is_running(&self) -> bool {
        self.reached < self.stream.limit
    }
}

/// What was read on demand, and where it is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasRead {
    pub(super) segment: usize,
    end: u64,
}

/// Reading ahead is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// Where the arm is.
    pub(super) track: Track,
}

/// The read cache and what fills it.
#[derive(Debug)]
pub(super) struct ReadAhead {
    segments: Segments,
    ahead: Option<Ahead>,
    /// Sectors that it reads ahead.
    distance: u64,
    /// The disk's end.
    capacity: u64,
}

impl ReadAhead {
    /// Empty.
    pub(super) fn new(figures: &Figures) -> Self {
        let distance = u64::from(figures.read_ahead) * 2;
        // What was asked for last and what may be next.
        let segments = Segments::new(figures.segments, 2 * distance);
        Self { segments, ahead: None, distance, capacity: figures.capacity }
    }

    /// The segment that holds all of `range`, as of the last look.
    pub(super) fn find(&mut self, range: &Range<u64>) -> Option<usize> {
        self.segments.find(range)
    }

    /// What segment `segment` holds.
    pub(super) fn held(&self, segment: usize) -> &Range<u64> {
        self.segments.range(segment)
    }

    /// Sees how far it has come by `at`: where the arm is then, and which segment may hold more than before. `None`
    /// if it does nothing.
    pub(super) fn follow(&mut self, mechanics: &Mechanics, at: Instant) -> Option<(Track, usize)> {
        let ahead = self.ahead.as_mut()?;
        ahead.reached = ahead.stream.reached(mechanics, at);
        self.segments.extend(ahead.segment, ahead.reached);
        Some((ahead.stream.track(), ahead.segment))
    }

    /// The sectors that are being read or were read just before: a read that begins there needs no positioning.
    pub(super) fn passing(&self) -> Range<u64> {
        match self.ahead.as_ref().filter(|ahead| ahead.is_running()) {
            Some(ahead) => self.segments.range(ahead.segment).start..ahead.reached + 1,
            None => 0..0,
        }
    }

    /// The part of `range` that is not in the cache, if its beginning is where it was read ahead.
    pub(super) fn missing(&self, range: &Range<u64>) -> Range<u64> {
        match &self.ahead {
            Some(it) if self.segments.range(it.segment).contains(&range.start) => {
                it.reached..range.end
            }
            _ => range.clone(),
        }
    }

    /// Goes on as far as `end`, which is behind all that it has reached. `None` if it does nothing.
    pub(super) fn pass_to(&self, mechanics: &Mechanics, at: Instant, end: u64) -> Option<Passage> {
        let ahead = self.ahead.as_ref()?;
        Some(Passage { begin: at, ..ahead.stream.pass_to(mechanics, end) })
    }

    /// `range` has been read on demand. `None` if it is not kept.
    pub(super) fn has_read(&mut self, range: &Range<u64>) -> Option<HasRead> {
        let segment = self.segments.put(range)?;
        Some(HasRead { segment, end: range.end })
    }

    /// How far to read ahead from `next` on if everything before `end` was asked for: not over what is bad.
    fn limit(&self, next: u64, end: u64, bad: &BadBlocks) -> u64 {
        let limit = self.capacity.min(end + self.distance);
        bad.first_in(next, limit.saturating_sub(next) as u32).unwrap_or(limit)
    }

    /// An idle arm, at `here`, reads on behind what has been read.
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

    /// Up to `end`, segment `segment` has been of use: what is read ahead of that goes on. If it does not, the arm,
    /// if it is idle, had better begin again behind what is returned.
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

    /// The arm is wanted for something else.
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

    /// Does what is being read ahead overlap `range`, together with what lies before it in its segment?
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| {
            let start = self.segments.range(ahead.segment).start;
            start < range.end && range.start < ahead.stream.limit
        })
    }

    /// Nothing that overlaps `range`, which is being written, is kept. It is not being read ahead.
    pub(super) fn invalidate(&mut self, range: &Range<u64>) {
        debug_assert!(!self.overlaps(range), "that is stopped first");
        self.segments.invalidate(range);
    }
}
