//! Commands that wait for the arm, and which of them is next.
//!
//! With reordering, the one that the head gets to first, seek and rotation taken together; unless the oldest has
//! waited for longer than the age limit. Then that one: of any two of which both have, the older is first, so
//! nobody waits for more than the age limit and what came before. Without reordering, always the oldest.

use super::geometry::Track;
use super::mechanics::{Access, Estimate, Mechanics, Target};
use blkmq_core::{Instant, Nanos};
use std::ops::Range;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    /// A write whose data is not sent.
    Zeroes,
}

/// A command on sectors.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) tag: u32,
    pub(super) kind: Kind,
    pub(super) range: Range<u64>,
}

/// A command that waits for the arm.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) command: Command,
    pub(super) arrived: Instant,
    /// From then on the arm can move for it.
    ready: Instant,
    /// Counted in order of arrival.
    number: u64,
    target: Target,
}

/// The next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) estimate: Estimate,
    /// Nothing may pass it.
    pub(super) is_overdue: bool,
}

/// Commands in no order.
#[derive(Debug)]
pub(super) struct Commands {
    list: Vec<Waiting>,
    arrived: u64,
    reorder: bool,
    age_limit: Nanos,
}

impl Commands {
    /// None, with room for `depth`.
    pub(super) fn new(depth: u32, reorder: bool, age_limit: Nanos) -> Self {
        Self { list: Vec::with_capacity(depth as usize), arrived: 0, reorder, age_limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds one that arrives at `arrived`, after `overhead` of which the arm can move.
    pub(super) fn push(
        &mut self,
        mechanics: &Mechanics,
        command: Command,
        arrived: Instant,
        overhead: Nanos,
    ) {
        let access = if command.kind == Kind::Read { Access::Read } else { Access::Write };
        let target = mechanics.target(command.range.start, access);
        let (ready, number) = (arrived + overhead, self.arrived);
        self.arrived += 1;
        self.list.push(Waiting { command, arrived, ready, number, target });
    }

    /// When the arm can move for the first of them. O(n).
    pub(super) fn ready(&self) -> Option<Instant> {
        self.list.iter().map(|waiting| waiting.ready).min()
    }

    /// Takes one out.
    pub(super) fn take(&mut self, index: usize) -> Waiting {
        self.list.swap_remove(index)
    }

    /// Takes out a read that asks for nothing outside of `range`, if there is one. O(n).
    pub(super) fn take_read_within(&mut self, range: &Range<u64>) -> Option<Waiting> {
        let is_within = |waiting: &Waiting| {
            let Command { kind, range: asked, .. } = &waiting.command;
            *kind == Kind::Read && super::segments::covers(range, asked)
        };
        self.list.iter().position(is_within).map(|index| self.take(index))
    }

    /// Has what arrived at `arrived` waited for too long by `at`?
    pub(super) fn is_overdue(&self, arrived: Instant, at: Instant) -> bool {
        at - arrived >= self.age_limit
    }

    /// The next of those that are ready, for an arm that is at `track` at `at`. A read that begins within
    /// `passing` is about to come under the head anyway. O(n).
    pub(super) fn choose(
        &self,
        mechanics: &Mechanics,
        (at, track): (Instant, Track),
        passing: &Range<u64>,
    ) -> Option<Choice> {
        let departure = mechanics.departure((at, track));
        let estimate = |waiting: &Waiting| {
            let Command { kind, range, .. } = &waiting.command;
            if *kind == Kind::Read && passing.contains(&range.start) {
                return Estimate::ZERO;
            }
            mechanics.estimate(&departure, &waiting.target)
        };
        let mut oldest: Option<usize> = None;
        let (mut best, mut soonest) = (None, (Estimate::MAX, u64::MAX));
        for (index, waiting) in self.list.iter().enumerate() {
            if waiting.ready > at {
                continue;
            }
            if oldest.is_none_or(|oldest| waiting.number < self.list[oldest].number) {
                oldest = Some(index);
            }
            if !self.reorder {
                continue;
            }
            let this = (estimate(waiting), waiting.number);
            if this < soonest {
                (best, soonest) = (Some(index), this);
            }
        }
        let oldest = oldest?;
        let is_overdue = self.is_overdue(self.list[oldest].arrived, at);
        if is_overdue || !self.reorder {
            let estimate = estimate(&self.list[oldest]);
            return Some(Choice { index: oldest, estimate, is_overdue });
        }
        best.map(|index| Choice { index, estimate: soonest.0, is_overdue })
    }
}
