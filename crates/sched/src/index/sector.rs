//! Requests in order of sector, in several lanes over one pool of nodes.
//!
//! A B+ tree per lane: sorted runs of up to 16 sectors, and, once there are more, nodes above them that direct the
//! search to a run. A lane of up to 16 requests is a single node. Nodes come from a pool that all lanes share and that
//! is sized for the worst case at creation, so nothing is allocated afterwards.
//!
//! Each sector is in its tree once. Further requests at the same sector are in a ring behind the first, in order of
//! insertion. So each of a thousand writes to one block costs no more than a single one.
//!
//! The index keeps the sector of a filed request: a caller that changes a request's start must file it again.
//!
//! A [`Node`] has up to 16 keys in order, each with a value, and knows no levels, lanes or requests. Entries never
//! move. Their order is a permutation: nibble `r` of a word is the cell of the entry with rank `r`, so inserting or
//! removing shifts a register and not memory, as in Mao, Kohler and Morris, "Cache Craftiness for Fast Multicore
//! Key-Value Storage" (2012). Since the rank of a key is the number of keys below it, a search counts over all cells in
//! any order, without a branch.

use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::RequestId;

/// Entries in a full node: the number of nibbles in a word.
const FULL: usize = 16;
/// The least number of entries in a node other than a root. A quarter and not half of [`FULL`]: a node that was just
/// split must lose half of its entries before it is joined again.
const LEAST: usize = FULL / 4;
/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// The key of an unused cell, above every real one. All keys fit in 63 bits, so that "is below" is the sign of a
/// difference, which every processor can compute for several cells at a time.
const UNUSED: u64 = u64::MAX >> 1;

/// A node.
#[derive(Clone)]
#[repr(align(64))]
struct Node {
    keys: [u64; FULL],
    values: [u32; FULL],
    /// Ranks `0..len` are entries in ascending order of their keys; the rest are unused cells.
    order: u64,
    len: u32,
    /// The node to the right on the same level; for a free node, the next free one.
    pub(super) next: u32,
}

impl Node {
    const EMPTY: Self = Self {
        keys: [UNUSED; FULL],
        values: [0; FULL],
        order: 0xfedc_ba98_7654_3210,
        len: 0,
        next: NONE,
    };

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.len() == FULL
    }

    #[inline]
    fn cell(&self, rank: usize) -> usize {
        (self.order >> nibble(rank)) as usize & (FULL - 1)
    }

    /// The key of rank `rank`; [`UNUSED`] if there are fewer entries.
    #[inline]
    pub(super) fn key(&self, rank: usize) -> u64 {
        if rank < self.len() { self.keys[self.cell(rank)] } else { UNUSED }
    }

    #[inline]
    fn value(&self, rank: usize) -> u32 {
        self.values[self.cell(rank)]
    }

    #[inline]
    fn set_value(&mut self, rank: usize, value: u32) {
        self.values[self.cell(rank)] = value;
    }

    #[inline]
    fn set_key(&mut self, rank: usize, key: u64) {
        self.keys[self.cell(rank)] = key;
    }

    /// The number of keys below `key`, which is at most [`UNUSED`]: the rank of the first key that is not below.
    #[inline]
    pub(super) fn below(&self, key: u64) -> usize {
        self.keys.iter().map(|k| k.wrapping_sub(key) >> 63).sum::<u64>() as usize
    }

    /// In an inner node, the rank of the child that `key` belongs to. The key of a child is where it begins, and the
    /// first child of a node begins no later than any key that is searched in that node.
    #[inline]
    fn child_of(&self, key: u64) -> usize {
        self.below(key + 1).saturating_sub(1)
    }

    #[inline]
    fn insert(&mut self, rank: usize, key: u64, value: u32) {
        let len = self.len();
        assert!(rank <= len && len < FULL && key < UNUSED, "no room in a node");
        let cell = self.cell(len);
        self.keys[cell] = key;
        self.values[cell] = value;
        // The nibble of the cell moves down from rank `len` to `rank`; those between move up.
        let (between, others) = ranks(rank, len);
        let moved = (self.order & between) << 4;
        self.order = (self.order & others) | moved | (cell as u64) << nibble(rank);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, rank: usize) {
        let last = self.len().wrapping_sub(1);
        assert!(rank <= last && last < FULL, "no such entry in a node");
        let cell = self.cell(rank);
        self.keys[cell] = UNUSED;
        // The reverse: the nibble of the cell moves up to the unused ones.
        let (between, others) = ranks(rank, last);
        let moved = (self.order >> 4) & between;
        self.order = (self.order & others) | moved | (cell as u64) << nibble(last);
        self.len -= 1;
    }

    /// Moves entries between `self` and its neighbour `right` until `self` holds `keep` of them. Used to split nodes
    /// (`right` is empty), to join them (`keep` is all) and to even them out.
    fn share(&mut self, right: &mut Self, keep: usize) {
        while self.len() > keep {
            let rank = self.len() - 1;
            right.insert(0, self.key(rank), self.value(rank));
            self.remove(rank);
        }
        while self.len() < keep {
            self.insert(self.len(), right.key(0), right.value(0));
            right.remove(0);
        }
    }
}

/// The position of a rank's nibble. The mask is for the compiler; ranks are below 16.
#[inline]
fn nibble(rank: usize) -> u32 {
    4 * (rank as u32 % FULL as u32)
}

/// Masks over the nibbles of an order: those of the ranks `from..to`, and those below `from` and above `to`.
#[inline]
fn ranks(from: usize, to: usize) -> (u64, u64) {
    let below = |rank| (1u64 << nibble(rank)) - 1;
    let between = below(to) & !below(from);
    (between, !(between | 15 << nibble(to)))
}

/// The highest sector that can be filed. No device has 2^63 sectors, since 64 bits could not count their bytes. Input
/// from outside, such as a log, is checked against it before a policy sees it.
pub const LAST_SECTOR: u64 = UNUSED - 1;

/// Joining stops short of a full node, so that the next insert does not split it again.
const JOIN: usize = FULL / 4 * 3;

/// Where a slot's request is filed, and its neighbours in the ring of requests at that sector. Not filed if `lane` is
/// [`NONE`].
#[derive(Clone, Copy)]
struct Peers {
    sector: u64,
    prev: RequestId,
    next: RequestId,
    lane: u32,
}

#[derive(Clone, Copy)]
struct Lane {
    root: u32,
    /// Levels of inner nodes above the runs.
    height: u32,
    len: u32,
}

/// The position of the successor of the request taken last, because a caller that walks a lane in order asks for it
/// next. Any other change invalidates it; `lane` is then [`NONE`].
#[derive(Clone, Copy)]
struct Cursor {
    lane: u32,
    node: u32,
    at: u32,
    /// The sector that was taken.
    from: u64,
}

impl Cursor {
    const UNKNOWN: Self = Self { lane: NONE, node: NONE, at: 0, from: 0 };
}

/// The result of a search: a filed request, to be inspected and perhaps [taken](SectorIndex::take). Valid until the
/// index next changes.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The request; of several at one sector, the one filed first.
    pub rq: RequestId,
    /// The sector under which it is filed.
    pub sector: u64,
    lane: u32,
    node: u32,
    at: u32,
}

/// An order over (sector, request) for each of several lanes. Insertion, search and removal are O(log n) in the
/// requests of a lane; nothing allocates after creation.
pub struct SectorIndex {
    nodes: Box<[Node]>,
    free: u32,
    lanes: Box<[Lane]>,
    peers: Box<[Peers]>,
    cursor: Cursor,
}

/// A request id as a leaf stores it: 32 bits, like the child numbers of inner nodes.
#[inline]
fn pack(rq: RequestId) -> u32 {
    rq.index() as u32 | u32::from(rq.generation()) << 24
}

#[inline]
fn unpack(value: u32) -> RequestId {
    RequestId::new(value & (RequestId::MAX_SLOTS - 1), (value >> 24) as u8)
}

/// The number of nodes that suffices for any state: a root for each lane, and on each level below the roots nodes
/// with at least [`LEAST`] entries. The lowest level has no more entries than there are slots.
fn nodes_needed(slots: u32, lanes: usize) -> usize {
    let mut on_level = slots as usize;
    let mut total = lanes;
    while on_level > 0 {
        on_level /= LEAST;
        total += on_level;
    }
    total
}

impl SectorIndex {
    /// Empty `lanes` for requests with indices below `slots`, each of which is in one lane at most.
    #[must_use]
    pub fn new(slots: u32, lanes: usize) -> Self {
        let nodes = nodes_needed(slots, lanes);
        let nobody = RequestId::new(0, 0);
        let unfiled = Peers { sector: 0, prev: nobody, next: nobody, lane: NONE };
        let mut index = Self {
            nodes: vec![Node::EMPTY; nodes].into_boxed_slice(),
            free: NONE,
            lanes: (0..lanes as u32).map(|root| Lane { root, height: 0, len: 0 }).collect(),
            peers: vec![unfiled; slots as usize].into_boxed_slice(),
            cursor: Cursor::UNKNOWN,
        };
        // The first nodes are the roots. Low numbers are allocated first.
        (lanes..nodes).rev().for_each(|node| index.give_back(node as u32));
        index
    }

    /// The number of requests in `lane`.
    #[inline]
    #[must_use]
    pub fn len(&self, lane: usize) -> usize {
        self.lanes[lane].len as usize
    }

    /// Returns whether `lane` is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self, lane: usize) -> bool {
        self.lanes[lane].len == 0
    }

    /// Files `rq` in `lane`, behind those already at `sector`.
    ///
    /// # Panics
    /// If its slot is filed already, or if `sector` is above [`LAST_SECTOR`].
    #[inline]
    pub fn insert(&mut self, lane: usize, sector: u64, rq: RequestId) {
        assert!(self.peers[rq.index()].lane == NONE, "{rq:?} is filed already");
        assert!(sector <= LAST_SECTOR, "sector {sector} is beyond any device");
        self.cursor = Cursor::UNKNOWN;
        let leaf = self.leaf_with_room(lane, sector);
        let node = &mut self.nodes[leaf as usize];
        let at = node.below(sector);
        if node.key(at) == sector {
            let first = unpack(node.value(at));
            self.join_ring(first, rq);
        } else {
            node.insert(at, sector, pack(rq));
            self.peers[rq.index()] = Peers { sector, prev: rq, next: rq, lane: lane as u32 };
        }
        self.lanes[lane].len += 1;
    }

    /// The first request of `lane` at or after `sector`.
    #[inline]
    #[must_use]
    pub fn at_or_after(&self, lane: usize, sector: u64) -> Option<Found> {
        let (node, at) = self.search(lane, sector)?;
        let run = &self.nodes[node as usize];
        let rq = unpack(run.value(at));
        Some(Found { rq, sector: run.key(at), lane: lane as u32, node, at: at as u32 })
    }

    /// Like `at_or_after`, but also takes the request out. O(1) for the successor of the request that this function
    /// took last, if nothing has changed since.
    #[inline]
    pub fn take_at_or_after(&mut self, lane: usize, sector: u64) -> Option<(u64, RequestId)> {
        let Cursor { lane: known, node, at, from } = self.cursor;
        let (node, at) = if known == lane as u32 && from == sector {
            (node, at as usize)
        } else {
            self.search(lane, sector)?
        };
        let run = &self.nodes[node as usize];
        let (sector, rq) = (run.key(at), unpack(run.value(at)));
        self.take_from(lane, node, at, rq, sector);
        Some((sector, rq))
    }

    /// The node and rank of the first entry of `lane` at or after `sector`.
    #[inline]
    fn search(&self, lane: usize, sector: u64) -> Option<(u32, usize)> {
        let sector = sector.min(UNUSED);
        let node = self.leaf(lane, sector.min(LAST_SECTOR));
        let run = &self.nodes[node as usize];
        match run.below(sector) {
            at if at < run.len() => Some((node, at)),
            // Runs below a root are never empty, so the next one begins with the result.
            _ if run.next != NONE => Some((run.next, 0)),
            _ => None,
        }
    }

    /// The last sector of `lane` before `sector`; of several requests there, the one filed first.
    #[must_use]
    pub fn before(&self, lane: usize, sector: u64) -> Option<Found> {
        let sector = sector.min(UNUSED);
        let Lane { root, height, .. } = self.lanes[lane];
        let mut node = root;
        // The nearest subtree that ends before the path to `sector`, and how many levels are below its root.
        let mut left = None;
        for level in (0..height).rev() {
            let inner = &self.nodes[node as usize];
            let at = inner.child_of(sector.min(LAST_SECTOR));
            if at > 0 {
                left = Some((inner.value(at - 1), level));
            }
            node = inner.value(at);
        }
        let mut at = self.nodes[node as usize].below(sector);
        if at == 0 {
            let (subtree, levels) = left?;
            node = (0..levels).fold(subtree, |node, _| {
                let inner = &self.nodes[node as usize];
                inner.value(inner.len() - 1)
            });
            at = self.nodes[node as usize].len();
        }
        let (run, at) = (&self.nodes[node as usize], at - 1);
        let rq = unpack(run.value(at));
        Some(Found { rq, sector: run.key(at), lane: lane as u32, node, at: at as u32 })
    }

    /// Takes out the result of a search, without searching again.
    ///
    /// # Panics
    /// If the index has changed since, so that `found` is not there.
    #[inline]
    pub fn take(&mut self, found: Found) {
        let Found { rq, sector, .. } = found;
        let (node, at) = (&self.nodes[found.node as usize], found.at as usize);
        let still_there = node.key(at) == sector && node.value(at) == pack(rq);
        assert!(still_there, "{rq:?} is no longer where it was found");
        self.take_from(found.lane as usize, found.node, at, rq, sector);
    }

    /// Takes out `rq`, the first at `sector`, which is the entry `at` of `node`.
    #[inline]
    fn take_from(&mut self, lane: usize, node: u32, at: usize, rq: RequestId, sector: u64) {
        self.cursor = Cursor { lane: lane as u32, node, at: at as u32, from: sector };
        let run = &mut self.nodes[node as usize];
        let next = self.peers[rq.index()].next;
        if next == rq {
            run.remove(at);
            if at == run.len() {
                self.cursor = Cursor::UNKNOWN;
            }
            if run.len() < LEAST && self.lanes[lane].height > 0 {
                self.refill(lane, sector);
            }
        } else {
            run.set_value(at, pack(next));
        }
        self.leave_ring(rq);
    }

    /// The lane and the sector that `rq` is filed under; `None` if it is not filed. O(1).
    #[inline]
    #[must_use]
    pub fn filed(&self, rq: RequestId) -> Option<(usize, u64)> {
        let Peers { sector, next, lane, .. } = self.peers[rq.index()];
        // Only the ring stores the generation.
        let here = lane != NONE && self.peers[next.index()].prev == rq;
        here.then_some((lane as usize, sector))
    }

    /// Takes out `rq`, wherever it is.
    ///
    /// # Panics
    /// If it is not filed.
    pub fn remove(&mut self, rq: RequestId) {
        let (lane, sector) = self.filed(rq).unwrap_or_else(|| panic!("{rq:?} is not filed"));
        match self.at_or_after(lane, sector) {
            Some(found) if found.rq == rq => self.take(found),
            // Behind another request at this sector, so it is neither in the tree nor under the cursor.
            _ => self.leave_ring(rq),
        }
    }

    fn join_ring(&mut self, first: RequestId, rq: RequestId) {
        let Peers { sector, prev: last, lane, .. } = self.peers[first.index()];
        self.peers[rq.index()] = Peers { sector, prev: last, next: first, lane };
        self.peers[last.index()].next = rq;
        self.peers[first.index()].prev = rq;
    }

    #[inline]
    fn leave_ring(&mut self, rq: RequestId) {
        let Peers { prev, next, lane, .. } = self.peers[rq.index()];
        self.peers[prev.index()].next = next;
        self.peers[next.index()].prev = prev;
        self.peers[rq.index()].lane = NONE;
        self.lanes[lane as usize].len -= 1;
    }

    /// The run that `sector` belongs to.
    #[inline]
    fn leaf(&self, lane: usize, sector: u64) -> u32 {
        let Lane { root, height, .. } = self.lanes[lane];
        (0..height).fold(root, |node, _| {
            let node = &self.nodes[node as usize];
            node.value(node.child_of(sector))
        })
    }

    /// The run that `sector` belongs to, guaranteed not to be full. Full nodes are split on the way down, so that a
    /// split always finds room above it.
    #[inline]
    fn leaf_with_room(&mut self, lane: usize, sector: u64) -> u32 {
        let mut node = self.lanes[lane].root;
        if self.nodes[node as usize].is_full() {
            node = self.raise(lane);
        }
        for _ in 0..self.lanes[lane].height {
            let at = self.nodes[node as usize].child_of(sector);
            let child = self.nodes[node as usize].value(at);
            if self.nodes[child as usize].is_full() {
                self.split(node, at);
                let at = self.nodes[node as usize].child_of(sector);
                node = self.nodes[node as usize].value(at);
            } else {
                node = child;
            }
        }
        node
    }

    /// Puts a new root above the old one, which becomes its only child.
    #[cold]
    fn raise(&mut self, lane: usize) -> u32 {
        let root = self.node();
        let Lane { root: below, height, .. } = &mut self.lanes[lane];
        self.nodes[root as usize].insert(0, 0, *below);
        *below = root;
        *height += 1;
        root
    }

    /// Splits child `at` of `parent` into two halves.
    #[cold]
    fn split(&mut self, parent: u32, at: usize) {
        let child = self.nodes[parent as usize].value(at);
        let right = self.node();
        let (left_node, right_node) = self.two(child, right);
        left_node.share(right_node, FULL / 2);
        right_node.next = left_node.next;
        left_node.next = right;
        let key = right_node.key(0);
        self.nodes[parent as usize].insert(at + 1, key, right);
    }

    /// Restores the least filling of the run that `sector` belongs to, and of the nodes above it. Nodes are refilled
    /// on the way down, so that a node that loses a child below still has enough.
    #[cold]
    fn refill(&mut self, lane: usize, sector: u64) {
        self.cursor = Cursor::UNKNOWN;
        let Lane { root, height, .. } = self.lanes[lane];
        let mut node = root;
        for level in (0..height).rev() {
            let at = self.nodes[node as usize].child_of(sector);
            let child = self.nodes[node as usize].value(at);
            let needed = if level == 0 { LEAST } else { LEAST + 1 };
            if self.nodes[child as usize].len() < needed {
                self.mend(node, at);
            }
            let at = self.nodes[node as usize].child_of(sector);
            node = self.nodes[node as usize].value(at);
        }
        self.lower(lane);
    }

    /// Joins child `at` of `parent` with a neighbour, or evens the two out if together they exceed one node.
    fn mend(&mut self, parent: u32, at: usize) {
        let at = at.max(1);
        let parent_node = &self.nodes[parent as usize];
        let (left, right) = (parent_node.value(at - 1), parent_node.value(at));
        let (left_node, right_node) = self.two(left, right);
        let both = left_node.len() + right_node.len();
        if both <= JOIN {
            left_node.share(right_node, both);
            left_node.next = right_node.next;
            self.nodes[parent as usize].remove(at);
            self.give_back(right);
        } else {
            left_node.share(right_node, both / 2);
            let key = right_node.key(0);
            self.nodes[parent as usize].set_key(at, key);
        }
    }

    /// Removes a root that has only one child left.
    fn lower(&mut self, lane: usize) {
        let Lane { root, height, .. } = self.lanes[lane];
        if height > 0 && self.nodes[root as usize].len() == 1 {
            self.lanes[lane].root = self.nodes[root as usize].value(0);
            self.lanes[lane].height = height - 1;
            self.give_back(root);
        }
    }

    fn two(&mut self, a: u32, b: u32) -> (&mut Node, &mut Node) {
        let [a, b] = self
            .nodes
            .get_disjoint_mut([a as usize, b as usize])
            .expect("neighbours are two different nodes of the pool");
        (a, b)
    }

    fn node(&mut self) -> u32 {
        let node = self.free;
        assert!(node != NONE, "the pool is sized for the worst case");
        self.free = core::mem::replace(&mut self.nodes[node as usize], Node::EMPTY).next;
        node
    }

    fn give_back(&mut self, node: u32) {
        self.nodes[node as usize].next = self.free;
        self.free = node;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use blkmq_core::Rng;

    fn of(keys: impl IntoIterator<Item = u64>) -> Node {
        let mut node = Node::EMPTY;
        keys.into_iter().for_each(|k| node.insert(node.below(k), k, k as u32 + 100));
        node
    }

    fn entries(node: &Node) -> Vec<(u64, u32)> {
        (0..node.len()).map(|rank| (node.key(rank), node.value(rank))).collect()
    }

    #[test]
    fn any_sequence_leaves_a_permutation_in_order() {
        let mut rng = Rng::new(1);
        let (mut node, mut model) = (Node::EMPTY, Vec::new());
        for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
            let key = rng.below(1 << 20);
            let rank = node.below(key);
            assert_eq!(rank, model.partition_point(|(k, _)| *k < key));
            if !node.is_full() && rng.chance(1, 2) {
                node.insert(rank, key, key as u32);
                model.insert(rank, (key, key as u32));
            } else if rank < node.len() {
                node.remove(rank);
                model.remove(rank);
            }
            assert_eq!(entries(&node), model);
            let cells = (0..FULL).fold(0u32, |seen, rank| seen | 1 << node.cell(rank));
            assert_eq!(cells, 0xffff, "a cell was lost");
        }
    }

    #[test]
    fn sharing_keeps_order_whatever_the_split() {
        let whole = entries(&of(0..12));
        for before in 0..=12 {
            for keep in 0..=12 {
                let (mut left, mut right) = (of(0..before), of(before..12));
                left.share(&mut right, keep);
                assert_eq!(left.len(), keep);
                let mut both = entries(&left);
                both.extend(entries(&right));
                assert_eq!(both, whole, "{before} then {keep}");
            }
        }
    }

    #[test]
    fn a_child_takes_everything_from_its_key_to_the_next_ones() {
        let node = of([50, 70, 60]);
        let chosen: Vec<usize> = [50, 59, 60, 69, 70, 99].map(|k| node.child_of(k)).into();
        assert_eq!(chosen, [0, 0, 1, 1, 2, 2]);
    }

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
            let expected =
                self.model[lane].range((sector, 0)..).next().map(|((s, _), rq)| (*s, *rq));
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
                        let children =
                            |n: u32| (0..index.nodes[n as usize].len()).map(move |i| (n, i));
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
            index.at_or_after(0, LAST_SECTOR + 1).is_none()
                && index.at_or_after(0, u64::MAX).is_none()
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
}
