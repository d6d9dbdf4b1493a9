//! The choice of the die that a channel serves next: data for the host first, within a bound, then everything else in
//! order.
//!
//! A transfer for a program is cut at pages, so that waiting dies are served between two pages. The duration of
//! transfers is in `timing.rs`.

use std::collections::VecDeque;

/// The kind of data that a die moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freight {
    /// Data of a host read: it passes the other kind.
    HostRead,
    /// All other data.
    Other,
}

/// A channel, and the dies that wait for it. Each die waits at most once.
#[derive(Debug)]
pub(super) struct Channel {
    /// The die that moves data now.
    current: Option<u32>,
    host: VecDeque<u32>,
    other: VecDeque<u32>,
    /// Reads that have passed the first die in `other`.
    passed: u32,
}

impl Channel {
    pub(super) fn new(dies: u32) -> Self {
        let room = || VecDeque::with_capacity(dies as usize);
        Self { current: None, host: room(), other: room(), passed: 0 }
    }

    /// Queues a die that has data to move.
    pub(super) fn ask(&mut self, die: u32, freight: Freight) {
        match freight {
            Freight::HostRead => self.host.push_back(die),
            Freight::Other => self.other.push_back(die),
        }
    }

    /// The die to serve now, if the channel is idle and a die waits. At most `reads_first` reads pass any other
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
