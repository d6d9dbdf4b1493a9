//! Which group gets the next slot: the tree of groups, what the policy holds of each, and which have I/O that waits.
//!
//! From the root down, a slot goes to the group that has been given the fewest so far for its weight (start-time fair
//! queueing), those of the groups below it included. A group that begins to wait has nothing in hand from before. I/O of
//! a group that has groups below it competes with them at the default weight, as I/O of the root does with all groups.
//!
//! A group of which the policy holds its part of all slots, and enough to keep the device busy, is passed over while
//! others wait. So no group fills the policy, each has something there when its turn comes, and shares are the policy's
//! affair. Held are requests that
//! have not been issued: the group in service goes on being given slots. Where there are more groups than slots, or the
//! policy issues everything at once, weights say how often each is given one.

use blkmq_core::GroupId;
use blkmq_sched::GroupChange;

/// The root's node.
pub(super) const ROOT: u16 = 0;
/// Not in a heap.
const NOWHERE: u16 = u16::MAX;
/// The weight of a group's own I/O beside the groups below it.
const OWN_WEIGHT: u32 = 100;
/// What a slot adds to the tag of a group of weight 1.
const STRIDE: u64 = 1 << 32;

/// What competes for slots: a group with all below it, or a group's own I/O.
#[derive(Clone, Copy, Debug)]
struct Claim {
    weight: u32,
    /// Slots given, each as much as the weight is small; not behind what rivals had been given when it began to wait.
    tag: u64,
}

impl Claim {
    const fn new(weight: u32) -> Self {
        Self { weight, tag: 0 }
    }

    fn charge(&mut self) {
        self.tag += STRIDE / u64::from(self.weight);
    }
}

/// The slots of an elevator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// All of them, which those that are active divide evenly.
    pub(crate) all: u32,
    /// So many keep the device busy: a group may have them even if its part is smaller.
    pub(crate) enough: u32,
}

impl Slots {
    /// Each group's part is all of them.
    pub(crate) const EVERYTHING: Self = Self { all: u32::MAX, enough: u32::MAX };
}

struct Node {
    parent: u16,
    /// The group with all below it, among its siblings.
    all: Claim,
    /// Its own I/O, among the groups below it.
    own: Claim,
    /// Requests of it that the policy holds.
    held: u32,
    /// Its own I/O waits, and may be given a slot.
    waits: bool,
    /// Groups below it of which something waits: a heap by tag, the first one first.
    heap: Vec<u16>,
    /// Where it is in its parent's heap.
    place: u16,
    /// The tag of what was given a slot last, of the group's own I/O and the groups below.
    now: u64,
    /// The group has been removed; the node stays until nothing of it is held or waits.
    removed: bool,
}

impl Node {
    fn new(parent: u16, weight: u32) -> Self {
        Self {
            parent,
            all: Claim::new(weight),
            own: Claim::new(OWN_WEIGHT),
            held: 0,
            waits: false,
            heap: Vec::new(),
            place: NOWHERE,
            now: 0,
            removed: false,
        }
    }

    /// Something of it, or of a group below it, waits.
    fn is_wanting(&self) -> bool {
        self.waits || !self.heap.is_empty()
    }

    /// It has a part in the slots.
    fn is_active(&self) -> bool {
        self.waits || self.held > 0
    }
}

pub(super) struct Tree {
    /// The root first.
    nodes: Vec<Node>,
    /// The node of each group; the root's for those that are not there. Empty while there is only the root.
    of: Box<[u16]>,
    groups: u16,
    /// Nodes that have a part in the slots.
    active: u32,
}

impl Tree {
    /// Only the root.
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::new(ROOT, OWN_WEIGHT)], of: Box::default(), groups: 0, active: 0 }
    }

    /// There are groups besides the root.
    pub(super) fn has_groups(&self) -> bool {
        self.groups > 0
    }

    /// Numbers of nodes are below this.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a group. A group that is gone is the root, or what it was below.
    #[inline]
    pub(super) fn node(&self, group: GroupId) -> u16 {
        self.of.get(usize::from(group.0)).copied().unwrap_or(ROOT)
    }

    fn at(&mut self, node: u16) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// The tree has changed. `most` groups may be there at once. O(groups).
    pub(super) fn regroup(&mut self, change: GroupChange, most: u16) {
        match change {
            GroupChange::Added { group, parent, weight } => {
                if self.of.is_empty() {
                    self.of = vec![ROOT; usize::from(most) + 1].into_boxed_slice();
                }
                let node = self.add(self.node(parent), weight);
                self.of[usize::from(group.0)] = node;
                self.groups += 1;
            }
            GroupChange::Weight { group, weight } => {
                let node = self.node(group);
                if node != ROOT {
                    self.at(node).all.weight = weight;
                }
            }
            GroupChange::Removed { group } => self.remove(self.node(group)),
        }
    }

    fn add(&mut self, parent: u16, weight: u32) -> u16 {
        let is_unused = |node: &Node| node.removed && node.held == 0 && !node.is_wanting();
        match self.nodes.iter().position(is_unused) {
            Some(unused) => {
                self.nodes[unused] = Node::new(parent, weight);
                unused as u16
            }
            None => {
                self.nodes.push(Node::new(parent, weight));
                (self.nodes.len() - 1) as u16
            }
        }
    }

    /// What the group holds, and what of it waits, stays below its parent until it is gone.
    fn remove(&mut self, node: u16) {
        if node == ROOT {
            return;
        }
        let parent = self.at(node).parent;
        self.at(node).removed = true;
        self.groups -= 1;
        for of in &mut self.of {
            if *of == node {
                *of = parent;
            }
        }
        // Below it there is nothing but groups that were removed before.
        for below in 0..self.nodes.len() as u16 {
            if below != ROOT && self.at(below).parent == node {
                let wanting = self.at(below).place != NOWHERE;
                if wanting {
                    self.leave_heap(below);
                }
                self.at(below).parent = parent;
                if wanting {
                    self.enter_heap(below);
                }
            }
        }
        self.prune(node);
    }

    /// The policy holds one more request of the node.
    #[inline]
    pub(super) fn hold(&mut self, node: u16) {
        self.change(node, |node| node.held += 1);
    }

    /// It holds one less.
    #[inline]
    pub(super) fn release(&mut self, node: u16) {
        self.change(node, |node| node.held -= 1);
    }

    /// Changes a node, and the count of those that are active.
    #[inline]
    fn change(&mut self, node: u16, change: impl FnOnce(&mut Node)) {
        let it = self.at(node);
        let was = it.is_active();
        change(it);
        let is = it.is_active();
        self.active = self.active + u32::from(is) - u32::from(was);
    }

    /// Does the policy hold as many requests of the node as its part of the slots is, or more?
    pub(super) fn has_its_part(&self, node: u16, slots: Slots) -> bool {
        // The node itself waits, so there is one that is active.
        let part = slots.all / self.active;
        self.nodes[usize::from(node)].held >= part.max(slots.enough)
    }

    /// The node's own I/O begins to wait: it has nothing in hand from before.
    pub(super) fn wait(&mut self, node: u16) {
        if self.at(node).waits {
            return;
        }
        let it = self.at(node);
        it.own.tag = it.own.tag.max(it.now);
        let mut at = node;
        while at != ROOT && self.at(at).place == NOWHERE {
            let parent = self.at(at).parent;
            let now = self.at(parent).now;
            let it = self.at(at);
            it.all.tag = it.all.tag.max(now);
            at = parent;
        }
        self.resume(node);
    }

    /// The node's own I/O, which was set aside, may be given a slot again. It has waited all the time.
    pub(super) fn resume(&mut self, node: u16) {
        self.change(node, |node| node.waits = true);
        let mut at = node;
        while at != ROOT && self.at(at).place == NOWHERE {
            self.enter_heap(at);
            at = self.at(at).parent;
        }
    }

    /// It waits no longer, or is set aside.
    pub(super) fn leave(&mut self, node: u16) {
        self.change(node, |node| node.waits = false);
        self.prune(node);
    }

    /// Takes what wants nothing any more out of the heaps, from `node` up.
    fn prune(&mut self, node: u16) {
        let mut at = node;
        while at != ROOT && self.at(at).place != NOWHERE && !self.at(at).is_wanting() {
            self.leave_heap(at);
            at = self.at(at).parent;
        }
    }

    /// Which node's own I/O the next slot is for. O(depth of the tree).
    pub(super) fn next(&self) -> Option<u16> {
        let mut at = ROOT;
        loop {
            let node = &self.nodes[usize::from(at)];
            match node.heap.first() {
                None => return node.waits.then_some(at),
                Some(below) => {
                    if node.waits && node.own.tag <= self.tag(*below) {
                        return Some(at);
                    }
                    at = *below;
                }
            }
        }
    }

    /// The node's own I/O, which waited, has been given a slot: those it competed with come before it the next time, by
    /// its weight.
    pub(super) fn charge(&mut self, node: u16) {
        let it = self.at(node);
        it.now = it.now.max(it.own.tag);
        it.own.charge();
        let mut at = node;
        while at != ROOT {
            let it = self.at(at);
            let (tag, parent) = (it.all.tag, it.parent);
            it.all.charge();
            self.settle(at);
            let above = self.at(parent);
            above.now = above.now.max(tag);
            at = parent;
        }
    }

    fn enter_heap(&mut self, node: u16) {
        let parent = self.at(node).parent;
        let heap = &mut self.at(parent).heap;
        heap.push(node);
        let place = heap.len() - 1;
        self.at(node).place = place as u16;
        self.sift_up(parent, place);
    }

    fn leave_heap(&mut self, node: u16) {
        let Node { parent, place, .. } = *self.at(node);
        self.at(node).place = NOWHERE;
        let heap = &mut self.at(parent).heap;
        heap.swap_remove(usize::from(place));
        if let Some(moved) = heap.get(usize::from(place)).copied() {
            self.at(moved).place = place;
            self.settle(moved);
        }
    }

    /// Moves a node to where it belongs in its parent's heap, if it is there. O(log siblings that wait).
    #[inline]
    fn settle(&mut self, node: u16) {
        let Node { parent, place, .. } = self.nodes[usize::from(node)];
        if place != NOWHERE {
            let place = self.sift_up(parent, place.into());
            self.sift_down(parent, place);
        }
    }

    fn tag(&self, node: u16) -> u64 {
        self.nodes[usize::from(node)].all.tag
    }

    /// Does what is at one place of the heap come before what is at another?
    fn precedes(&self, parent: u16, one: usize, other: usize) -> bool {
        let heap = &self.nodes[usize::from(parent)].heap;
        self.tag(heap[one]) < self.tag(heap[other])
    }

    fn swap(&mut self, parent: u16, one: usize, other: usize) {
        let heap = &mut self.at(parent).heap;
        heap.swap(one, other);
        let (first, second) = (heap[one], heap[other]);
        self.at(first).place = one as u16;
        self.at(second).place = other as u16;
    }

    fn sift_up(&mut self, parent: u16, mut place: usize) -> usize {
        while place > 0 && self.precedes(parent, place, (place - 1) / 2) {
            self.swap(parent, place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        place
    }

    fn sift_down(&mut self, parent: u16, mut place: usize) {
        loop {
            let len = self.at(parent).heap.len();
            let below = (2 * place + 1..=2 * place + 2).filter(|below| *below < len);
            let first = below.reduce(
                |one, other| {
                    if self.precedes(parent, other, one) { other } else { one }
                },
            );
            match first {
                Some(first) if self.precedes(parent, first, place) => {
                    self.swap(parent, first, place);
                    place = first;
                }
                _ => return,
            }
        }
    }
}
