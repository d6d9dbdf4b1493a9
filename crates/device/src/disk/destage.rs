//! The choice of the extent of the write cache that goes to the medium next.
//!
//! A sweep: in ascending order and around, but with a choice among the next few extents by the time that the head
//! takes to them. The lowest of those is passed over a limited number of times, so that the sweep advances.

use super::dirty::Extent;
use super::geometry::Track;
use super::mechanics::{Access, Estimate, Mechanics};
use blkmq_core::Instant;

/// The number of extents to choose from, and how many times the lowest of them is passed over.
const WINDOW: u32 = 8;

/// The progress of the sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The sweep continues with the extents that begin at this sector or behind it.
    cursor: u64,
    /// How many times the first of them was passed over.
    passed: u32,
}

/// An extent to write next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: usize,
    pub(super) estimate: Estimate,
    /// The extent is the first in the window.
    is_first: bool,
}

impl Sweep {
    /// The best of `extents` up to era `era`, for an arm that is at `track` at `at`. `None` if there is none.
    /// O(window), unless many extents belong to later eras.
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

    /// Notes that a candidate is being written, up to sector `end`.
    pub(super) fn went(&mut self, candidate: &Candidate, end: u64) {
        if candidate.is_first {
            *self = Self { cursor: end, passed: 0 };
        } else {
            self.passed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dirty::Dirty;
    use super::super::params::DiskParams;
    use super::*;
    use blkmq_core::{Nanos, Rng};

    /// New writes keep coming, also just ahead of the sweep, and yet it advances.
    #[test]
    fn the_lowest_in_the_window_is_passed_over_so_often_and_not_more() {
        let mechanics = Mechanics::new(&DiskParams::default().figures).expect("a preset");
        let (mut dirty, mut sweep, mut rng) = (Dirty::new(1 << 20), Sweep::default(), Rng::new(8));
        let (mut here, mut passed, mut most) = ((Instant::ZERO, Track::default()), 0, 0);
        for _ in 0..2000 {
            while dirty.extents().len() < 50 {
                let start = rng.below(50_000_000) * 16;
                dirty.add(&(start..start + 8), 0);
            }
            let extents = dirty.extents();
            let candidate = sweep.candidate(extents, 0, &mechanics, here).expect("there are some");
            passed = if candidate.is_first { 0 } else { passed + 1 };
            most = most.max(passed);
            let range = dirty.take(candidate.index, 8);
            sweep.went(&candidate, range.end);
            dirty.arrived();
            let passage = mechanics.transfer(here, range.start, 8, Access::Write);
            here = (passage.end + Nanos(1000), passage.track);
        }
        assert_eq!(most, WINDOW, "it is, and not for longer");
    }

    #[test]
    fn a_flush_asks_for_its_own_eras_only() {
        let mechanics = Mechanics::new(&DiskParams::default().figures).expect("a preset");
        let mut dirty = Dirty::new(1 << 20);
        for era in 0..40 {
            dirty.add(&(era * 100..era * 100 + 8), era);
        }
        let sweep = Sweep { cursor: 2000, passed: 0 };
        let here = (Instant::ZERO, Track::default());
        for era in 0..40 {
            let candidate = sweep.candidate(dirty.extents(), era, &mechanics, here);
            assert!(candidate.expect("its own").index as u64 <= era);
        }
    }
}
