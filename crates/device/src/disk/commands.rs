//! The commands that wait for the arm, and the choice of the next one; and answers on their way to the host, with the
//! interface that transfers the data.
//!
//! With reordering, the next command is the one that the head reaches first, counting seek and rotation, unless the
//! oldest has waited longer than the age limit and goes first. Among several commands beyond the limit, the oldest goes
//! first, so that a command waits no longer than the age limit plus the service of older commands. Without reordering,
//! the oldest is always next.
//!
//! Cached data passes the interface one command at a time. Data from or to the medium passes it while it is read or
//! written: the speed of the interface matters only if it is lower than that of the medium.

use super::mechanics::{Access, Estimate, Mechanics, Target, Track};
use blkmq_core::{Instant, IoError, IoResult, Nanos, SECTOR_SIZE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
            *kind == Kind::Read && covers(range, asked)
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

/// The end of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Answer {
    at: Instant,
    /// Numbers answers in the order of their decision.
    number: u64,
    tag: u32,
    failed: bool,
}

/// The interface and its pending answers.
#[derive(Debug)]
pub(super) struct Answers {
    /// Nanoseconds per sector, in units of 2^-16.
    sector: u64,
    /// The time at which the interface becomes free.
    free: Instant,
    heap: BinaryHeap<Reverse<Answer>>,
    decided: u64,
}

impl Answers {
    /// Creates the interface of a drive of `depth` commands, at `mbps` MiB/s.
    pub(super) fn new(depth: u32, mbps: u32) -> Self {
        let rate = u64::from(mbps) << 20;
        Self {
            sector: ((u64::from(SECTOR_SIZE) * 1_000_000_000) << 16) / rate,
            free: Instant::ZERO,
            heap: BinaryHeap::with_capacity(depth as usize),
            decided: 0,
        }
    }

    /// The time that `sectors` sectors take on the interface.
    fn span(&self, sectors: u64) -> Nanos {
        Nanos((sectors * self.sector) >> 16)
    }

    /// Ends command `tag` at `at`.
    pub(super) fn end(&mut self, tag: u32, at: Instant, result: IoResult) {
        let answer = Answer { at, number: self.decided, tag, failed: result.is_err() };
        self.decided += 1;
        self.heap.push(Reverse(answer));
    }

    /// Ends command `tag` when `sectors` sectors have moved between host and cache, which is possible from `from` on.
    pub(super) fn cached(&mut self, tag: u32, from: Instant, sectors: u64) {
        self.free = from.max(self.free) + self.span(sectors);
        self.end(tag, self.free, Ok(()));
    }

    /// Ends command `tag` when `sectors` sectors from the medium, which passed under the head from `begin` to `end`,
    /// have reached the host.
    pub(super) fn read(&mut self, tag: u32, begin: Instant, end: Instant, sectors: u64) {
        let at = (begin + self.span(sectors)).max(end + self.span(1));
        self.end(tag, at, Ok(()));
    }

    /// Ends command `tag` when `sectors` sectors from the host, which could be transferred from `arrived` on, are on
    /// the medium, where the last was written until `end`.
    pub(super) fn written(&mut self, tag: u32, arrived: Instant, end: Instant, sectors: u64) {
        self.end(tag, end.max(arrived + self.span(sectors)), Ok(()));
    }

    /// Returns the time at which the next command ends.
    pub(super) fn first(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(answer)| answer.at)
    }

    /// Takes out the next answer that is due at `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(u32, IoResult)> {
        self.first().filter(|at| *at <= now)?;
        let Reverse(Answer { tag, failed, .. }) = self.heap.pop()?;
        Some((tag, if failed { Err(IoError::IO) } else { Ok(()) }))
    }
}

/// Returns whether all of `inner` is in `outer`.
pub(super) fn covers(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn hits_share_the_interface_and_end_in_order() {
        // A MiB takes 1 ms.
        let mut answers = Answers::new(4, 1000);
        answers.cached(1, at(100), 2048);
        answers.cached(2, at(100), 2048);
        answers.cached(3, at(9_000_000), 2048);
        assert_eq!(answers.first(), Some(at(1_000_100)));
        assert_eq!(answers.pop(at(1_000_099)), None);
        assert_eq!(answers.pop(at(3_000_000)), Some((1, Ok(()))));
        assert_eq!(answers.pop(at(3_000_000)), Some((2, Ok(()))));
        assert_eq!(answers.first(), Some(at(10_000_000)));
    }

    #[test]
    fn the_medium_counts_unless_the_interface_is_slower() {
        let mut answers = Answers::new(4, 1000);
        answers.read(1, at(0), at(5_000_000), 2048);
        answers.written(2, at(0), at(6_000_000), 2048);
        answers.read(3, at(7_000_000), at(7_100_000), 2048);
        let ends = [(1, 5_000_488), (2, 6_000_000), (3, 8_000_000)];
        for (tag, end) in ends {
            assert_eq!(answers.first(), Some(at(end)));
            assert_eq!(answers.pop(at(end)), Some((tag, Ok(()))));
        }
    }
}
