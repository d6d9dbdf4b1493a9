//! An index that finds a held request by the sector at which it starts or ends.
//!
//! It is two hash tables over slots, chained by index: no allocation after creation, O(1) for each operation. The key
//! is stored beside the links, so a miss reads only one bucket head.
//!
//! Most requests leave in the pass in which they arrive. So the newest requests are kept in a short list, and move to
//! the tables only when the list is full. Two filters of 64 bits show that no request in the list touches a sector,
//! which suffices for nearly every random I/O.

use blkmq_core::RequestId;

const NIL: u32 = u32::MAX;
/// Fibonacci hashing spreads neighbouring sectors over distant buckets.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

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
        (sector.wrapping_mul(GOLDEN) >> self.shift) as usize
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

/// The capacity of the list of the newest requests.
const FRESH: usize = 8;
/// The place of a request that is not in the list.
const NOWHERE: u8 = FRESH as u8;

/// A request in the list of the newest.
#[derive(Clone, Copy)]
struct Edges {
    start: u64,
    end: u64,
    id: RequestId,
}

/// The newest requests, in order of arrival. The place of a request that leaves stays used until the list is cleared,
/// which happens when it is empty or full.
struct Fresh {
    list: [Edges; FRESH],
    /// Places used since the list was cleared.
    used: u8,
    /// A bit for each place whose request is still in the list.
    there: u8,
    /// A bit for each start, and for each end, by its hash. Bits of requests that have left stay until the list is
    /// cleared.
    starts: u64,
    ends: u64,
}

/// The bit of a sector in a filter.
#[inline]
fn bit(sector: u64) -> u64 {
    1 << (sector.wrapping_mul(GOLDEN) >> 58)
}

impl Fresh {
    fn new() -> Self {
        let none = Edges { start: 0, end: 0, id: RequestId::new(0, 0) };
        Self { list: [none; FRESH], used: 0, there: 0, starts: 0, ends: 0 }
    }

    #[inline]
    fn begin_anew(&mut self) {
        (self.used, self.there, self.starts, self.ends) = (0, 0, 0, 0);
    }

    /// The requests for which `is` returns true, the newest first.
    fn find(&self, is: impl Fn(&Edges) -> bool) -> impl Iterator<Item = RequestId> {
        let mut left = self.there;
        std::iter::from_fn(move || {
            while left != 0 {
                let at = left.ilog2() as usize;
                left &= !(1 << at);
                if is(&self.list[at]) {
                    return Some(self.list[at].id);
                }
            }
            None
        })
    }
}

/// The held, mergeable requests by both edges.
pub(crate) struct MergeIndex {
    fresh: Fresh,
    /// By slot: the place in `fresh`, or [`NOWHERE`].
    places: Box<[u8]>,
    /// Requests in the tables.
    tabled: u32,
    starts: SectorHash,
    ends: SectorHash,
}

impl MergeIndex {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            fresh: Fresh::new(),
            places: vec![NOWHERE; slots as usize].into_boxed_slice(),
            tabled: 0,
            starts: SectorHash::new(slots),
            ends: SectorHash::new(slots),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, id: RequestId, start: u64, end: u64) {
        if usize::from(self.fresh.used) == FRESH {
            self.table_all();
        }
        let fresh = &mut self.fresh;
        let at = fresh.used;
        fresh.list[usize::from(at) % FRESH] = Edges { start, end, id };
        fresh.used += 1;
        fresh.there |= 1 << at;
        fresh.starts |= bit(start);
        fresh.ends |= bit(end);
        let place = &mut self.places[id.index()];
        debug_assert!(*place == NOWHERE, "{id:?} is indexed already");
        *place = at;
    }

    /// Moves the list into the tables, the oldest first.
    #[cold]
    fn table_all(&mut self) {
        for at in 0..FRESH {
            if self.fresh.there & 1 << at != 0 {
                let Edges { start, end, id } = self.fresh.list[at];
                self.places[id.index()] = NOWHERE;
                self.starts.insert(start, id);
                self.ends.insert(end, id);
                self.tabled += 1;
            }
        }
        self.fresh.begin_anew();
    }

    #[inline]
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        match self.fresh.list.get(usize::from(self.places[id.index()])) {
            Some(edges) => edges.id == id,
            None => self.ends.entries[id.index()].id == Some(id),
        }
    }

    /// Removes `id`. Returns whether it was in the index.
    #[inline]
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let place = &mut self.places[id.index()];
        let Some(edges) = self.fresh.list.get(usize::from(*place)) else {
            return self.tabled != 0 && self.remove_tabled(id);
        };
        if edges.id != id {
            return false;
        }
        self.fresh.there &= !(1 << *place);
        *place = NOWHERE;
        if self.fresh.there == 0 {
            self.fresh.begin_anew();
        }
        true
    }

    #[inline(never)]
    fn remove_tabled(&mut self, id: RequestId) -> bool {
        let there = self.ends.entries[id.index()].id == Some(id);
        if there {
            self.starts.remove(id);
            self.ends.remove(id);
            self.tabled -= 1;
        }
        there
    }

    /// Returns whether a request might start at `end` or end at `start`. If false, no request is adjacent to an I/O
    /// from `start` to `end`.
    #[inline]
    pub(crate) fn may_touch(&self, start: u64, end: u64) -> bool {
        let fresh = self.fresh.ends & bit(start) | self.fresh.starts & bit(end);
        self.tabled != 0 || fresh != 0
    }

    /// The requests that start at `sector`, the newest first.
    pub(crate) fn starting_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let fresh = self.fresh.find(move |edges| edges.start == sector);
        fresh.chain(self.starts.find(sector))
    }

    /// The requests that end at `sector`, the newest first.
    pub(crate) fn ending_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let fresh = self.fresh.find(move |edges| edges.end == sector);
        fresh.chain(self.ends.find(sector))
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    #[test]
    fn agrees_with_a_map_over_random_histories() {
        let mut rng = Rng::new(11);
        let mut index = MergeIndex::new(32);
        // Slot, start and end, the oldest first.
        let mut naive: Vec<(u32, u64, u64)> = Vec::new();
        for step in 0..if cfg!(miri) { 40 } else { 20_000 } {
            // Sometimes few, so that the list is cleared, and sometimes many.
            let slot = rng.below(if step / 500 % 2 == 0 { 4 } else { 32 }) as u32;
            let id = RequestId::new(slot, 0);
            if let Some(at) = naive.iter().position(|it| it.0 == slot) {
                assert!(index.contains(id) && index.remove(id), "step {step}");
                naive.remove(at);
            } else {
                assert!(!index.contains(id) && !index.remove(id), "step {step}");
                let (start, end) = (rng.below(16), 16 + rng.below(16));
                index.insert(id, start, end);
                naive.push((slot, start, end));
            }
            let (from, to) = (16 + rng.below(16), rng.below(16));
            let slots = |ids: &mut dyn Iterator<Item = RequestId>| {
                Vec::from_iter(ids.map(|id| id.index() as u32))
            };
            let found = [slots(&mut index.ending_at(from)), slots(&mut index.starting_at(to))];
            let newest_first = |is: &dyn Fn(&(u32, u64, u64)) -> bool| {
                Vec::from_iter(naive.iter().rev().filter(|it| is(it)).map(|it| it.0))
            };
            let expected = [newest_first(&|it| it.2 == from), newest_first(&|it| it.1 == to)];
            assert_eq!(found, expected, "step {step}");
            let touches = expected.iter().any(|found| !found.is_empty());
            assert!(index.may_touch(from, to) || !touches, "step {step}");
        }
    }

    #[test]
    fn a_request_that_is_not_indexed_is_not_removed() {
        let mut index = MergeIndex::new(4);
        let id = RequestId::new(2, 0);
        assert!(!index.contains(id) && !index.remove(id));
        index.insert(id, 8, 16);
        let reused = id.next_generation();
        let check = |index: &mut MergeIndex| {
            assert!(!index.contains(reused) && !index.remove(reused), "its slot is, and it is not");
            assert!(index.contains(id) && index.remove(id) && !index.remove(id));
        };
        check(&mut index);
        index.insert(id, 8, 16);
        index.table_all();
        check(&mut index);
    }

    /// The purpose of the filters.
    #[test]
    fn a_random_io_seldom_touches_one_of_the_newest_and_never_one_that_has_left() {
        let mut rng = Rng::new(12);
        let mut index = MergeIndex::new(32);
        let mut touched_of_1000 = |count| {
            let sector = |rng: &mut Rng| rng.below(1 << 40);
            for slot in 0..count {
                index.insert(RequestId::new(slot, 0), sector(&mut rng), sector(&mut rng));
            }
            let touches = |index: &MergeIndex, rng: &mut Rng| {
                (0..1000).filter(|_| index.may_touch(sector(rng), sector(rng))).count()
            };
            let touched = touches(&index, &mut rng);
            (0..count).for_each(|slot| assert!(index.remove(RequestId::new(slot, 0))));
            assert_eq!(touches(&index, &mut rng), 0, "{count}");
            touched
        };
        assert_eq!(touched_of_1000(0), 0);
        // Each of them sets one bit of 64 in either filter.
        assert!((1..400).contains(&touched_of_1000(FRESH as u32)));
        assert_eq!(touched_of_1000(FRESH as u32 + 1), 1000, "the tables have no filter");
    }

    #[test]
    fn an_io_between_two_requests_touches_them_whatever_their_bits() {
        let mut index = MergeIndex::new(2);
        let end = (101..).find(|end| bit(*end) == bit(100)).expect("one in 64");
        index.insert(RequestId::new(0, 0), 0, 100);
        index.insert(RequestId::new(1, 0), end, 1000);
        assert!(index.may_touch(100, end));
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
