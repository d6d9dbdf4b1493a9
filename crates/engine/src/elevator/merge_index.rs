//! An index that finds a held request by the sector at which it starts or ends.
//!
//! It is two hash tables over slots, chained by index: no allocation after creation, O(1) for each operation. The key
//! is stored beside the links, so a miss reads only one bucket head.

use blkmq_core::RequestId;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    sector: u64,
    id: Option<RequestId>,
    next: u32,
    prev: u32,
}

/// A table of request ids by sector.
pub(crate) struct SectorHash {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    shift: u32,
}

impl SectorHash {
    fn new(slots: u32) -> Self {
        let buckets = (slots as usize * 2).next_power_of_two().clamp(64, 1 << 16);
        let empty = Entry { sector: 0, id: None, next: NIL, prev: NIL };
        Self {
            buckets: vec![NIL; buckets].into_boxed_slice(),
            entries: vec![empty; slots as usize].into_boxed_slice(),
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    #[inline]
    fn bucket(&self, sector: u64) -> usize {
        // Fibonacci hashing spreads neighbouring sectors over distant buckets.
        (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn insert(&mut self, sector: u64, id: RequestId) {
        let bucket = self.bucket(sector);
        let index = id.index();
        let next = std::mem::replace(&mut self.buckets[bucket], index as u32);
        debug_assert!(self.entries[index].id.is_none(), "{id:?} is indexed already");
        self.entries[index] = Entry { sector, id: Some(id), next, prev: NIL };
        if next != NIL {
            self.entries[next as usize].prev = index as u32;
        }
    }

    #[inline]
    fn remove(&mut self, id: RequestId) {
        let entry = self.entries[id.index()];
        debug_assert!(entry.id == Some(id), "{id:?} is not indexed");
        if entry.prev == NIL {
            let bucket = self.bucket(entry.sector);
            self.buckets[bucket] = entry.next;
        } else {
            self.entries[entry.prev as usize].next = entry.next;
        }
        if entry.next != NIL {
            self.entries[entry.next as usize].prev = entry.prev;
        }
        self.entries[id.index()].id = None;
    }

    /// The requests indexed under `sector`, the newest first.
    #[inline]
    fn find(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let mut at = self.buckets[self.bucket(sector)];
        std::iter::from_fn(move || {
            while at != NIL {
                let entry = &self.entries[at as usize];
                at = entry.next;
                if entry.sector == sector {
                    return entry.id;
                }
            }
            None
        })
    }
}

/// The held, mergeable requests by both edges.
pub(crate) struct MergeIndex {
    starts: SectorHash,
    ends: SectorHash,
}

impl MergeIndex {
    pub(crate) fn new(slots: u32) -> Self {
        Self { starts: SectorHash::new(slots), ends: SectorHash::new(slots) }
    }

    #[inline]
    pub(crate) fn insert(&mut self, id: RequestId, start: u64, end: u64) {
        self.starts.insert(start, id);
        self.ends.insert(end, id);
    }

    #[inline]
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.ends.entries[id.index()].id == Some(id)
    }

    /// Removes `id`; false if it was not in the index.
    #[inline]
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let there = self.contains(id);
        if there {
            self.starts.remove(id);
            self.ends.remove(id);
        }
        there
    }

    pub(crate) fn starting_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        self.starts.find(sector)
    }

    pub(crate) fn ending_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        self.ends.find(sector)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use blkmq_core::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_over_random_histories() {
        let mut rng = Rng::new(11);
        let mut index = MergeIndex::new(32);
        let mut naive: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for step in 0..if cfg!(miri) { 40 } else { 20_000 } {
            let slot = rng.below(32) as u32;
            let id = RequestId::new(slot, 0);
            if naive.remove(&slot).is_some() {
                assert!(index.remove(id), "step {step}");
            } else {
                let (start, end) = (rng.below(16), 16 + rng.below(16));
                index.insert(id, start, end);
                naive.insert(slot, (start, end));
            }
            let sector = rng.below(32);
            let mut found: Vec<u32> =
                index.starting_at(sector).map(|id| id.index() as u32).collect();
            found.extend(index.ending_at(sector).map(|id| id.index() as u32));
            found.sort_unstable();
            let expected: Vec<u32> = naive
                .iter()
                .filter(|(_, (start, end))| *start == sector || *end == sector)
                .map(|(slot, _)| *slot)
                .collect();
            assert_eq!(found, expected, "step {step}");
        }
    }

    #[test]
    fn a_request_that_is_not_indexed_is_not_removed() {
        let mut index = MergeIndex::new(4);
        let id = RequestId::new(2, 0);
        assert!(!index.contains(id) && !index.remove(id));
        index.insert(id, 8, 16);
        let reused = id.next_generation();
        assert!(!index.contains(reused) && !index.remove(reused), "its slot is, and it is not");
        assert!(index.contains(id) && index.remove(id) && !index.remove(id));
    }

    /// O(1) needs more buckets than requests, and different buckets for neighbouring sectors.
    #[test]
    fn buckets_are_twice_the_slots_and_evenly_filled() {
        let buckets = |slots| SectorHash::new(slots).buckets.len();
        assert_eq!([1, 32, 33, 1000].map(buckets), [64, 64, 128, 2048]);
        assert_eq!(buckets(1 << 20), 1 << 16, "memory has a bound");
        let hash = SectorHash::new(500);
        for stride in [1, 8, 64, 256] {
            let mut filled = vec![0; hash.buckets.len()];
            (0..500).for_each(|n| filled[hash.bucket(n * stride)] += 1);
            let most = filled.iter().max().copied();
            assert!(most <= Some(4), "{most:?} of 500 in one bucket, {stride} sectors apart");
        }
    }
}
