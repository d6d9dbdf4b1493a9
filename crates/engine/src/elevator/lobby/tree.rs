//! The choice of the group that gets the next slot: the tree of groups, how many requests the policy holds of each,
//! and which groups have I/O that waits.
//!
//! A group whose floor is due comes first: it has been given fewer slots than its floor needs, by the time between two
//! of its I/Os, which the account of floors sets. Among several, the one that has been due for longest comes first.
//! Slots given by weight count for the floor as well, and slots given earlier do not reduce the floor.
//!
//! Otherwise, from the root down, a slot goes to the group that has been given the fewest so far for its weight
//! (start-time fair queueing); slots of the groups below it count as its own. A group that begins to wait is owed no
//! slots for the time before. The own I/O of a group that has groups below it competes with them at the default weight,
//! as I/O of the root does with all groups.
//!
//! A group is passed over while others wait if the policy holds its part of all slots, and enough requests of it to
//! keep the device busy. So no group fills the policy, each has requests there when its turn comes, and the policy
//! decides the shares. Requests count as held until they are issued: the group in service continues to receive slots.
//! Where there are more groups than slots, or the policy issues everything immediately, weights decide how often each
//! group is given a slot.

use blkmq_core::{GroupIndex, Instant};
use blkmq_sched::GroupChange;
use blkmq_sched::index::Heap;

/// The root's node.
pub(super) const ROOT: u16 = 0;
/// The place of a node that is in no heap.
const NOWHERE: u16 = u16::MAX;
/// The weight of a group's own I/O beside the groups below it.
const OWN_WEIGHT: u32 = 100;
/// The amount that a slot adds to the tag of a group of weight 1.
const STRIDE: u64 = 1 << 32;
/// The longest time for which a floor is owed slots, in nanoseconds; older debts are dropped.
const MOST_OWED: u64 = 1_000_000_000;

/// A competitor for slots: a group with all groups below it, or a group's own I/O.
#[derive(Clone, Copy, Debug)]
struct Claim {
    weight: u32,
    /// Slots given so far, each counted in inverse proportion to the weight. When the claim begins to wait, its tag
    /// is raised to that of the rival served last.
    tag: u64,
}

impl Claim {
    const fn new(weight: u32) -> Self {
        Self { weight, tag: 0 }
    }

    fn charge(&mut self) {
        self.tag += STRIDE / u64::from(self.weight);
    }

    /// Charges a slot for a floor, while the rival served last has the tag `now`: a floor beyond the share by weight is
    /// not paid for with turns that come long after it.
    fn charge_ahead(&mut self, now: u64) {
        let before = self.tag;
        self.charge();
        self.tag = self.tag.min(before.max(now + 2 * STRIDE / u64::from(self.weight)));
    }
}

/// The slots of an elevator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// The number of slots, which the active groups divide evenly.
    pub(crate) all: u32,
    /// A number of requests that keeps the device busy: a group may have as many even if its part is smaller.
    pub(crate) enough: u32,
}

impl Slots {
    /// Slots without limit: the part of each group is all of them.
    pub(crate) const EVERYTHING: Self = Self { all: u32::MAX, enough: u32::MAX };
}

struct Node {
    parent: u16,
    /// The claim of the group with all groups below it, among its siblings.
    all: Claim,
    /// The claim of its own I/O, among the groups below it.
    own: Claim,
    /// The number of its requests that the policy holds.
    held: u32,
    /// Its own I/O waits and may be given a slot.
    waits: bool,
    /// The groups below it with I/O that waits: a heap by tag, the lowest tag first.
    heap: Vec<u16>,
    /// Its index in its parent's heap.
    place: u16,
    /// The tag of the claim that was given a slot last, of the group's own I/O and the groups below.
    now: u64,
    /// Nanoseconds between two slots by which its floor is kept; zero without a floor.
    gap: u64,
    /// The time at which its floor is due next, in nanoseconds.
    due: u64,
    /// The group has been removed; the node stays until the policy holds none of its requests and none of its I/O
    /// waits.
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
            gap: 0,
            due: 0,
            removed: false,
        }
    }

    /// Returns whether I/O of the node, or of a group below it, waits.
    fn is_wanting(&self) -> bool {
        self.waits || !self.heap.is_empty()
    }

    /// Returns whether the node has a part in the slots.
    fn is_active(&self) -> bool {
        self.waits || self.held > 0
    }
}

pub(super) struct Tree {
    /// The root first.
    nodes: Vec<Node>,
    /// The node of each group; the root's for groups that do not exist. Empty until the first group is added.
    of: Box<[u16]>,
    groups: u16,
    /// The number of nodes that have a part in the slots.
    active: u32,
    /// The groups with floors and with I/O that waits, of their own or below, by the time at which they are due.
    floors: Heap<u64>,
    /// The time, in nanoseconds.
    now: u64,
}

impl Tree {
    /// A tree with only the root.
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node::new(ROOT, OWN_WEIGHT)],
            of: Box::default(),
            groups: 0,
            active: 0,
            floors: Heap::new(),
            now: 0,
        }
    }

    pub(super) fn advance(&mut self, now: Instant) {
        self.now = now.as_nanos();
    }

    /// Sets the nanoseconds between two slots of a group by which its floor is kept; zero if it has none. O(log
    /// groups).
    pub(super) fn set_gap(&mut self, node: u16, gap: u64) {
        if node == ROOT {
            return;
        }
        let now = self.now;
        let it = self.at(node);
        if it.gap == 0 {
            it.due = now;
        }
        it.gap = gap;
        if it.place != NOWHERE {
            self.file_floor(node);
        }
    }

    /// Adds a node with I/O that waits to `floors`, if it has a floor.
    fn file_floor(&mut self, node: u16) {
        let Node { gap, due, .. } = self.nodes[usize::from(node)];
        if gap > 0 {
            self.floors.set(node.into(), due);
        } else {
            self.floors.remove(node.into());
        }
    }

    /// The group whose floor has been due for longest; `None` if no floor is due.
    fn due(&self) -> Option<u16> {
        let (due, node) = self.floors.least()?;
        (due <= self.now).then_some(node as u16)
    }

    /// Returns whether there are groups besides the root.
    pub(super) fn has_groups(&self) -> bool {
        self.groups > 0
    }

    /// The number of nodes; all node numbers are below it.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a group. For a group that was removed, the node of its former parent; for an unknown one, the
    /// root.
    #[inline]
    pub(super) fn node(&self, group: GroupIndex) -> u16 {
        self.of.get(usize::from(group.0)).copied().unwrap_or(ROOT)
    }

    fn at(&mut self, node: u16) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// Follows a change of the tree. At most `most` groups may exist at a time. O(groups).
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
            // The account of floors sets the gap.
            GroupChange::Guarantee { .. } => {}
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
                self.floors.make_room(self.nodes.len());
                (self.nodes.len() - 1) as u16
            }
        }
    }

    /// Removes a group. Its node stays below its parent until no request of it is held and no I/O of it waits.
    fn remove(&mut self, node: u16) {
        if node == ROOT {
            return;
        }
        let parent = self.at(node).parent;
        (self.at(node).removed, self.at(node).gap) = (true, 0);
        self.floors.remove(node.into());
        self.groups -= 1;
        for of in &mut self.of {
            if *of == node {
                *of = parent;
            }
        }
        // All nodes below it are of groups that were removed before.
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

    /// Counts one more request of the node that the policy holds.
    #[inline]
    pub(super) fn hold(&mut self, node: u16) {
        self.change(node, |node| node.held += 1);
    }

    /// Counts one request less.
    #[inline]
    pub(super) fn release(&mut self, node: u16) {
        self.change(node, |node| node.held -= 1);
    }

    /// Changes a node, and keeps the count of active nodes.
    #[inline]
    fn change(&mut self, node: u16, change: impl FnOnce(&mut Node)) {
        let it = self.at(node);
        let was = it.is_active();
        change(it);
        let is = it.is_active();
        self.active = self.active + u32::from(is) - u32::from(was);
    }

    /// Returns whether the policy holds at least as many requests of the node as its part of the slots.
    pub(super) fn has_its_part(&self, node: u16, slots: Slots) -> bool {
        // The node itself waits, so at least one node is active.
        let part = slots.all / self.active;
        self.nodes[usize::from(node)].held >= part.max(slots.enough)
    }

    /// Notes that the node's own I/O begins to wait. It is owed no slots for the time before.
    pub(super) fn wait(&mut self, node: u16) {
        if self.at(node).waits {
            return;
        }
        let it = self.at(node);
        it.own.tag = it.own.tag.max(it.now);
        let mut at = node;
        while at != ROOT && self.at(at).place == NOWHERE {
            let parent = self.at(at).parent;
            let (now, time) = (self.at(parent).now, self.now);
            let it = self.at(at);
            it.all.tag = it.all.tag.max(now);
            it.due = it.due.max(time);
            at = parent;
        }
        self.resume(node);
    }

    /// Makes the node's own I/O, which was set aside, eligible for a slot again. It has waited all the time.
    pub(super) fn resume(&mut self, node: u16) {
        self.change(node, |node| node.waits = true);
        let mut at = node;
        while at != ROOT && self.at(at).place == NOWHERE {
            self.enter_heap(at);
            at = self.at(at).parent;
        }
    }

    /// Notes that the node's own I/O stops waiting, or is set aside.
    pub(super) fn leave(&mut self, node: u16) {
        self.change(node, |node| node.waits = false);
        self.prune(node);
    }

    /// Takes the nodes without waiting I/O out of the heaps, from `node` up.
    fn prune(&mut self, node: u16) {
        let mut at = node;
        while at != ROOT && self.at(at).place != NOWHERE && !self.at(at).is_wanting() {
            self.leave_heap(at);
            at = self.at(at).parent;
        }
    }

    /// The node with the own I/O that gets the next slot. O(depth of the tree).
    pub(super) fn next(&self) -> Option<u16> {
        self.descend(self.due().unwrap_or(ROOT))
    }

    /// The node, at `at` or below it, that is next by weight.
    fn descend(&self, mut at: u16) -> Option<u16> {
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

    /// Charges a slot to the node's own I/O, which was next: its rivals come before it the next time, by its weight.
    pub(super) fn charge(&mut self, node: u16) {
        let mut floor = self.due().filter(|floor| self.descend(*floor) == Some(node));
        let it = self.at(node);
        it.now = it.now.max(it.own.tag);
        it.own.charge();
        let (mut at, mut is_ahead) = (node, false);
        while at != ROOT {
            // Below the group whose floor was due, each claim was next by weight.
            is_ahead |= floor.take_if(|floor| *floor == at).is_some();
            let (tag, parent) = (self.at(at).all.tag, self.at(at).parent);
            let above = self.at(parent);
            if is_ahead {
                let now = above.now;
                self.at(at).all.charge_ahead(now);
            } else {
                above.now = above.now.max(tag);
                self.at(at).all.charge();
            }
            self.settle(at);
            self.pay(at);
            at = parent;
        }
    }

    /// Counts a slot for the floor of a node, if it has one.
    fn pay(&mut self, node: u16) {
        let now = self.now;
        let it = self.at(node);
        if it.gap > 0 {
            let due = it.due.min(now).saturating_add(it.gap);
            it.due = due.max(now.saturating_sub(MOST_OWED));
            if it.place != NOWHERE {
                self.file_floor(node);
            }
        }
    }

    fn enter_heap(&mut self, node: u16) {
        let parent = self.at(node).parent;
        let heap = &mut self.at(parent).heap;
        heap.push(node);
        let place = heap.len() - 1;
        self.at(node).place = place as u16;
        self.sift_up(parent, place);
        self.file_floor(node);
    }

    fn leave_heap(&mut self, node: u16) {
        let Node { parent, place, .. } = *self.at(node);
        self.at(node).place = NOWHERE;
        self.floors.remove(node.into());
        let heap = &mut self.at(parent).heap;
        heap.swap_remove(usize::from(place));
        if let Some(moved) = heap.get(usize::from(place)).copied() {
            self.at(moved).place = place;
            self.settle(moved);
        }
    }

    /// Restores the order of a node in its parent's heap, if it is in the heap. O(log siblings that wait).
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

    /// Returns whether the node at place `one` of the heap comes before the node at place `other`.
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
