//! The write cache at work: writes that find room in it or wait for some, flushes, and when it wants the arm.
//!
//! Which sectors are dirty is in `dirty.rs`, which of them go first in `destage.rs`. The arm is moved in
//! `drive.rs`.

use super::answers::Answers;
use super::commands::{Command, Kind};
use super::destage::{Candidate, Sweep};
use super::dirty::Dirty;
use super::geometry::Track;
use super::mechanics::Mechanics;
use super::params::{Figures, MIB_SECTORS};
use blkmq_core::{Instant, Nanos};
use std::collections::VecDeque;
use std::ops::Range;

/// Sectors that are written back at once: long enough for speed, short enough for a read that waits.
const DESTAGE_SECTORS: u64 = 1024;

/// A flush that waits for the end of an era.
#[derive(Debug)]
struct Flush {
    tag: u32,
    era: u64,
    /// It takes note of it then.
    ready: Instant,
}

/// How much the cache wants the arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Nothing else may be done: somebody waits for everything up to this era.
    Flush(u64),
    /// There is too little room: as much as a command does.
    Room,
    /// If nobody else does.
    Rest,
}

/// The cache.
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
    /// Empty.
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

    /// Does it take a write of `range` at all? One that would take most of it gains nothing.
    pub(super) fn takes(&self, range: &Range<u64>) -> bool {
        2 * (range.end - range.start) <= self.dirty.capacity()
    }

    /// Is all of `range` in it?
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.dirty.holds(range)
    }

    /// A write that it takes arrives.
    pub(super) fn write(&mut self, now: Instant, command: Command, answers: &mut Answers) {
        self.blocked.push_back((command, now));
        self.admit(now, answers);
    }

    /// A flush arrives: it ends when everything that is here is on the medium.
    pub(super) fn flush(&mut self, now: Instant, tag: u32, answers: &mut Answers) {
        let ready = now + self.hit;
        if self.dirty.is_clean() {
            return answers.end(tag, ready, Ok(()));
        }
        self.flushes.push_back(Flush { tag, era: self.era, ready });
        self.era += 1;
    }

    /// Takes writes in as long as they fit, in order.
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

    /// What was taken last is on the medium.
    pub(super) fn arrived(&mut self, at: Instant, answers: &mut Answers) {
        self.dirty.arrived();
        self.settle(at, answers);
    }

    /// `range` is on the medium by another way, with what is newer.
    pub(super) fn supersede(&mut self, at: Instant, range: &Range<u64>, answers: &mut Answers) {
        self.dirty.supersede(range);
        self.settle(at, answers);
    }

    /// There is less in it: flushes end, and writes find room.
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

    /// Does somebody wait for it?
    pub(super) fn is_awaited(&self) -> bool {
        !(self.blocked.is_empty() && self.flushes.is_empty())
    }

    fn is_pressed(&self) -> bool {
        !self.blocked.is_empty() || self.dirty.presses()
    }

    /// When the arm, which has had nothing to do for it since `quiet`, is wanted, if nothing else happens.
    pub(super) fn turn(&self, quiet: Instant) -> Option<Instant> {
        let flush = self.flushes.front().map(|flush| flush.ready);
        let delay = if self.is_pressed() { Nanos::ZERO } else { self.delay };
        let rest = (!self.dirty.is_clean()).then(|| quiet + delay);
        flush.into_iter().chain(rest).min()
    }

    /// Whether and how much it wants an arm that is free at `at` and has been quiet since `quiet`.
    pub(super) fn wants(&self, at: Instant, quiet: Instant) -> Option<Want> {
        if let Some(flush) = self.flushes.iter().rev().find(|flush| flush.ready <= at) {
            return Some(Want::Flush(flush.era));
        }
        if self.is_pressed() {
            return Some(Want::Room);
        }
        (at >= quiet + self.delay).then_some(Want::Rest)
    }

    /// When the first of those that wait for room arrived.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked.front().map(|(_, arrived)| *arrived)
    }

    /// What had best be written next for an arm that is `here`.
    pub(super) fn candidate(
        &self,
        want: Want,
        mechanics: &Mechanics,
        here: (Instant, Track),
    ) -> Option<Candidate> {
        let era = if let Want::Flush(era) = want { era } else { u64::MAX };
        self.sweep.candidate(self.dirty.extents(), era, mechanics, here)
    }

    /// Takes out what is to be written; it [arrives](Self::arrived) before anything else is taken.
    pub(super) fn take(&mut self, candidate: &Candidate) -> Range<u64> {
        let range = self.dirty.take(candidate.index, DESTAGE_SECTORS);
        self.sweep.went(candidate, range.end);
        range
    }
}
