//! The drive: takes commands, answers them, and keeps the arm busy. Knows nothing of the engine.
//!
//! It is told the time with every call and catches up with it: whatever the arm finished meanwhile is finished,
//! and what it would have decided then is decided, in the order in which it happened. Reads, writes and writing
//! back are not interrupted once they have begun; reading ahead gives way to everything.

use super::answers::Answers;
use super::commands::{Command, Commands, Kind, Waiting};
use super::destage::{Candidate, Sweep};
use super::dirty::Dirty;
use super::geometry::Track;
use super::mechanics::{Access, Mechanics, Passage, Stream};
use super::params::{DiskParams, MIB_SECTORS};
use super::segments::Segments;
use super::stalls::Stalls;
use crate::memory::BadBlocks;
use crate::{Activity, OccupancyLog, Span};
use blkmq_core::{Instant, IoError, IoResult, Nanos};
use std::collections::VecDeque;
use std::ops::Range;

/// Sectors that are written back at once: long enough for speed, short enough for a read that waits.
const DESTAGE_SECTORS: u64 = 1024;

/// What the arm does that is not interrupted.
#[derive(Debug)]
enum Work {
    Read(Range<u64>),
    /// A read that failed.
    Recover,
    Write(Range<u64>),
    Destage,
    /// A recalibration.
    Stall,
}

#[derive(Debug)]
enum State {
    /// Nothing, or reading ahead, since then.
    Free {
        since: Instant,
    },
    Busy {
        until: Instant,
        work: Work,
    },
}

/// Reading ahead.
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
struct HasRead {
    segment: usize,
    end: u64,
}

/// A flush that waits for the end of an era.
#[derive(Debug)]
struct Flush {
    tag: u32,
    era: u64,
    /// It takes note of it then.
    ready: Instant,
}

/// See above.
#[derive(Debug)]
pub(super) struct Drive {
    mechanics: Mechanics,
    overhead: Nanos,
    hit: Nanos,
    destage_delay: Nanos,
    /// Sectors.
    read_ahead: u64,
    capacity: u64,
    recovery: Nanos,
    bad: BadBlocks,
    occupancy: Option<OccupancyLog>,

    /// Where the arm is.
    track: Track,
    state: State,
    ahead: Option<Ahead>,
    /// When a command came last.
    touched: Instant,
    commands: Commands,
    /// Writes that wait for room in the cache, the oldest first.
    blocked: VecDeque<(Command, Instant)>,
    flushes: VecDeque<Flush>,
    era: u64,
    segments: Segments,
    dirty: Dirty,
    sweep: Sweep,
    stalls: Option<Stalls>,
    answers: Answers,
}

impl Drive {
    /// At rest, with nothing in its caches.
    pub(super) fn new(
        params: &DiskParams,
        mechanics: Mechanics,
        occupancy: Option<OccupancyLog>,
    ) -> Self {
        let figures = &params.figures;
        let depth = figures.hw_queue_depth;
        let read_ahead = u64::from(figures.read_ahead) * 2;
        let interval = params.recalibration_interval;
        let stalls = || Stalls::new(interval, params.recalibration, params.seed);
        Self {
            mechanics,
            overhead: figures.overhead,
            hit: figures.hit,
            destage_delay: figures.destage_delay,
            read_ahead,
            capacity: figures.capacity,
            recovery: params.recovery,
            bad: params.badblocks.clone(),
            occupancy,
            track: Track::default(),
            state: State::Free { since: Instant::ZERO },
            ahead: None,
            touched: Instant::ZERO,
            commands: Commands::new(depth, params.reorder, params.age_limit),
            blocked: VecDeque::with_capacity(depth as usize),
            flushes: VecDeque::with_capacity(depth as usize),
            era: 0,
            // What was asked for last and what may be next.
            segments: Segments::new(figures.segments, 2 * read_ahead),
            dirty: Dirty::new(figures.cache_size * MIB_SECTORS),
            sweep: Sweep::default(),
            stalls: (interval > Nanos::ZERO).then(stalls),
            answers: Answers::new(depth, figures.link_mbps),
        }
    }

    /// Takes a command at `now`. `durable`: a write must not stay in the cache.
    pub(super) fn submit(&mut self, now: Instant, command: Command, durable: bool) {
        self.advance(now);
        self.touched = now;
        match command.kind {
            Kind::Read => self.submit_read(now, command),
            Kind::Write | Kind::Zeroes => self.submit_write(now, command, durable),
        }
    }

    fn submit_read(&mut self, now: Instant, command: Command) {
        self.follow(now);
        let found = self.segments.find(&command.range);
        if found.is_none() && !self.dirty.holds(&command.range) {
            return self.commands.push(&self.mechanics, command, now, self.overhead);
        }
        let Range { start, end } = command.range;
        self.answers.cached(command.tag, now + self.hit, end - start);
        if let Some(segment) = found {
            self.consumed(now, segment, end);
        }
    }

    fn submit_write(&mut self, now: Instant, command: Command, durable: bool) {
        let range = &command.range;
        // What would take most of the cache gains nothing from it.
        let too_long = 2 * (range.end - range.start) > self.dirty.capacity();
        if durable || too_long {
            return self.commands.push(&self.mechanics, command, now, self.overhead);
        }
        self.invalidate(now, &command.range);
        self.blocked.push_back((command, now));
        self.unblock(now);
    }

    /// Takes a flush at `now`: it ends when everything that is in the cache is on the medium.
    pub(super) fn submit_flush(&mut self, now: Instant, tag: u32) {
        self.advance(now);
        self.touched = now;
        let ready = now + self.hit;
        if self.dirty.is_clean() {
            return self.answers.end(tag, ready, Ok(()));
        }
        self.flushes.push_back(Flush { tag, era: self.era, ready });
        self.era += 1;
    }

    /// A command that has ended by `now`, and how.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(u32, IoResult)> {
        self.answers.pop(now)
    }

    /// When a command will have ended, or the arm has to be asked again what comes next; [`Instant::MAX`] if
    /// nobody waits for anything.
    pub(super) fn next_event(&self) -> Instant {
        let is_awaited =
            !(self.commands.is_empty() && self.blocked.is_empty() && self.flushes.is_empty());
        let arm = if is_awaited { self.turn() } else { None };
        self.answers.first().into_iter().chain(arm).min().unwrap_or(Instant::MAX)
    }

    /// Does everything that happens up to `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(at) = self.turn().filter(|at| *at <= now) {
            let state = std::mem::replace(&mut self.state, State::Free { since: at });
            let (since, read) = match state {
                State::Busy { work, .. } => (at, self.finish(at, work)),
                State::Free { since } => (since, None),
            };
            self.state = State::Free { since };
            if !self.decide(since, at)
                && let Some(read) = read
            {
                self.begin_ahead(at, read.segment, read.end);
            }
        }
    }

    /// When the arm has something to finish or to begin.
    fn turn(&self) -> Option<Instant> {
        let since = match self.state {
            State::Busy { until, .. } => return Some(until),
            State::Free { since } => since,
        };
        let demand = self.commands.ready();
        let flush = self.flushes.front().map(|flush| flush.ready);
        let background = (!self.dirty.is_clean()).then(|| {
            let delay = if self.is_pressed() { Nanos::ZERO } else { self.destage_delay };
            self.touched.max(since) + delay
        });
        let first = demand.into_iter().chain(flush).chain(background).min();
        first.map(|at| at.max(since))
    }

    /// Must the cache be emptied although others want the arm?
    fn is_pressed(&self) -> bool {
        !self.blocked.is_empty() || self.dirty.presses()
    }

    /// The arm has done `work`. What it may read ahead of, if nothing else is wanted of it.
    fn finish(&mut self, at: Instant, work: Work) -> Option<HasRead> {
        match work {
            Work::Read(range) => return self.has_read(at, &range),
            Work::Write(range) => {
                self.dirty.supersede(&range);
                self.settle(at);
            }
            Work::Destage => {
                self.dirty.arrived();
                self.settle(at);
            }
            Work::Recover | Work::Stall => {}
        }
        None
    }

    /// There is less in the cache: flushes end, and writes find room.
    fn settle(&mut self, at: Instant) {
        if !self.flushes.is_empty() {
            let oldest = self.dirty.oldest_era();
            let is_over = |flush: &&Flush| oldest.is_none_or(|oldest| oldest > flush.era);
            while let Some(flush) = self.flushes.front().filter(is_over) {
                self.answers.end(flush.tag, flush.ready.max(at), Ok(()));
                self.flushes.pop_front();
            }
        }
        self.unblock(at);
    }

    /// Takes writes into the cache as long as they fit, in order.
    fn unblock(&mut self, at: Instant) {
        while let Some((command, arrived)) = self.blocked.front()
            && self.dirty.fits(&command.range)
        {
            self.dirty.add(&command.range, self.era);
            let sent = match command.kind {
                Kind::Zeroes => 0,
                Kind::Read | Kind::Write => command.range.end - command.range.start,
            };
            self.answers.cached(command.tag, at.max(*arrived + self.hit), sent);
            self.blocked.pop_front();
        }
    }

    /// The free arm, idle since `since`, does what is best now. False if that is nothing.
    fn decide(&mut self, since: Instant, at: Instant) -> bool {
        if let Some(until) = self.stalls.as_mut().and_then(|stalls| stalls.strike(since, at)) {
            self.stop_ahead(at);
            self.state = State::Busy { until, work: Work::Stall };
            return true;
        }
        self.follow(at);
        if let Some(era) = self.flushes.iter().rev().find(|f| f.ready <= at).map(|f| f.era) {
            // Nothing else until the flush is over: as long as it takes, somebody waits for all of it.
            let candidate =
                self.candidate(at, era).expect("what a flush waits for is in the cache");
            self.destage(at, &candidate);
            return true;
        }
        let passing = self.passing();
        let here = (at, self.track);
        let demand = self.commands.choose(&self.mechanics, here, &passing);
        let is_quiet = || at >= self.touched.max(since) + self.destage_delay;
        let may_destage = self.is_pressed() || demand.is_none() && is_quiet();
        let destage = if may_destage { self.candidate(at, u64::MAX) } else { None };
        match (demand, destage) {
            (Some(demand), Some(destage)) if !demand.is_overdue => {
                let waits = self.blocked.front().map(|(_, arrived)| *arrived);
                let is_overdue = waits.is_some_and(|it| self.commands.is_overdue(it, at));
                if is_overdue || destage.estimate < demand.estimate {
                    self.destage(at, &destage);
                } else {
                    self.serve(at, demand.index);
                }
            }
            (Some(demand), _) => self.serve(at, demand.index),
            (None, Some(destage)) => self.destage(at, &destage),
            (None, None) => return false,
        }
        true
    }

    fn candidate(&self, at: Instant, era: u64) -> Option<Candidate> {
        let here = (at, self.track);
        self.sweep.candidate(self.dirty.extents(), era, &self.mechanics, here)
    }

    /// Begins to write a part of the cache back.
    fn destage(&mut self, at: Instant, candidate: &Candidate) {
        self.stop_ahead(at);
        let range = self.dirty.take(candidate.index, DESTAGE_SECTORS);
        self.sweep.went(candidate, range.end);
        let passage = self.transfer(at, &range, Access::Write);
        self.heal(&range);
        self.note(passage.begin, passage.end, Activity::Housekeeping);
        self.state = State::Busy { until: passage.end, work: Work::Destage };
    }

    /// Begins with the command at `index`.
    fn serve(&mut self, at: Instant, index: usize) {
        let waiting = self.commands.take(index);
        match waiting.command.kind {
            Kind::Read => self.serve_read(at, waiting.command),
            Kind::Write | Kind::Zeroes => self.serve_write(at, &waiting),
        }
    }

    fn serve_write(&mut self, at: Instant, Waiting { command, arrived, .. }: &Waiting) {
        let Command { tag, kind, range } = command;
        self.invalidate(at, range);
        self.stop_ahead(at);
        let passage = self.transfer(at, range, Access::Write);
        self.heal(range);
        let sent = if *kind == Kind::Zeroes { 0 } else { range.end - range.start };
        self.answers.written(*tag, *arrived + self.hit, passage.end, sent);
        self.note(passage.begin, passage.end, Activity::Write);
        let work = Work::Write(range.clone());
        self.state = State::Busy { until: passage.end, work };
    }

    fn serve_read(&mut self, at: Instant, Command { tag, range, .. }: Command) {
        // Of what is being read ahead, the rest is enough.
        let missing = match &self.ahead {
            Some(it) if self.segments.range(it.segment).contains(&range.start) => {
                it.reached..range.end
            }
            _ => range.clone(),
        };
        let going_on = self.passing().contains(&range.start);
        let bad = self.bad.first_in(missing.start, (missing.end - missing.start) as u32);
        let readable = missing.start..bad.map_or(missing.end, |bad| bad + 1);
        let passage = match &self.ahead {
            Some(ahead) if going_on => {
                Passage { begin: at, ..ahead.stream.pass_to(&self.mechanics, readable.end) }
            }
            _ => {
                self.stop_ahead(at);
                self.transfer(at, &readable, Access::Read)
            }
        };
        self.stop_ahead(at);
        self.track = passage.track;
        let Passage { begin, end, .. } = passage;
        let (until, work) = match bad {
            None => (end, Work::Read(range.clone())),
            Some(_) => (end + self.recovery, Work::Recover),
        };
        match work {
            Work::Read(_) => self.answers.read(tag, begin, end, range.end - range.start),
            _ => self.answers.end(tag, until, Err(IoError::IO)),
        }
        self.note(begin, until, Activity::Read);
        self.state = State::Busy { until, work };
    }

    /// Moves the arm to `range` and over it.
    fn transfer(&mut self, at: Instant, range: &Range<u64>, access: Access) -> Passage {
        let here = (at, self.track);
        let sectors = range.end - range.start;
        let passage = self.mechanics.transfer(here, range.start, sectors, access);
        if let Some(occupancy) = &self.occupancy {
            let place = self.mechanics.geometry.locate(range.start).track.cylinder;
            let (start, end) = (at, passage.begin);
            occupancy.record(Span { start, end, place, activity: Activity::Position });
        }
        self.track = passage.track;
        passage
    }

    /// Notes what the arm does where it is then.
    fn note(&self, start: Instant, end: Instant, activity: Activity) {
        if let Some(occupancy) = &self.occupancy {
            occupancy.record(Span { start, end, place: self.track.cylinder, activity });
        }
    }

    /// What is written can be read again.
    fn heal(&mut self, range: &Range<u64>) {
        self.bad.remove(range.start, range.end - 1);
    }
}

/// Reading ahead, and what comes of it.
impl Drive {
    /// The sectors that the arm is reading ahead or has: a read that begins there needs no positioning.
    fn passing(&self) -> Range<u64> {
        match self.ahead.as_ref().filter(|ahead| ahead.is_running()) {
            Some(ahead) => self.segments.range(ahead.segment).start..ahead.reached + 1,
            None => 0..0,
        }
    }

    /// Sees how far reading ahead has come, and answers those who wait for that.
    fn follow(&mut self, at: Instant) {
        let Some(ahead) = &mut self.ahead else { return };
        ahead.reached = ahead.stream.reached(&self.mechanics, at);
        let segment = ahead.segment;
        self.track = ahead.stream.track();
        self.segments.extend(segment, ahead.reached);
        self.answer_from(at, segment);
    }

    /// Answers who waits for what segment `segment` holds.
    fn answer_from(&mut self, at: Instant, segment: usize) {
        while let Some(it) = self.commands.take_read_within(self.segments.range(segment)) {
            let Range { start, end } = it.command.range;
            self.answers.cached(it.command.tag, at.max(it.arrived + self.hit), end - start);
        }
    }

    /// `range` has been read on demand.
    fn has_read(&mut self, at: Instant, range: &Range<u64>) -> Option<HasRead> {
        let segment = self.segments.put(range)?;
        self.answer_from(at, segment);
        Some(HasRead { segment, end: range.end })
    }

    /// Up to sector `end`, segment `segment` has been of use: reading ahead goes on, or begins again.
    fn consumed(&mut self, now: Instant, segment: usize, end: u64) {
        let limit = self.capacity.min(end + self.read_ahead);
        match &mut self.ahead {
            Some(ahead) if ahead.is_running() => {
                if ahead.segment == segment {
                    ahead.stream.limit = ahead.stream.limit.max(limit);
                }
                return;
            }
            _ => {}
        }
        let is_free = matches!(self.state, State::Free { .. });
        let left = self.segments.range(segment).end - end;
        if is_free && 2 * left < self.read_ahead {
            self.stop_ahead(now);
            self.begin_ahead(now, segment, end);
        }
    }

    /// Reads on behind what segment `segment` holds, of which everything before `end` was asked for.
    fn begin_ahead(&mut self, at: Instant, segment: usize, end: u64) {
        let next = self.segments.range(segment).end;
        let limit = self.capacity.min(end + self.read_ahead);
        if next < limit {
            let here = (at, self.track);
            let stream = Stream::begin(&self.mechanics, here, next, limit);
            self.ahead = Some(Ahead { segment, stream, began: at, reached: next });
        }
    }

    /// The arm is wanted for something else. It is where reading ahead has come to, as of the last look.
    fn stop_ahead(&mut self, at: Instant) {
        let Some(ahead) = self.ahead.take() else { return };
        if ahead.began < at {
            self.note(ahead.began, at, Activity::Housekeeping);
        }
    }

    /// `range` is being written: nothing old of it is kept or read ahead.
    fn invalidate(&mut self, at: Instant, range: &Range<u64>) {
        let affected = |ahead: &Ahead| {
            let held = self.segments.range(ahead.segment);
            let all = held.start..ahead.stream.limit;
            all.start < range.end && range.start < all.end
        };
        if self.ahead.as_ref().is_some_and(affected) {
            self.follow(at);
            self.stop_ahead(at);
        }
        self.segments.invalidate(range);
    }
}
