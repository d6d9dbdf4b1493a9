//! The commands that wait for the arm, and the choice of the next one.
//!
//! With reordering, the next command is the one that the head reaches first, counting seek and rotation, unless the
//! oldest has waited longer than the age limit and goes first. Among several commands beyond the limit, the oldest goes
//! first, so that a command waits no longer than the age limit plus the service of older commands. Without reordering,
//! the oldest is always next.

use super::geometry::Track;
use super::mechanics::{Access, Estimate, Mechanics, Target};
use blkmq_core::{Instant, Nanos};
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    /// A write without data from the host.
    Zeroes,
}

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
    /// The earliest time at which the arm can move for the command.
    ready: Instant,
    /// Numbers commands in order of arrival.
    number: u64,
    target: Target,
}

/// The choice of the next command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) estimate: Estimate,
    /// Whether no other work may precede the command.
    pub(super) is_overdue: bool,
}

/// The waiting commands, in no order.
#[derive(Debug)]
pub(super) struct Commands {
    list: Vec<Waiting>,
    arrived: u64,
    reorder: bool,
    age_limit: Nanos,
}

impl Commands {
    /// An empty list, with room for `depth` commands.
    pub(super) fn new(depth: u32, reorder: bool, age_limit: Nanos) -> Self {
        Self { list: Vec::with_capacity(depth as usize), arrived: 0, reorder, age_limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a command that arrives at `arrived`. The arm can move for it after `overhead`.
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

    /// Returns the earliest time at which the arm can move for a command. O(n).
    pub(super) fn ready(&self) -> Option<Instant> {
        self.list.iter().map(|waiting| waiting.ready).min()
    }

    /// Takes a command out.
    pub(super) fn take(&mut self, index: usize) -> Waiting {
        self.list.swap_remove(index)
    }

    /// Takes out a read that lies entirely in `range`, if there is one. O(n).
    pub(super) fn take_read_within(&mut self, range: &Range<u64>) -> Option<Waiting> {
        let is_within = |waiting: &Waiting| {
            let Command { kind, range: asked, .. } = &waiting.command;
            *kind == Kind::Read && super::read_ahead::covers(range, asked)
        };
        self.list.iter().position(is_within).map(|index| self.take(index))
    }

    /// Returns whether a command that arrived at `arrived` has exceeded the age limit at `at`.
    pub(super) fn is_overdue(&self, arrived: Instant, at: Instant) -> bool {
        at - arrived >= self.age_limit
    }

    /// Chooses the next of the commands that are ready, for an arm that is at `track` at `at`. A read that begins
    /// within `passing` needs no positioning. O(n).
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
