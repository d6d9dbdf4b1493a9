//! The contents of the write cache: the sectors that have been acknowledged and are not on the medium yet.
//!
//! Ranges in ascending order, each with its era: a flush ends an era and waits for all ranges of that era and before.
//! `destage.rs` decides in which order they are written.

use super::segments::covers;
use std::ops::Range;

/// The most ranges that the cache can tell apart; a firmware has a limited number of descriptors.
pub(super) const MOST: usize = 512;

/// Neighbouring dirty sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) range: Range<u64>,
    /// The era of its oldest sector.
    pub(super) era: u64,
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The dirty sectors of the cache. Changes are O(extents) and never allocate.
#[derive(Debug)]
pub(super) struct Dirty {
    /// Disjoint, in ascending order. Has room for more than [`MOST`], so that a range can be divided.
    extents: Vec<Extent>,
    /// The extent on its way to the medium.
    leaving: Option<Extent>,
    sectors: u64,
    capacity: u64,
}

impl Dirty {
    /// An empty cache, with room for `capacity` sectors.
    pub(super) fn new(capacity: u64) -> Self {
        let extents = Vec::with_capacity(if capacity == 0 { 0 } else { MOST + 2 });
        Self { extents, leaving: None, sectors: 0, capacity }
    }

    /// The capacity in sectors.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns whether there is nothing to write and nothing being written.
    pub(super) fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.leaving.is_none()
    }

    /// Returns whether the cache is more than half full, in sectors or in ranges.
    pub(super) fn presses(&self) -> bool {
        2 * self.sectors > self.capacity || 2 * self.extents.len() > MOST
    }

    /// The extents to write, in ascending order.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The indices of the extents that overlap `range`.
    fn overlapping(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.extents.partition_point(|extent| extent.range.end <= range.start);
        let count = self.extents[first..].partition_point(|e| e.range.start < range.end);
        first..first + count
    }

    /// Returns whether the cache holds all of `range`.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        let is_leaving = self.leaving.as_ref().is_some_and(|it| covers(&it.range, range));
        let overlapping = self.overlapping(range);
        is_leaving || self.extents[overlapping].iter().any(|it| covers(&it.range, range))
    }

    /// Returns whether there is room for `range`.
    pub(super) fn fits(&self, range: &Range<u64>) -> bool {
        let there: u64 = self.extents[self.overlapping(range)]
            .iter()
            .map(|it| it.range.end.min(range.end) - it.range.start.max(range.start))
            .sum();
        let leaving = self.leaving.as_ref().map_or(0, |it| len(&it.range));
        let sectors = self.sectors + leaving + len(range) - there;
        self.extents.len() < MOST && sectors <= self.capacity
    }

    /// Marks `range` as dirty; the caller has checked that it fits.
    pub(super) fn add(&mut self, range: &Range<u64>, era: u64) {
        debug_assert!(self.fits(range), "somebody looked whether it fits");
        let mut new = Extent { range: range.clone(), era };
        let Range { start: mut first, end: mut behind } = self.overlapping(range);
        // Joins a neighbour of the same era. Joining one of another era would make a flush wait for newer data.
        if first > 0 && self.extents[first - 1].range.end == range.start {
            first -= usize::from(self.extents[first - 1].era == era);
        }
        if self.extents.get(behind).is_some_and(|next| next.range.start == range.end) {
            behind += usize::from(self.extents[behind].era == era);
        }
        for extent in &self.extents[first..behind] {
            new.range =
                new.range.start.min(extent.range.start)..new.range.end.max(extent.range.end);
            new.era = new.era.min(extent.era);
            self.sectors -= len(&extent.range);
        }
        self.sectors += len(&new.range);
        if first == behind {
            self.extents.insert(first, new);
        } else {
            self.extents[first] = new;
            self.extents.drain(first + 1..behind);
        }
    }

    /// Takes up to `most` sectors of extent `index`, to be written.
    pub(super) fn take(&mut self, index: usize, most: u64) -> Range<u64> {
        assert!(self.leaving.is_none(), "one at a time");
        let Extent { range, era } = &mut self.extents[index];
        let taken = range.start..range.end.min(range.start + most);
        self.leaving = Some(Extent { range: taken.clone(), era: *era });
        range.start = taken.end;
        self.sectors -= len(&taken);
        if range.is_empty() {
            self.extents.remove(index);
        }
        taken
    }

    /// The sectors taken last are on the medium.
    pub(super) fn arrived(&mut self) {
        assert!(self.leaving.take().is_some(), "something was on its way");
    }

    /// A write that bypassed the cache has put newer data for `range` on the medium.
    pub(super) fn supersede(&mut self, range: &Range<u64>) {
        for index in self.overlapping(range).rev() {
            let Extent { range: old, era } = self.extents[index].clone();
            let [left, right] =
                [old.start..range.start.max(old.start), range.end.min(old.end)..old.end];
            if !left.is_empty() && !right.is_empty() && self.extents.len() > MOST {
                // There is no descriptor for a second part. Writing sectors once more does no harm.
                continue;
            }
            self.sectors -= len(&old) - len(&left) - len(&right);
            match (left.is_empty(), right.is_empty()) {
                (true, true) => _ = self.extents.remove(index),
                (false, true) => self.extents[index].range = left,
                (true, false) => self.extents[index].range = right,
                (false, false) => {
                    self.extents[index].range = left;
                    self.extents.insert(index + 1, Extent { range: right, era });
                }
            }
        }
    }

    /// The oldest era with sectors that are not on the medium. O(extents).
    pub(super) fn oldest_era(&self) -> Option<u64> {
        self.extents.iter().chain(&self.leaving).map(|extent| extent.era).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    fn ranges(dirty: &Dirty) -> Vec<(u64, u64, u64)> {
        dirty.extents.iter().map(|it| (it.range.start, it.range.end, it.era)).collect()
    }

    #[test]
    fn neighbours_of_one_era_are_one() {
        let mut dirty = Dirty::new(100);
        for range in [0..8, 16..24, 8..16] {
            dirty.add(&range, 0);
        }
        assert_eq!(ranges(&dirty), [(0, 24, 0)]);
        dirty.add(&(24..32), 1);
        assert_eq!(ranges(&dirty), [(0, 24, 0), (24, 32, 1)]);
        dirty.add(&(20..28), 1);
        assert_eq!(ranges(&dirty), [(0, 32, 0)], "what overlaps cannot be told apart");
        assert!(dirty.holds(&(4..30)) && !dirty.holds(&(30..34)));
    }

    #[test]
    fn room_is_for_what_is_leaving_too() {
        let mut dirty = Dirty::new(32);
        dirty.add(&(0..24), 0);
        assert!(dirty.fits(&(8..32)) && !dirty.fits(&(24..33)));
        assert_eq!(dirty.take(0, 16), 0..16);
        assert!(!dirty.fits(&(100..109)) && dirty.holds(&(0..16)));
        assert_eq!(dirty.oldest_era(), Some(0));
        dirty.arrived();
        assert!(dirty.fits(&(100..124)) && !dirty.holds(&(0..16)));
    }

    #[test]
    fn there_are_never_more_ranges_than_descriptors() {
        let mut dirty = Dirty::new(1 << 20);
        let room = dirty.extents.capacity();
        for n in 0..MOST as u64 {
            assert!(dirty.fits(&(n * 100..n * 100 + 50)));
            dirty.add(&(n * 100..n * 100 + 50), 0);
        }
        assert!(!dirty.fits(&(1_000_000..1_000_008)) && dirty.presses());
        for n in 0..10 {
            dirty.supersede(&(n * 100 + 20..n * 100 + 30));
        }
        assert_eq!((dirty.extents.len(), dirty.extents.capacity()), (MOST + 1, room));
        assert_eq!(dirty.sectors, 50 * MOST as u64 - 10);
    }

    #[test]
    fn it_agrees_with_a_list_of_flags() {
        let (mut rng, mut dirty, mut flags) = (Rng::new(5), Dirty::new(1000), [None::<u64>; 64]);
        for step in 0..20_000_u64 {
            let start = rng.below(60);
            let range = start..start + 1 + rng.below(64 - start);
            let cells = range.start as usize..range.end as usize;
            match rng.below(4) {
                0 | 1 => {
                    dirty.add(&range, step);
                    flags[cells].fill(Some(step));
                }
                2 => {
                    dirty.supersede(&range);
                    flags[cells].fill(None);
                }
                _ if !dirty.extents.is_empty() => {
                    let taken = dirty.take(rng.below(dirty.extents.len() as u64) as usize, 10);
                    flags[taken.start as usize..taken.end as usize].fill(None);
                    dirty.arrived();
                }
                _ => {}
            }
            let mut seen = [false; 64];
            for extent in &dirty.extents {
                seen[extent.range.start as usize..extent.range.end as usize].fill(true);
                let oldest = flags[extent.range.start as usize..extent.range.end as usize].iter();
                assert!(extent.era <= oldest.flatten().min().copied().expect("dirty"));
            }
            assert_eq!(seen, flags.map(|flag| flag.is_some()));
            assert_eq!(dirty.sectors, flags.iter().flatten().count() as u64);
            assert!(dirty.extents.is_sorted_by(|a, b| a.range.end <= b.range.start));
        }
    }
}
