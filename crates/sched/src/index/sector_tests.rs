//! The index against a `BTreeMap` that orders by (sector, time of insertion).

use super::*;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use blkmq_core::Rng;

const LANES: usize = 3;

/// The index and its model, changed together.
struct Pair {
    index: SectorIndex,
    model: [BTreeMap<(u64, u64), RequestId>; LANES],
    /// Filed requests: lane, sector, time of insertion.
    filed: Vec<(usize, u64, u64, RequestId)>,
    free: Vec<RequestId>,
    clock: u64,
    /// The end of the last walk.
    last: (usize, u64),
}

impl Pair {
    fn new(slots: u32) -> Self {
        Self {
            index: SectorIndex::new(slots, LANES),
            model: core::array::from_fn(|_| BTreeMap::new()),
            filed: Vec::new(),
            free: (0..slots).map(|i| RequestId::new(i, 0)).collect(),
            clock: 0,
            last: (0, 0),
        }
    }

    fn insert(&mut self, lane: usize, sector: u64) {
        let Some(rq) = self.free.pop() else { return };
        self.clock += 1;
        self.index.insert(lane, sector, rq);
        self.model[lane].insert((sector, self.clock), rq);
        self.filed.push((lane, sector, self.clock, rq));
    }

    fn forget(&mut self, rq: RequestId) {
        let at = self.filed.iter().position(|f| f.3 == rq).expect("it is filed");
        let (lane, sector, time, _) = self.filed.swap_remove(at);
        self.model[lane].remove(&(sector, time));
        self.free.push(RequestId::new(rq.index() as u32, rq.generation().wrapping_add(1)));
    }

    fn remove(&mut self, nth: usize) {
        let (lane, sector, _, rq) = self.filed[nth];
        assert_eq!(self.index.filed(rq), Some((lane, sector)));
        self.index.remove(rq);
        assert_eq!(self.index.filed(rq), None);
        self.forget(rq);
    }

    fn check(&self, lane: usize, sector: u64) {
        let expected = self.model[lane].range((sector, 0)..).next().map(|((s, _), rq)| (*s, *rq));
        let found = self.index.at_or_after(lane, sector).map(|f| (f.sector, f.rq));
        assert_eq!(found, expected, "lane {lane} at {sector}");
        let below = self.model[lane].range(..(sector, 0)).next_back().map(|((s, _), _)| *s);
        let first = below.and_then(|s| self.model[lane].range((s, 0)..).next());
        let expected = first.map(|((s, _), rq)| (*s, *rq));
        let found = self.index.before(lane, sector).map(|f| (f.sector, f.rq));
        assert_eq!(found, expected, "lane {lane} before {sector}");
        assert_eq!(self.index.len(lane), self.model[lane].len());
    }

    /// Walks `lane` from `sector` on: takes the first request at or after it, and continues from there.
    fn walk(&mut self, lane: usize, mut sector: u64, steps: u64) {
        for _ in 0..steps {
            let expected =
                self.model[lane].range((sector, 0)..).next().map(|((s, _), rq)| (*s, *rq));
            assert_eq!(self.index.take_at_or_after(lane, sector), expected);
            let Some((at, rq)) = expected else { return };
            self.forget(rq);
            sector = at;
            self.last = (lane, at);
        }
    }

    fn take(&mut self, lane: usize, sector: u64) {
        if let Some(found) = self.index.at_or_after(lane, sector) {
            self.index.take(found);
            self.forget(found.rq);
        }
    }

    /// Checks that every node but a root has its least filling, and that every node is in a tree or free.
    fn check_shape(&self) {
        let index = &self.index;
        let mut seen = 0;
        for lane in &index.lanes {
            let mut level = Vec::from([lane.root]);
            for height in (0..=lane.height).rev() {
                seen += level.len();
                let root = height == lane.height;
                let least = if !root { LEAST } else { 2 * usize::from(height > 0) };
                assert!(level.iter().all(|n| index.nodes[*n as usize].len() >= least));
                if height > 0 {
                    let children = |n: u32| (0..index.nodes[n as usize].len()).map(move |i| (n, i));
                    level = level
                        .iter()
                        .flat_map(|n| children(*n))
                        .map(|(n, i)| index.nodes[n as usize].value(i))
                        .collect();
                }
            }
        }
        let mut free = index.free;
        while free != NONE {
            seen += 1;
            free = index.nodes[free as usize].next;
        }
        assert_eq!(seen, index.nodes.len(), "a node was lost");
    }
}

/// Sectors below `span`, at most `slots` requests, and insertions in `fill` of eight steps.
fn run(seed: u64, slots: u32, span: u64, steps: u32) {
    let mut rng = Rng::new(seed);
    let mut pair = Pair::new(slots);
    for step in 0..steps {
        // Long swings between filling and draining visit every height.
        let fill = if (step / (slots * 2)).is_multiple_of(2) { 6 } else { 2 };
        let (lane, sector) = (rng.below(LANES as u64) as usize, rng.below(span));
        if rng.chance(fill, 8) {
            pair.insert(lane, sector);
        } else if rng.chance(1, 2) {
            match rng.below(3) {
                0 => pair.take(lane, sector),
                1 => pair.walk(lane, sector, rng.below(3)),
                // Continues at the cursor's position, whatever has changed since.
                _ => pair.walk(pair.last.0, pair.last.1, rng.below(3)),
            }
        } else if !pair.filed.is_empty() {
            pair.remove(rng.below(pair.filed.len() as u64) as usize);
        }
        pair.check(rng.below(LANES as u64) as usize, rng.below(span + 1));
        if step % 64 == 0 {
            pair.check_shape();
        }
    }
    (0..LANES).for_each(|lane| (0..slots).for_each(|_| pair.take(lane, 0)));
    pair.check_shape();
    assert!(pair.filed.is_empty());
}

#[test]
fn agrees_with_an_ordered_map() {
    if cfg!(miri) {
        return [8, 40].into_iter().for_each(|places| run(1, 16, places, 80));
    }
    for seed in 0..8 {
        run(seed, 8, 6, 2_000);
        run(seed, 64, 40, 4_000);
        run(seed, 1_000, 1 << 40, 12_000);
        run(seed, 1_000, 300, 12_000);
    }
}

#[test]
fn the_pool_holds_out_when_every_node_is_as_empty_as_it_may_be() {
    let sizes: &[u32] = if cfg!(miri) { &[0, 1, 20] } else { &[0, 1, 9, 64, 513, 5_000] };
    for &slots in sizes {
        let mut pair = Pair::new(slots);
        for round in 0..6 {
            // Fill in ascending order, then thin out evenly, then fill somewhere else.
            (0..slots).for_each(|i| pair.insert(0, (round << 32) + u64::from(i)));
            pair.check_shape();
            for sector in (0..slots).filter(|i| i % 4 != 0) {
                pair.take(0, (round << 32) + u64::from(sector));
            }
            pair.check_shape();
        }
    }
}

#[test]
fn equal_sectors_leave_in_order_of_insertion() {
    let mut index = SectorIndex::new(5, 1);
    let rq = |i| RequestId::new(i, 0);
    (0..5).for_each(|i| index.insert(0, 7, rq(i)));
    index.remove(rq(2));
    index.remove(rq(0));
    let mut left = Vec::new();
    while let Some(found) = index.at_or_after(0, 0) {
        index.take(found);
        left.push(found.rq.index());
    }
    assert_eq!(left, [1, 3, 4]);
}

#[test]
fn the_highest_slot_and_the_highest_sector_are_ordinary() {
    let mut index = SectorIndex::new(256, 1);
    let rq = RequestId::new(255, 255);
    index.insert(0, LAST_SECTOR, rq);
    let found = index.at_or_after(0, LAST_SECTOR).expect("it was filed");
    assert_eq!((found.rq, found.sector), (rq, LAST_SECTOR));
    assert!(
        index.at_or_after(0, LAST_SECTOR + 1).is_none() && index.at_or_after(0, u64::MAX).is_none()
    );
    assert_eq!(unpack(pack(RequestId::new(RequestId::MAX_SLOTS - 1, 255))).generation(), 255);
}

#[test]
#[should_panic(expected = "rq0.0 is not filed")]
fn removing_the_previous_request_of_a_slot_is_a_bug() {
    let mut index = SectorIndex::new(1, 1);
    index.insert(0, 8, RequestId::new(0, 1));
    index.remove(RequestId::new(0, 0));
}

#[test]
#[should_panic(expected = "no longer where it was found")]
fn a_search_result_does_not_outlive_a_change() {
    let mut index = SectorIndex::new(2, 1);
    index.insert(0, 8, RequestId::new(0, 0));
    let found = index.at_or_after(0, 0).expect("it was filed");
    index.insert(0, 4, RequestId::new(1, 0));
    index.take(found);
}
