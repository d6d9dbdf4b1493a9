//! Bad blocks: ranges of failing sectors, in the notation of null_blk's `badblocks` attribute.
//!
//! Only stores the ranges; `store.rs` decides how a request fails.

use std::collections::BTreeMap;

/// A set of bad sectors. Ranges that overlap or touch are merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BadBlocks {
    /// Disjoint ranges: the last sector by the first.
    ranges: BTreeMap<u64, u64>,
}

impl BadBlocks {
    /// The form of a change, for messages.
    pub(crate) const FORM: &str = "+START-END or -START-END, in sectors of 512 bytes, END included";

    /// Applies a change, `+START-END` or `-START-END`. Returns false if the text has another form.
    pub fn change(&mut self, text: &str) -> bool {
        let parse = || {
            let (first, last) = text.get(1..)?.split_once('-')?;
            let range = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            (range.0 <= range.1 && range.1 < u64::MAX).then_some(range)
        };
        match (text.as_bytes().first(), parse()) {
            (Some(b'+'), Some((first, last))) => self.add(first, last),
            (Some(b'-'), Some((first, last))) => self.remove(first, last),
            _ => return false,
        }
        true
    }

    /// Marks sectors `first` to `last` as bad.
    fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // All ranges that overlap or touch the new one.
        while let Some((&from, &to)) = self.ranges.range(..=last + 1).next_back()
            && to.saturating_add(1) >= first
        {
            self.ranges.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.ranges.insert(first, last);
    }

    /// Marks sectors `first` to `last` as good.
    pub(crate) fn remove(&mut self, first: u64, last: u64) {
        while let Some((&from, &to)) = self.ranges.range(..=last).next_back()
            && to >= first
        {
            self.ranges.remove(&from);
            if to > last {
                self.ranges.insert(last + 1, to);
            }
            if from < first {
                self.ranges.insert(from, first - 1);
            }
        }
    }

    /// The first bad sector of the `sectors` sectors from `sector` on. O(log n).
    #[must_use]
    pub fn first_in(&self, sector: u64, sectors: u32) -> Option<u64> {
        let end = sector + u64::from(sectors);
        let before = self.ranges.range(..=sector).next_back().filter(|(_, last)| **last >= sector);
        let within = || self.ranges.range(sector..end).next();
        before.map(|_| sector).or_else(|| within().map(|(first, _)| *first))
    }

    /// Marks the whole range that contains `sector` as good.
    pub(super) fn heal(&mut self, sector: u64) {
        let found = self.ranges.range(..=sector).next_back().map(|(first, last)| (*first, *last));
        if let Some((first, last)) = found.filter(|(_, last)| *last >= sector) {
            self.remove(first, last);
        }
    }

    /// The ranges, first and last sector each, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    fn bad(text: &str) -> Vec<(u64, u64)> {
        let mut bad = BadBlocks::default();
        text.split_whitespace().for_each(|change| assert!(bad.change(change), "{change}"));
        bad.ranges().collect()
    }

    #[test]
    fn ranges_join_and_come_apart() {
        assert_eq!(bad("+1-2 +4-5"), [(1, 2), (4, 5)]);
        assert_eq!(bad("+1-2 +4-5 +3-3"), [(1, 5)]);
        assert_eq!(bad("+0-9 -3-4 -9-20"), [(0, 2), (5, 8)]);
        assert_eq!(bad("+5-6 -0-100"), []);
    }

    #[test]
    fn changes_of_another_form_are_refused() {
        for text in
            ["", "+", "1-2", "+1", "+2-1", "+1-x", "*1-2", "+-1-2", "+1-18446744073709551615"]
        {
            assert!(!BadBlocks::default().change(text), "{text}");
        }
    }

    #[test]
    fn they_agree_with_a_list_of_flags() {
        let mut rng = Rng::new(3);
        let (mut bad, mut flags) = (BadBlocks::default(), [false; 40]);
        for _ in 0..20_000 {
            let first = rng.below(39);
            let last = first + rng.below(40 - first);
            let adds = rng.chance(1, 2);
            assert!(bad.change(&format!("{}{first}-{last}", if adds { '+' } else { '-' })));
            flags[first as usize..=last as usize].fill(adds);
            let (at, sectors) = (rng.below(30), 1 + rng.below(10));
            let expected = (at..at + sectors).find(|sector| flags[*sector as usize]);
            assert_eq!(bad.first_in(at, sectors as u32), expected);
            if rng.chance(1, 8)
                && let Some(sector) = expected
            {
                bad.heal(sector);
                let down = (0..=sector).rev().take_while(|s| flags[*s as usize]).last();
                let up = (sector..40).take_while(|s| flags[*s as usize]).last();
                flags[down.unwrap() as usize..=up.unwrap() as usize].fill(false);
            }
        }
    }
}
