//! The caches of a drive: read-ahead, which fills the read cache while the arm has no other work, and the write cache
//! with its demands on the arm. `drive.rs` moves the arm, answers reads from the cache, and stops read-ahead for other
//! work.
//!
//! The read cache has a few segments, each a range of sectors that was read recently or is likely to be read next.
//! Read-ahead continues after the last read up to a certain distance.
//!
//! The write cache admits writes, flushes, and holds sectors that have been acknowledged but are not on the medium:
//! ranges in ascending order, each with its era. A flush ends an era and waits for all ranges of that era and before.
//!
//! The extents are written in a sweep, in ascending order and cyclically, but among the next few extents the one that
//! the head reaches first is chosen. The lowest of these is passed over a limited number of times, so that the sweep
//! advances.

use super::commands::{Answers, Command, Kind, covers};
use super::mechanics::{Access, Estimate, Figures, Mechanics, Passage, Stream, Track};
use super::params::MIB_SECTORS;
use crate::memory::BadBlocks;
use blkmq_core::{Instant, Nanos};
use std::collections::VecDeque;
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

#[derive(Clone, Debug, Default)]
struct Segment {
    range: Range<u64>,
    /// A higher number means a more recent use.
    used: u64,
}

/// The segments. All operations are O(segments).
#[derive(Debug)]
struct Segments {
    list: Box<[Segment]>,
    /// Sectors that a segment holds.
    capacity: u64,
    uses: u64,
}

impl Segments {
    /// `count` segments of `capacity` sectors each.
    fn new(count: u16, capacity: u64) -> Self {
        let count = if capacity == 0 { 0 } else { count };
        Self { list: vec![Segment::default(); count.into()].into(), capacity, uses: 0 }
    }

    /// Finds the segment that contains all of `range`, and makes it the most recently used.
    fn find(&mut self, range: &Range<u64>) -> Option<usize> {
        let found = self.list.iter().position(|segment| covers(&segment.range, range));
        found.inspect(|index| self.touch(*index))
    }

    fn touch(&mut self, index: usize) {
        self.uses += 1;
        self.list[index].used = self.uses;
    }

    /// The range that segment `index` holds.
    fn range(&self, index: usize) -> &Range<u64> {
        &self.list[index].range
    }

    /// Adds `range`, which was read from the medium, to the segment that it continues, or in place of the least
    /// recently used one. Returns `None` if there are no segments.
    fn put(&mut self, range: &Range<u64>) -> Option<usize> {
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
    fn extend(&mut self, index: usize, end: u64) {
        let range = &mut self.list[index].range;
        range.end = range.end.max(end);
        range.start = range.start.max(range.end.saturating_sub(self.capacity));
    }

    /// Drops the segments that overlap `range`, which is being written.
    fn invalidate(&mut self, range: &Range<u64>) {
        for segment in &mut self.list {
            if segment.range.start < range.end && range.start < segment.range.end {
                *segment = Segment::default();
            }
        }
    }
}

/// Sectors written back at a time: long enough for speed, short enough for a read that waits.
const DESTAGE_SECTORS: u64 = 1024;

/// A flush that waits for the end of an era.
#[derive(Debug)]
struct Flush {
    tag: u32,
    era: u64,
    /// The earliest time at which the flush takes effect and ends.
    ready: Instant,
}

/// The urgency with which the cache needs the arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Precedes all other work: a flush waits for the eras up to this one.
    Flush(u64),
    /// Competes like a command: the cache is short of room.
    Room,
    /// Waits until the arm has no other work.
    Rest,
}

#[derive(Debug)]
pub(super) struct WriteBack {
    dirty: Dirty,
    sweep: Sweep,
    /// Writes that wait for room, the oldest first.
    blocked: VecDeque<(Command, Instant)>,
    flushes: VecDeque<Flush>,
    era: u64,
    hit: Nanos,
    delay: Nanos,
}

impl WriteBack {
    /// An empty cache.
    pub(super) fn new(figures: &Figures) -> Self {
        let depth = figures.hw_queue_depth as usize;
        Self {
            dirty: Dirty::new(figures.cache_size * MIB_SECTORS),
            sweep: Sweep::default(),
            blocked: VecDeque::with_capacity(depth),
            flushes: VecDeque::with_capacity(depth),
            era: 0,
            hit: figures.hit,
            delay: figures.destage_delay,
        }
    }

    /// Returns whether the cache accepts a write of `range`. A write longer than half of the cache would gain nothing.
    pub(super) fn takes(&self, range: &Range<u64>) -> bool {
        2 * (range.end - range.start) <= self.dirty.capacity()
    }

    /// Returns whether the cache holds all of `range`.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.dirty.holds(range)
    }

    /// Takes a write at its arrival; the caller has checked that the cache accepts it.
    pub(super) fn write(&mut self, now: Instant, command: Command, answers: &mut Answers) {
        self.blocked.push_back((command, now));
        self.admit(now, answers);
    }

    /// Takes a flush, which ends when all data now in the cache is on the medium.
    pub(super) fn flush(&mut self, now: Instant, tag: u32, answers: &mut Answers) {
        let ready = now + self.hit;
        if self.dirty.is_clean() {
            return answers.end(tag, ready, Ok(()));
        }
        self.flushes.push_back(Flush { tag, era: self.era, ready });
        self.era += 1;
    }

    /// Admits waiting writes in order, as long as they fit.
    fn admit(&mut self, at: Instant, answers: &mut Answers) {
        while let Some((command, arrived)) = self.blocked.front()
            && self.dirty.fits(&command.range)
        {
            self.dirty.add(&command.range, self.era);
            let sent = match command.kind {
                Kind::Zeroes => 0,
                Kind::Read | Kind::Write => command.range.end - command.range.start,
            };
            answers.cached(command.tag, at.max(*arrived + self.hit), sent);
            self.blocked.pop_front();
        }
    }

    /// Notes that the range taken last is on the medium.
    pub(super) fn arrived(&mut self, at: Instant, answers: &mut Answers) {
        self.dirty.arrived();
        self.settle(at, answers);
    }

    /// Notes that a write that bypassed the cache has put newer data for `range` on the medium.
    pub(super) fn supersede(&mut self, at: Instant, range: &Range<u64>, answers: &mut Answers) {
        self.dirty.supersede(range);
        self.settle(at, answers);
    }

    /// Ends flushes and admits writes after the cache has shrunk.
    fn settle(&mut self, at: Instant, answers: &mut Answers) {
        if !self.flushes.is_empty() {
            let oldest = self.dirty.oldest_era();
            let is_over = |flush: &&Flush| oldest.is_none_or(|oldest| oldest > flush.era);
            while let Some(flush) = self.flushes.front().filter(is_over) {
                answers.end(flush.tag, flush.ready.max(at), Ok(()));
                self.flushes.pop_front();
            }
        }
        self.admit(at, answers);
    }

    /// Returns whether a command waits for the cache.
    pub(super) fn is_awaited(&self) -> bool {
        !(self.blocked.is_empty() && self.flushes.is_empty())
    }

    fn is_pressed(&self) -> bool {
        !self.blocked.is_empty() || self.dirty.presses()
    }

    /// Returns the time at which the cache will need the arm, idle since `quiet`, if no command arrives.
    pub(super) fn turn(&self, quiet: Instant) -> Option<Instant> {
        let flush = self.flushes.front().map(|flush| flush.ready);
        let delay = if self.is_pressed() { Nanos::ZERO } else { self.delay };
        let rest = (!self.dirty.is_clean()).then(|| quiet + delay);
        flush.into_iter().chain(rest).min()
    }

    /// The urgency with which the cache needs an arm that is free at `at` and idle since `quiet`, or `None`.
    pub(super) fn wants(&self, at: Instant, quiet: Instant) -> Option<Want> {
        if let Some(flush) = self.flushes.iter().rev().find(|flush| flush.ready <= at) {
            return Some(Want::Flush(flush.era));
        }
        if self.is_pressed() {
            return Some(Want::Room);
        }
        (at >= quiet + self.delay).then_some(Want::Rest)
    }

    /// Returns the arrival of the first of the writes that wait for room.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked.front().map(|(_, arrived)| *arrived)
    }

    /// The best extent to write next for an arm that is `here`.
    pub(super) fn candidate(
        &self,
        want: Want,
        mechanics: &Mechanics,
        here: (Instant, Track),
    ) -> Option<Candidate> {
        let era = if let Want::Flush(era) = want { era } else { u64::MAX };
        self.sweep.candidate(self.dirty.extents(), era, mechanics, here)
    }

    /// Takes out the sectors to write. They must [arrive](Self::arrived) before the next call.
    pub(super) fn take(&mut self, candidate: &Candidate) -> Range<u64> {
        let range = self.dirty.take(candidate.index, DESTAGE_SECTORS);
        self.sweep.went(candidate, range.end);
        range
    }
}

/// The number of extents to choose from, and the number of times that the lowest may be passed over.
const WINDOW: u32 = 8;

/// The state of the sweep.
#[derive(Debug, Default)]
struct Sweep {
    /// The sweep continues with the extents that begin at or after this sector.
    cursor: u64,
    /// The number of times that the first of these was passed over.
    passed: u32,
}

/// A possible next extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: usize,
    pub(super) estimate: Estimate,
    /// The extent is the first in the window.
    is_first: bool,
}

impl Sweep {
    /// The best of `extents` up to era `era` for an arm that is at `track` at `at`, or `None` if there is none.
    /// O(window), unless many extents belong to later eras.
    fn candidate(
        &self,
        extents: &[Extent],
        era: u64,
        mechanics: &Mechanics,
        here: (Instant, Track),
    ) -> Option<Candidate> {
        let departure = mechanics.departure(here);
        let first = extents.partition_point(|extent| extent.range.start < self.cursor);
        let around = (first..extents.len()).chain(0..first);
        let window = around.filter(|index| extents[*index].era <= era).take(WINDOW as usize);
        let candidate = |(number, index): (usize, usize)| {
            let target = mechanics.target(extents[index].range.start, Access::Write);
            let estimate = mechanics.estimate(&departure, &target);
            Candidate { index, estimate, is_first: number == 0 }
        };
        let choice = if self.passed < WINDOW { WINDOW as usize } else { 1 };
        let candidates = window.take(choice).enumerate().map(candidate);
        candidates.min_by_key(|candidate| candidate.estimate)
    }

    /// Notes that a candidate is being written, up to sector `end`.
    fn went(&mut self, candidate: &Candidate, end: u64) {
        if candidate.is_first {
            *self = Self { cursor: end, passed: 0 };
        } else {
            self.passed += 1;
        }
    }
}

/// The maximum number of ranges: firmware has a limited number of descriptors.
const MOST: usize = 512;

/// A range of consecutive dirty sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    range: Range<u64>,
    /// The era of its oldest sector.
    era: u64,
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The dirty sectors of the cache. Changes are O(extents) and never allocate.
#[derive(Debug)]
struct Dirty {
    /// Disjoint, in ascending order. Has room for more than [`MOST`], so that a range can be divided.
    extents: Vec<Extent>,
    /// The extent that is being written to the medium.
    leaving: Option<Extent>,
    sectors: u64,
    capacity: u64,
}

impl Dirty {
    /// An empty cache, with room for `capacity` sectors.
    fn new(capacity: u64) -> Self {
        let extents = Vec::with_capacity(if capacity == 0 { 0 } else { MOST + 2 });
        Self { extents, leaving: None, sectors: 0, capacity }
    }

    /// The capacity in sectors.
    fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns whether there is nothing to write and nothing being written.
    fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.leaving.is_none()
    }

    /// Returns whether the cache is more than half full, in sectors or in ranges.
    fn presses(&self) -> bool {
        2 * self.sectors > self.capacity || 2 * self.extents.len() > MOST
    }

    /// The extents to write, in ascending order.
    fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The indices of the extents that overlap `range`.
    fn overlapping(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.extents.partition_point(|extent| extent.range.end <= range.start);
        let count = self.extents[first..].partition_point(|e| e.range.start < range.end);
        first..first + count
    }

    /// Returns whether the cache holds all of `range`.
    fn holds(&self, range: &Range<u64>) -> bool {
        let is_leaving = self.leaving.as_ref().is_some_and(|it| covers(&it.range, range));
        let overlapping = self.overlapping(range);
        is_leaving || self.extents[overlapping].iter().any(|it| covers(&it.range, range))
    }

    /// Returns whether there is room for `range`.
    fn fits(&self, range: &Range<u64>) -> bool {
        let there: u64 = self.extents[self.overlapping(range)]
            .iter()
            .map(|it| it.range.end.min(range.end) - it.range.start.max(range.start))
            .sum();
        let leaving = self.leaving.as_ref().map_or(0, |it| len(&it.range));
        let sectors = self.sectors + leaving + len(range) - there;
        self.extents.len() < MOST && sectors <= self.capacity
    }

    /// Marks `range` as dirty; the caller has checked that it fits.
    fn add(&mut self, range: &Range<u64>, era: u64) {
        debug_assert!(self.fits(range), "the caller has checked that it fits");
        let mut new = Extent { range: range.clone(), era };
        let Range { start: mut first, end: mut behind } = self.overlapping(range);
        // Joins a neighbour of the same era. Joining across eras would make a flush wait for newer data.
        if first > 0 && self.extents[first - 1].range.end == range.start {
            first -= usize::from(self.extents[first - 1].era == era);
        }
        if self.extents.get(behind).is_some_and(|next| next.range.start == range.end) {
            behind += usize::from(self.extents[behind].era == era);
        }
        for extent in &self.extents[first..behind] {
            new.range =
                new.range.start.min(extent.range.start)..new.range.end.max(extent.range.end);
            new.era = new.era.min(extent.era);
            self.sectors -= len(&extent.range);
        }
        self.sectors += len(&new.range);
        if first == behind {
            self.extents.insert(first, new);
        } else {
            self.extents[first] = new;
            self.extents.drain(first + 1..behind);
        }
    }

    /// Takes up to `most` sectors of extent `index`, to be written.
    fn take(&mut self, index: usize, most: u64) -> Range<u64> {
        assert!(self.leaving.is_none(), "one at a time");
        let Extent { range, era } = &mut self.extents[index];
        let taken = range.start..range.end.min(range.start + most);
        self.leaving = Some(Extent { range: taken.clone(), era: *era });
        range.start = taken.end;
        self.sectors -= len(&taken);
        if range.is_empty() {
            self.extents.remove(index);
        }
        taken
    }

    /// Notes that the sectors taken last are on the medium.
    fn arrived(&mut self) {
        assert!(self.leaving.take().is_some(), "something was on its way");
    }

    /// Notes that a write that bypassed the cache has put newer data for `range` on the medium.
    fn supersede(&mut self, range: &Range<u64>) {
        for index in self.overlapping(range).rev() {
            let Extent { range: old, era } = self.extents[index].clone();
            let [left, right] =
                [old.start..range.start.max(old.start), range.end.min(old.end)..old.end];
            if !left.is_empty() && !right.is_empty() && self.extents.len() > MOST {
                // There is no descriptor for the second part. Writing the sectors again is harmless.
                continue;
            }
            self.sectors -= len(&old) - len(&left) - len(&right);
            match (left.is_empty(), right.is_empty()) {
                (true, true) => _ = self.extents.remove(index),
                (false, true) => self.extents[index].range = left,
                (true, false) => self.extents[index].range = right,
                (false, false) => {
                    self.extents[index].range = left;
                    self.extents.insert(index + 1, Extent { range: right, era });
                }
            }
        }
    }

    /// The oldest era with sectors that are not on the medium. O(extents).
    fn oldest_era(&self) -> Option<u64> {
        self.extents.iter().chain(&self.leaving).map(|extent| extent.era).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::DiskParams;
    use super::*;
    use blkmq_core::Rng;

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

    /// Even if new writes keep arriving just ahead of the sweep, it advances.
    #[test]
    fn the_lowest_in_the_window_is_passed_over_so_often_and_not_more() {
        let mechanics = Mechanics::new(&DiskParams::default().figures).expect("a preset");
        let (mut dirty, mut sweep, mut rng) = (Dirty::new(1 << 20), Sweep::default(), Rng::new(8));
        let (mut here, mut passed, mut most) = ((Instant::ZERO, Track::default()), 0, 0);
        for _ in 0..2000 {
            while dirty.extents().len() < 50 {
                let start = rng.below(50_000_000) * 16;
                dirty.add(&(start..start + 8), 0);
            }
            let extents = dirty.extents();
            let candidate = sweep.candidate(extents, 0, &mechanics, here).expect("there are some");
            passed = if candidate.is_first { 0 } else { passed + 1 };
            most = most.max(passed);
            let range = dirty.take(candidate.index, 8);
            sweep.went(&candidate, range.end);
            dirty.arrived();
            let passage = mechanics.transfer(here, range.start, 8, Access::Write);
            here = (passage.end + Nanos(1000), passage.track);
        }
        assert_eq!(most, WINDOW, "it is, and not for longer");
    }

    #[test]
    fn a_flush_asks_for_its_own_eras_only() {
        let mechanics = Mechanics::new(&DiskParams::default().figures).expect("a preset");
        let mut dirty = Dirty::new(1 << 20);
        for era in 0..40 {
            dirty.add(&(era * 100..era * 100 + 8), era);
        }
        let sweep = Sweep { cursor: 2000, passed: 0 };
        let here = (Instant::ZERO, Track::default());
        for era in 0..40 {
            let candidate = sweep.candidate(dirty.extents(), era, &mechanics, here);
            assert!(candidate.expect("its own").index as u64 <= era);
        }
    }

    fn ranges(dirty: &Dirty) -> Vec<(u64, u64, u64)> {
        dirty.extents.iter().map(|it| (it.range.start, it.range.end, it.era)).collect()
    }

    #[test]
    fn neighbours_of_one_era_are_one() {
        let mut dirty = Dirty::new(100);
        for range in [0..8, 16..24, 8..16] {
            dirty.add(&range, 0);
        }
        assert_eq!(ranges(&dirty), [(0, 24, 0)]);
        dirty.add(&(24..32), 1);
        assert_eq!(ranges(&dirty), [(0, 24, 0), (24, 32, 1)]);
        dirty.add(&(20..28), 1);
        assert_eq!(ranges(&dirty), [(0, 32, 0)], "what overlaps cannot be told apart");
        assert!(dirty.holds(&(4..30)) && !dirty.holds(&(30..34)));
    }

    #[test]
    fn room_is_for_what_is_leaving_too() {
        let mut dirty = Dirty::new(32);
        dirty.add(&(0..24), 0);
        assert!(dirty.fits(&(8..32)) && !dirty.fits(&(24..33)));
        assert_eq!(dirty.take(0, 16), 0..16);
        assert!(!dirty.fits(&(100..109)) && dirty.holds(&(0..16)));
        assert_eq!(dirty.oldest_era(), Some(0));
        dirty.arrived();
        assert!(dirty.fits(&(100..124)) && !dirty.holds(&(0..16)));
    }

    #[test]
    fn there_are_never_more_ranges_than_descriptors() {
        let mut dirty = Dirty::new(1 << 20);
        let room = dirty.extents.capacity();
        for n in 0..MOST as u64 {
            assert!(dirty.fits(&(n * 100..n * 100 + 50)));
            dirty.add(&(n * 100..n * 100 + 50), 0);
        }
        assert!(!dirty.fits(&(1_000_000..1_000_008)) && dirty.presses());
        for n in 0..10 {
            dirty.supersede(&(n * 100 + 20..n * 100 + 30));
        }
        assert_eq!((dirty.extents.len(), dirty.extents.capacity()), (MOST + 1, room));
        assert_eq!(dirty.sectors, 50 * MOST as u64 - 10);
    }

    #[test]
    fn it_agrees_with_a_list_of_flags() {
        let (mut rng, mut dirty, mut flags) = (Rng::new(5), Dirty::new(1000), [None::<u64>; 64]);
        for step in 0..20_000_u64 {
            let start = rng.below(60);
            let range = start..start + 1 + rng.below(64 - start);
            let cells = range.start as usize..range.end as usize;
            match rng.below(4) {
                0 | 1 => {
                    dirty.add(&range, step);
                    flags[cells].fill(Some(step));
                }
                2 => {
                    dirty.supersede(&range);
                    flags[cells].fill(None);
                }
                _ if !dirty.extents.is_empty() => {
                    let taken = dirty.take(rng.below(dirty.extents.len() as u64) as usize, 10);
                    flags[taken.start as usize..taken.end as usize].fill(None);
                    dirty.arrived();
                }
                _ => {}
            }
            let mut seen = [false; 64];
            for extent in &dirty.extents {
                seen[extent.range.start as usize..extent.range.end as usize].fill(true);
                let oldest = flags[extent.range.start as usize..extent.range.end as usize].iter();
                assert!(extent.era <= oldest.flatten().min().copied().expect("dirty"));
            }
            assert_eq!(seen, flags.map(|flag| flag.is_some()));
            assert_eq!(dirty.sectors, flags.iter().flatten().count() as u64);
            assert!(dirty.extents.is_sorted_by(|a, b| a.range.end <= b.range.start));
        }
    }
}
