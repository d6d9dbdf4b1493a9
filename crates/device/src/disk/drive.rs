//! The drive: takes commands, answers them, and keeps the arm busy. Independent of the engine.
//!
//! Every call passes the time, and the drive catches up: it finishes the work that the arm has ended since the last
//! call, and makes each decision at its own time, in order. Reads, writes and write-back are not interrupted once they
//! have begun; read-ahead yields to all other work.
//!
//! From time to time the arm recalibrates, and all commands wait. The intervals are drawn from a seed, between half the
//! mean interval and one and a half. A recalibration while the arm is idle delays only commands that arrive before it
//! ends.

use super::caches::{Candidate, HasRead, ReadAhead, Want, WriteBack};
use super::commands::{Answers, Choice, Command, Commands, Kind, Waiting};
use super::mechanics::{Access, Mechanics, Passage, Track};
use super::params::DiskParams;
use crate::memory::BadBlocks;
use crate::{Activity, OccupancyLog, Span};
use blkmq_core::{Instant, IoError, IoResult, Nanos, Rng};
use std::ops::Range;

/// Work of the arm that is not interrupted.
#[derive(Debug)]
enum Work {
    Read(Range<u64>),
    /// A read that fails.
    Recover,
    Write(Range<u64>),
    Destage,
    /// A recalibration.
    Stall,
}

#[derive(Debug)]
enum State {
    /// The arm is idle or reads ahead, since this time.
    Free {
        since: Instant,
    },
    Busy {
        until: Instant,
        work: Work,
    },
}

/// The next work of the arm.
enum Next {
    Command(Choice),
    Destage(Candidate),
}

/// A drive: its mechanism, its caches, and the commands that it holds.
#[derive(Debug)]
pub(super) struct Drive {
    mechanics: Mechanics,
    overhead: Nanos,
    hit: Nanos,
    recovery: Nanos,
    bad: BadBlocks,
    occupancy: Option<OccupancyLog>,
    /// The track of the arm, not counting read-ahead.
    track: Track,
    state: State,
    /// The arrival of the last command.
    touched: Instant,
    commands: Commands,
    reads: ReadAhead,
    writes: WriteBack,
    stalls: Option<Stalls>,
    answers: Answers,
}

impl Drive {
    /// Creates an idle drive with empty caches.
    pub(super) fn new(
        params: &DiskParams,
        mechanics: Mechanics,
        occupancy: Option<OccupancyLog>,
    ) -> Self {
        let figures = &params.figures;
        let depth = figures.hw_queue_depth;
        let interval = params.recalibration_interval;
        let stalls = || Stalls::new(interval, params.recalibration, params.seed);
        Self {
            mechanics,
            overhead: figures.overhead,
            hit: figures.hit,
            recovery: params.recovery,
            bad: params.badblocks.clone(),
            occupancy,
            track: Track::default(),
            state: State::Free { since: Instant::ZERO },
            touched: Instant::ZERO,
            commands: Commands::new(depth, params.reorder, params.age_limit),
            reads: ReadAhead::new(figures),
            writes: WriteBack::new(figures),
            stalls: (interval > Nanos::ZERO).then(stalls),
            answers: Answers::new(depth, figures.link_mbps),
        }
    }

    /// Takes a command at `now`. If `durable`, a write must not stay in the cache.
    pub(super) fn submit(&mut self, now: Instant, command: Command, durable: bool) {
        self.advance(now);
        self.touched = now;
        if command.kind == Kind::Read {
            return self.submit_read(now, command);
        }
        if durable || !self.writes.takes(&command.range) {
            return self.commands.push(&self.mechanics, command, now, self.overhead);
        }
        self.invalidate(now, &command.range);
        self.writes.write(now, command, &mut self.answers);
    }

    fn submit_read(&mut self, now: Instant, command: Command) {
        self.follow(now);
        let found = self.reads.find(&command.range);
        if found.is_none() && !self.writes.holds(&command.range) {
            return self.commands.push(&self.mechanics, command, now, self.overhead);
        }
        let Range { start, end } = command.range;
        self.answers.cached(command.tag, now + self.hit, end - start);
        let again = found.and_then(|segment| self.reads.consumed(segment, end, &self.bad));
        if let (Some(read), State::Free { .. }) = (again, &self.state) {
            self.stop_ahead(now);
            self.reads.begin(&self.mechanics, &self.bad, (now, self.track), read);
        }
    }

    /// Takes a flush at `now`, which ends when all cached data is on the medium.
    pub(super) fn submit_flush(&mut self, now: Instant, tag: u32) {
        self.advance(now);
        self.touched = now;
        self.writes.flush(now, tag, &mut self.answers);
    }

    /// Takes out a command that has ended by `now`, with its result.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(u32, IoResult)> {
        self.answers.pop(now)
    }

    /// The time at which the next command ends or the arm must make a decision; [`Instant::MAX`] if the drive holds no
    /// command.
    pub(super) fn next_event(&self) -> Instant {
        let is_awaited = !self.commands.is_empty() || self.writes.is_awaited();
        let arm = if is_awaited { self.turn() } else { None };
        self.answers.first().into_iter().chain(arm).min().unwrap_or(Instant::MAX)
    }

    /// Handles all events up to `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(at) = self.turn().filter(|at| *at <= now) {
            let state = std::mem::replace(&mut self.state, State::Free { since: at });
            let (since, read) = match state {
                State::Busy { work, .. } => (at, self.finish(at, work)),
                State::Free { since } => (since, None),
            };
            self.state = State::Free { since };
            self.begin(since, at, read);
        }
    }

    /// Returns the time at which the arm has work to finish or to begin.
    fn turn(&self) -> Option<Instant> {
        let since = match self.state {
            State::Busy { until, .. } => return Some(until),
            State::Free { since } => since,
        };
        let first = self.commands.ready().into_iter().chain(self.writes.turn(self.quiet(since)));
        first.min().map(|at| at.max(since))
    }

    /// The start of the idle period, without work or commands, of an arm that is free since `since`.
    fn quiet(&self, since: Instant) -> Instant {
        self.touched.max(since)
    }

    /// Finishes `work` of the arm. Returns the read after which the arm may read ahead, if it has no other work.
    fn finish(&mut self, at: Instant, work: Work) -> Option<HasRead> {
        match work {
            Work::Read(range) => {
                let read = self.reads.has_read(&range)?;
                self.answer_from(at, read.segment);
                return Some(read);
            }
            Work::Write(range) => self.writes.supersede(at, &range, &mut self.answers),
            Work::Destage => self.writes.arrived(at, &mut self.answers),
            Work::Recover | Work::Stall => {}
        }
        None
    }

    /// Begins the next work of the arm, which is idle since `since`; without work, reads ahead after `read`.
    fn begin(&mut self, since: Instant, at: Instant, read: Option<HasRead>) {
        if let Some(until) = self.stalls.as_mut().and_then(|stalls| stalls.strike(since, at)) {
            self.stop_ahead(at);
            self.state = State::Busy { until, work: Work::Stall };
            return;
        }
        self.follow(at);
        match (self.next(since, at), read) {
            (Some(Next::Command(choice)), _) => {
                let waiting = self.commands.take(choice.index);
                match waiting.command.kind {
                    Kind::Read => self.read(at, waiting.command),
                    Kind::Write | Kind::Zeroes => self.write(at, &waiting),
                }
            }
            (Some(Next::Destage(candidate)), _) => self.destage(at, &candidate),
            (None, Some(read)) => {
                self.reads.begin(&self.mechanics, &self.bad, (at, self.track), read);
            }
            (None, None) => {}
        }
    }

    /// Chooses the next work of the arm.
    fn next(&self, since: Instant, at: Instant) -> Option<Next> {
        let here = (at, self.track);
        let want = self.writes.wants(at, self.quiet(since));
        let destage = |want| self.writes.candidate(want, &self.mechanics, here);
        if let Some(want @ Want::Flush(_)) = want {
            let candidate = destage(want).expect("what a flush waits for is in the cache");
            return Some(Next::Destage(candidate));
        }
        let command = self.commands.choose(&self.mechanics, here, &self.reads.passing());
        let Some(command) = command else {
            return want.and_then(destage).map(Next::Destage);
        };
        let rival = want.filter(|want| *want == Want::Room && !command.is_overdue);
        if let Some(rival) = rival.and_then(destage) {
            let waits = self.writes.blocked_since();
            let is_overdue = waits.is_some_and(|since| self.commands.is_overdue(since, at));
            if is_overdue || rival.estimate < command.estimate {
                return Some(Next::Destage(rival));
            }
        }
        Some(Next::Command(command))
    }

    /// Begins to write a part of the cache back.
    fn destage(&mut self, at: Instant, candidate: &Candidate) {
        self.stop_ahead(at);
        let range = self.writes.take(candidate);
        let passage = self.transfer(at, &range, Access::Write);
        self.heal(&range);
        self.note(passage.begin, passage.end, Activity::Housekeeping);
        self.state = State::Busy { until: passage.end, work: Work::Destage };
    }

    /// Begins a write that bypasses the cache.
    fn write(&mut self, at: Instant, Waiting { command, arrived, .. }: &Waiting) {
        let Command { tag, kind, range } = command;
        self.stop_ahead(at);
        self.invalidate(at, range);
        let passage = self.transfer(at, range, Access::Write);
        self.heal(range);
        let sent = if *kind == Kind::Zeroes { 0 } else { range.end - range.start };
        self.answers.written(*tag, *arrived + self.hit, passage.end, sent);
        self.note(passage.begin, passage.end, Activity::Write);
        self.state = State::Busy { until: passage.end, work: Work::Write(range.clone()) };
    }

    /// Begins to read, or extends read-ahead as far as the read needs.
    fn read(&mut self, at: Instant, Command { tag, range, .. }: Command) {
        let missing = self.reads.missing(&range);
        let going_on = self.reads.passing().contains(&range.start);
        let bad = self.bad.first_in(missing.start, (missing.end - missing.start) as u32);
        let readable = missing.start..bad.map_or(missing.end, |bad| bad + 1);
        let passing =
            if going_on { self.reads.pass_to(&self.mechanics, at, readable.end) } else { None };
        self.stop_ahead(at);
        let Passage { begin, end, track } =
            passing.unwrap_or_else(|| self.transfer(at, &readable, Access::Read));
        self.track = track;
        let (until, work) = match bad {
            None => {
                self.answers.read(tag, begin, end, range.end - range.start);
                (end, Work::Read(range))
            }
            Some(_) => {
                let until = end + self.recovery;
                self.answers.end(tag, until, Err(IoError::IO));
                (until, Work::Recover)
            }
        };
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

    /// Records an activity of the arm at its present cylinder.
    fn note(&self, start: Instant, end: Instant, activity: Activity) {
        if let Some(occupancy) = &self.occupancy {
            occupancy.record(Span { start, end, place: self.track.cylinder, activity });
        }
    }

    /// Removes the bad blocks in `range`: written sectors can be read again.
    fn heal(&mut self, range: &Range<u64>) {
        self.bad.remove(range.start, range.end - 1);
    }

    /// Updates the progress of read-ahead, and answers the reads that wait for it.
    fn follow(&mut self, at: Instant) {
        if let Some((track, segment)) = self.reads.follow(&self.mechanics, at) {
            self.track = track;
            self.answer_from(at, segment);
        }
    }

    /// Answers the waiting reads that segment `segment` covers.
    fn answer_from(&mut self, at: Instant, segment: usize) {
        while let Some(it) = self.commands.take_read_within(self.reads.held(segment)) {
            let Range { start, end } = it.command.range;
            self.answers.cached(it.command.tag, at.max(it.arrived + self.hit), end - start);
        }
    }

    /// Stops read-ahead because the arm is needed for other work.
    fn stop_ahead(&mut self, at: Instant) {
        let Some(stopped) = self.reads.stop(&self.mechanics, at) else { return };
        self.track = stopped.track;
        if stopped.began < stopped.ended {
            self.note(stopped.began, stopped.ended, Activity::Housekeeping);
        }
    }

    /// Called for a write to `range`: drops old data from the read cache, and stops read-ahead in the range.
    fn invalidate(&mut self, at: Instant, range: &Range<u64>) {
        if self.reads.overlaps(range) {
            self.stop_ahead(at);
        }
        self.reads.invalidate(range);
    }
}

/// The times of recalibrations.
#[derive(Debug)]
struct Stalls {
    next: Instant,
    /// The mean interval.
    interval: Nanos,
    takes: Nanos,
    rng: Rng,
}

impl Stalls {
    /// Creates recalibrations at `interval` on average, which take `takes` each.
    fn new(interval: Nanos, takes: Nanos, seed: u64) -> Self {
        let mut stalls = Self { next: Instant::ZERO, interval, takes, rng: Rng::new(seed) };
        stalls.draw(Instant::ZERO);
        stalls
    }

    fn draw(&mut self, from: Instant) {
        self.next = from + Nanos(self.interval.0 / 2 + self.rng.below(self.interval.0));
    }

    /// Called when the arm, idle since `since`, is needed at `at`. Returns the end of a recalibration in progress at
    /// that time, if there is one.
    fn strike(&mut self, since: Instant, at: Instant) -> Option<Instant> {
        if self.next > at {
            return None;
        }
        let end = self.next.max(since) + self.takes;
        self.draw(end.max(at));
        (end > at).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_strike_as_often_as_they_should() {
        let (interval, takes) = (Nanos::from_secs(1), Nanos::from_millis(50));
        let mut stalls = Stalls::new(interval, takes, 3);
        let (mut at, mut strikes) = (Instant::ZERO, 0);
        while at < Instant::ZERO + Nanos::from_secs(1000) {
            let since = at;
            at += Nanos::from_millis(1);
            if let Some(end) = stalls.strike(since, at) {
                assert!(end > at && end - at <= takes);
                at = end;
                strikes += 1;
            }
        }
        assert!((900..1000).contains(&strikes), "{strikes} in 1000 s");
    }

    #[test]
    fn one_in_idle_time_is_not_noticed() {
        let mut stalls = Stalls::new(Nanos::from_secs(1), Nanos::from_millis(50), 3);
        let late = Instant::ZERO + Nanos::from_secs(100);
        assert_eq!(stalls.strike(Instant::ZERO, late), None);
        assert!(stalls.next > late);
    }
}
