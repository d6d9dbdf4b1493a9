//! Answers on their way to the host, and the interface that carries the data.
//!
//! Data of the cache passes over the interface one command at a time. Data from or to the medium passes over it while
//! it is read or written: the interface is the faster of the two, and only if it is not, its speed counts.

use blkmq_core::{Instant, IoError, IoResult, Nanos, SECTOR_SIZE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A command's end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Answer {
    at: Instant,
    /// Counts answers in the order in which they were decided.
    number: u64,
    tag: u32,
    failed: bool,
}

/// The interface and its pending answers.
#[derive(Debug)]
pub(super) struct Answers {
    /// Nanoseconds for a sector, in units of 2^-16.
    sector: u64,
    /// When the interface is free.
    free: Instant,
    heap: BinaryHeap<Reverse<Answer>>,
    decided: u64,
}

impl Answers {
    /// The interface of a drive of `depth` commands, at `mbps` MiB/s.
    pub(super) fn new(depth: u32, mbps: u32) -> Self {
        let rate = u64::from(mbps) << 20;
        Self {
            sector: ((u64::from(SECTOR_SIZE) * 1_000_000_000) << 16) / rate,
            free: Instant::ZERO,
            heap: BinaryHeap::with_capacity(depth as usize),
            decided: 0,
        }
    }

    /// How long `sectors` sectors take over the interface.
    fn span(&self, sectors: u64) -> Nanos {
        Nanos((sectors * self.sector) >> 16)
    }

    /// Command `tag` ends at `at`.
    pub(super) fn end(&mut self, tag: u32, at: Instant, result: IoResult) {
        let answer = Answer { at, number: self.decided, tag, failed: result.is_err() };
        self.decided += 1;
        self.heap.push(Reverse(answer));
    }

    /// Command `tag` ends when `sectors` sectors have moved between host and cache, which they can do from `from` on.
    pub(super) fn cached(&mut self, tag: u32, from: Instant, sectors: u64) {
        self.free = from.max(self.free) + self.span(sectors);
        self.end(tag, self.free, Ok(()));
    }

    /// Command `tag` ends when `sectors` sectors from the medium, which passed under the head from `begin` to
    /// `end`, have reached the host.
    pub(super) fn read(&mut self, tag: u32, begin: Instant, end: Instant, sectors: u64) {
        let at = (begin + self.span(sectors)).max(end + self.span(1));
        self.end(tag, at, Ok(()));
    }

    /// Command `tag` ends when `sectors` sectors from the host, which could move from `arrived` on, are on the
    /// medium, where the last one was written until `end`.
    pub(super) fn written(&mut self, tag: u32, arrived: Instant, end: Instant, sectors: u64) {
        self.end(tag, end.max(arrived + self.span(sectors)), Ok(()));
    }

    /// When the next command ends.
    pub(super) fn first(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(answer)| answer.at)
    }

    /// Takes out the next one that has ended by `now`.
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
