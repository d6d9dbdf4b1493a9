//! Answers on their way to the host, and the interface that transfers the data.
//!
//! Cached data passes the interface one command at a time. Data from or to the medium passes it while it is read or
//! written: the speed of the interface matters only if it is lower than that of the medium.

use blkmq_core::{Instant, IoError, IoResult, Nanos, SECTOR_SIZE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
