//! Which part of the write cache goes to the medium next.
//!
//! A sweep: in ascending order and around, but with a choice among the next few by which of them the head gets to
//! first. The lowest of those is passed over so often and not more, so that the sweep gets on.

use super::dirty::Extent;
use super::geometry::Track;
use super::mechanics::{Access, Estimate, Mechanics};
use blkmq_core::Instant;

/// Extents that there is a choice among, and times that the lowest of them is passed over.
const WINDOW: u32 = 8;

/// How far the sweep is.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Extents that begin here or behind are next.
    cursor: u64,
    /// Times that the first of them was passed over.
    passed: u32,
}

/// What it would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: usize,
    pub(super) estimate: Estimate,
    /// It is the first of those in the window.
    is_first: bool,
}

impl Sweep {
    /// The best of `extents` up to era `era`, for an arm that is at `track` at `at`. `None` if there is none.
    /// O(window), unless many belong to later eras.
    pub(super) fn candidate(
        &self,
        extents: &[Extent],
        era: u64,
        mechanics: &Mechanics,
        here: (Instant, Track),
    ) -> Option<Candidate> {
        let departure = mechanics.departure(here);
        let first = extents.partition_point(|extent| extent.range.start < self.cursor);
        let around = (first..extents.len()).chain(0..first);
        let window = around.filter(|index| extents[*index].era <= era).take(WINDOW as usize);
        let candidate = |(number, index): (usize, usize)| {
            let target = mechanics.target(extents[index].range.start, Access::Write);
            let estimate = mechanics.estimate(&departure, &target);
            Candidate { index, estimate, is_first: number == 0 }
        };
        let choice = if self.passed < WINDOW { WINDOW as usize } else { 1 };
        let candidates = window.take(choice).enumerate().map(candidate);
        candidates.min_by_key(|candidate| candidate.estimate)
    }

    /// A candidate is being written, up to sector `end`.
    pub(super) fn went(&mut self, candidate: &Candidate, end: u64) {
        if candidate.is_first {
            *self = Self { cursor: end, passed: 0 };
        } else {
            self.passed += 1;
        }
    }
}
