//! Requests in order of sector, in several lanes over one pool of nodes.
//!
//! A B+ tree per lane: sorted runs of up to 16 sectors, and, once there are more, nodes above them that direct the
//! search to a run. A lane of up to 16 requests is a single node. Nodes come from a pool that all lanes share and
//! that is sized for the worst case at creation, so nothing is allocated afterwards.
//!
//! Each sector is in its tree once. Further requests at the same sector are in a ring behind the first, in order of
//! insertion. So each of a thousand writes to one block costs no more than a single one.
//!
//! The index keeps the sector of a filed request: a caller that changes a request's start must file it again.

use super::node::{FULL, LEAST, NONE, Node, UNUSED};
use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::RequestId;

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
#[path = "sector_tests.rs"]
mod tests;
