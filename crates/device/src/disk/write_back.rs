//! The write cache at work: writes that enter it or wait for room, flushes, and its demands on the arm.
//!
//! `dirty.rs` knows which sectors are dirty, `destage.rs` chooses the next ones to write back, and `drive.rs` moves
//! the arm.

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

/// How urgently the cache needs the arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Before all other work: a flush waits for the eras up to this one.
    Flush(u64),
    /// Like a command: the cache is short of room.
    Room,
    /// Only if the arm has no other work.
    Rest,
}

/// The write cache.
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

    /// Returns whether the cache takes a write of `range` at all. A write longer than half of the cache gains nothing.
    pub(super) fn takes(&self, range: &Range<u64>) -> bool {
        2 * (range.end - range.start) <= self.dirty.capacity()
    }

    /// Returns whether the cache holds all of `range`.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.dirty.holds(range)
    }

    /// Takes a write at its arrival; the caller has checked that the cache takes it.
    pub(super) fn write(&mut self, now: Instant, command: Command, answers: &mut Answers) {
        self.blocked.push_back((command, now));
        self.admit(now, answers);
    }

    /// Takes a flush, which ends when everything now in the cache is on the medium.
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

    /// The range taken last is on the medium.
    pub(super) fn arrived(&mut self, at: Instant, answers: &mut Answers) {
        self.dirty.arrived();
        self.settle(at, answers);
    }

    /// A write that bypassed the cache has put newer data for `range` on the medium.
    pub(super) fn supersede(&mut self, at: Instant, range: &Range<u64>, answers: &mut Answers) {
        self.dirty.supersede(range);
        self.settle(at, answers);
    }

    /// The cache holds less than before: ends flushes, and admits writes.
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

    /// When the cache will need the arm, which has been quiet since `quiet`, if no command comes.
    pub(super) fn turn(&self, quiet: Instant) -> Option<Instant> {
        let flush = self.flushes.front().map(|flush| flush.ready);
        let delay = if self.is_pressed() { Nanos::ZERO } else { self.delay };
        let rest = (!self.dirty.is_clean()).then(|| quiet + delay);
        flush.into_iter().chain(rest).min()
    }

    /// How urgently the cache needs an arm that is free at `at` and has been quiet since `quiet`; `None` if not at
    /// all.
    pub(super) fn wants(&self, at: Instant, quiet: Instant) -> Option<Want> {
        if let Some(flush) = self.flushes.iter().rev().find(|flush| flush.ready <= at) {
            return Some(Want::Flush(flush.era));
        }
        if self.is_pressed() {
            return Some(Want::Room);
        }
        (at >= quiet + self.delay).then_some(Want::Rest)
    }

    /// When the first of the writes that wait for room arrived.
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

    /// Takes out the sectors to write; they [arrive](Self::arrived) before others are taken.
    pub(super) fn take(&mut self, candidate: &Candidate) -> Range<u64> {
        let range = self.dirty.take(candidate.index, DESTAGE_SECTORS);
        self.sweep.went(candidate, range.end);
        range
    }
}
