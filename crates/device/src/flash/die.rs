//! Choices: the next operation of a die, and the next die that a channel serves. Time and data are in `backend.rs`.
//!
//! A die has a current operation, and possibly one that is suspended for reads. Host reads come first within a limit: a
//! limited number of them may overtake a program or an erase, while it waits or is suspended; then it continues to its
//! end.
//!
//! A channel transfers data for host reads first, within a limit, and everything else in order. A transfer for a
//! program is split at pages, so that waiting dies are served in between.

use super::ftl::Stream;
use blkmq_core::{Instant, Nanos};
use std::collections::VecDeque;

/// A long operation of a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Long {
    /// Programs a row of a stream, from this unit on.
    Program(Stream, u32),
    /// Erases this block.
    Erase(u32),
}

/// The current operation of a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    Nothing,
    /// Reads a page for the host into the register: the page read with this number.
    Sense(u32),
    /// Sends that page from the register, after waiting for the channel.
    Send(u32),
    /// Reads this many units for garbage collection into the register.
    SenseMoved(u32),
    SendMoved,
    /// Receives the data of a row.
    Receive(Stream, u32),
    /// Programs or erases.
    Busy(Long),
}

/// A long operation that was suspended for reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    pub(super) what: Long,
    pub(super) left: Nanos,
}

/// The next operation of a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Read,
    /// Resume the suspended operation.
    Resume,
    /// Begin a waiting program, erase or garbage-collection read.
    Background,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Die {
    pub(super) doing: Doing,
    /// The beginning of the current operation, or of the current part of its transfer.
    pub(super) since: Instant,
    pub(super) aside: Option<Aside>,
    /// The bytes still to be transferred over the channel.
    pub(super) to_move: u32,
    /// The number of reads that have overtaken the long operation that waits, runs or is suspended.
    passed: u32,
    /// The host's row that is being programmed: its number of buffer slots, and the position of the first in the
    /// buffer's order; `u64::MAX` without a row.
    pub(super) row: u32,
    pub(super) position: u64,
}

impl Die {
    pub(super) fn new() -> Self {
        Self {
            doing: Doing::Nothing,
            since: Instant::ZERO,
            aside: None,
            to_move: 0,
            passed: 0,
            row: 0,
            position: u64::MAX,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.doing == Doing::Nothing && self.aside.is_none()
    }

    /// Chooses the next operation of a die whose register is free, and counts an overtaking read.
    pub(super) fn choose(&mut self, reads: bool, background: bool, reads_first: u32) -> Choice {
        let waits = self.aside.is_some() || background;
        if reads && (!waits || self.passed < reads_first) {
            self.passed = if waits { self.passed + 1 } else { 0 };
            Choice::Read
        } else if self.aside.is_some() {
            Choice::Resume
        } else if background {
            Choice::Background
        } else {
            Choice::Nothing
        }
    }

    /// Returns whether a read may suspend the current operation.
    pub(super) fn may_suspend(&self, reads_first: u32) -> bool {
        matches!(self.doing, Doing::Busy(_)) && self.passed < reads_first
    }

    /// Notes that a long operation has ended.
    pub(super) fn ended(&mut self) {
        self.passed = 0;
    }
}

/// The kind of data that a die transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freight {
    /// Data of a host read, which overtakes the other kind.
    HostRead,
    /// All other data.
    Other,
}

/// A channel, and the dies that wait for it, each at most once.
#[derive(Debug)]
pub(super) struct Channel {
    /// The die that transfers data now.
    current: Option<u32>,
    host: VecDeque<u32>,
    other: VecDeque<u32>,
    /// The number of reads that have overtaken the first die in `other`.
    passed: u32,
}

impl Channel {
    pub(super) fn new(dies: u32) -> Self {
        let room = || VecDeque::with_capacity(dies as usize);
        Self { current: None, host: room(), other: room(), passed: 0 }
    }

    /// Queues a die that has data to transfer.
    pub(super) fn ask(&mut self, die: u32, freight: Freight) {
        match freight {
            Freight::HostRead => self.host.push_back(die),
            Freight::Other => self.other.push_back(die),
        }
    }

    /// The die to serve, if the channel is idle and a die waits. At most `reads_first` reads overtake any other
    /// transfer.
    pub(super) fn begin(&mut self, reads_first: u32) -> Option<u32> {
        if self.current.is_some() {
            return None;
        }
        let others_turn =
            !self.other.is_empty() && (self.host.is_empty() || self.passed >= reads_first);
        if others_turn {
            self.passed = 0;
            self.current = self.other.pop_front();
        } else {
            self.current = self.host.pop_front();
            self.passed += u32::from(!self.other.is_empty());
        }
        self.current
    }

    /// Ends the transfer; returns its die.
    pub(super) fn end(&mut self) -> u32 {
        self.current.take().expect("its timer runs only during a transfer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_reads_pass_and_then_what_waits_has_its_turn() {
        let mut die = Die::new();
        let choices = Vec::from_iter((0..4).map(|_| die.choose(true, true, 3)));
        let read = Choice::Read;
        assert_eq!(choices, [read, read, read, Choice::Background]);
        die.doing = Doing::Busy(Long::Erase(0));
        assert!(!die.may_suspend(3), "they have passed it already");
        die.ended();
        assert!(die.may_suspend(3));
        die.aside = Some(Aside { what: Long::Erase(0), left: Nanos(1) });
        let choices = Vec::from_iter((0..4).map(|_| die.choose(true, false, 3)));
        assert_eq!(choices, [read, read, read, Choice::Resume]);
        assert_eq!(die.choose(false, true, 3), Choice::Resume);
    }

    #[test]
    fn reads_that_nothing_waits_for_are_not_counted() {
        let mut die = Die::new();
        (0..100).for_each(|_| assert_eq!(die.choose(true, false, 1), Choice::Read));
        assert_eq!(die.choose(true, true, 1), Choice::Read);
        assert_eq!(die.choose(true, true, 1), Choice::Background);
        assert_eq!(Die::new().choose(false, false, 1), Choice::Nothing);
    }

    #[test]
    fn reads_pass_within_a_bound() {
        let mut channel = Channel::new(8);
        channel.ask(0, Freight::Other);
        (1..6).for_each(|die| channel.ask(die, Freight::HostRead));
        let mut order = Vec::new();
        while let Some(die) = channel.begin(3) {
            assert_eq!(channel.begin(3), None, "one at a time");
            assert_eq!(channel.end(), die);
            order.push(die);
        }
        assert_eq!(order, [1, 2, 3, 0, 4, 5]);
    }
}
