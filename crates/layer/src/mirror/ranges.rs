//! [`Ranges`]: ranges of sectors, each of which only one party changes at a time.

#![forbid(unsafe_code)]

use super::planted::{self, Planted};
use std::collections::VecDeque;
use std::ops::Range;

/// A holder of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Party {
    /// The request of this number.
    Change(usize),
    /// The current copy.
    Copy,
}

/// Taken ranges, and ranges that wait until they are free. Of two that overlap, the earlier one goes first.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    taken: Vec<(Range<u64>, Party)>,
    waiting: VecDeque<(Range<u64>, Party)>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end && !planted::is(Planted::HoldsNoRange)
}

impl Ranges {
    /// Queues `party` for `range`, which is not empty.
    pub(super) fn wait(&mut self, range: Range<u64>, party: Party) {
        self.waiting.push_back((range, party));
    }

    /// Returns whether any of these parties is waiting.
    pub(super) fn waits(&self, which: impl Fn(Party) -> bool) -> bool {
        self.waiting.iter().any(|(_, party)| which(*party))
    }

    /// The next waiting party that `may` go and whose range is free; it takes its range. O(ranges) in the usual case,
    /// where no range waits for another.
    pub(super) fn next(&mut self, may: impl Fn(Party) -> bool) -> Option<Party> {
        let is_free = |at: usize| {
            let (range, party) = &self.waiting[at];
            let before = self.waiting.range(..at).chain(&self.taken);
            may(*party) && before.into_iter().all(|(other, _)| !overlap(range, other))
        };
        let at = (0..self.waiting.len()).find(|at| is_free(*at))?;
        let next = self.waiting.remove(at)?;
        let party = next.1;
        self.taken.push(next);
        Some(party)
    }

    /// Returns the range of `party`.
    pub(super) fn give_back(&mut self, party: Party) {
        self.taken.retain(|(_, other)| *other != party);
    }

    /// Removes the waiting parties.
    pub(super) fn refuse(&mut self) -> impl Iterator<Item = Party> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, party)| party)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_go_one_after_another_in_their_order() {
        let mut ranges = Ranges::default();
        let any = |_| true;
        for (range, party) in [
            (0..8, Party::Change(0)),
            (4..12, Party::Change(1)),
            (8..9, Party::Copy),
            (20..21, Party::Change(2)),
        ] {
            ranges.wait(range, party);
        }
        assert_eq!(ranges.next(|party| party == Party::Copy), None, "it is behind a change");
        assert_eq!(ranges.next(any), Some(Party::Change(0)));
        assert_eq!(ranges.next(any), Some(Party::Change(2)));
        assert_eq!(ranges.next(any), None);
        ranges.give_back(Party::Change(0));
        assert_eq!(ranges.next(any), Some(Party::Change(1)));
        assert_eq!(ranges.next(any), None);
        ranges.give_back(Party::Change(1));
        assert!(ranges.waits(|party| party == Party::Copy));
        assert_eq!(Vec::from_iter(ranges.refuse()), [Party::Copy]);
        assert_eq!(ranges.next(any), None);
    }
}
