//! The tree of groups with the tags of mClock: selects the next group, and changes the tags at each service.
//!
//! A node is a group, or a group's own requests, which compete with the groups below it: its place, its promises and
//! its tags, the reasons for its service, on which the charge depends, and its account: the turns that it lost while
//! all its requests were in the device. This module knows no requests: a node of requests is *filled* or *emptied*, and
//! served at a cost.

use super::prices::{Charge, Costs, Share};
use crate::index::Heap;
use crate::{Guarantee, Rate};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant};

/// A node: with an even number a group, with the next number the group's own requests.
#[derive(Debug)]
struct Node {
    pub(super) id: GroupIndex,
    pub(super) parent: u32,
    /// Its number among the members of its parent.
    member: u32,
    depth: u16,
    pub(super) weight: u32,
    pub(super) guarantee: Guarantee,
    reserve: Option<Share>,
    pub(super) limit: Option<Share>,
    /// The reservation tag (R), in nanoseconds of the clock of reservations.
    r: u64,
    /// The limit tag (L), in nanoseconds.
    l: u64,
    /// The tag among its siblings (P), in nanoseconds of service over weight, and the remainder of the last division.
    p: u64,
    rem: u64,
    /// The time of its members (V): the greatest P of a member at its turn.
    v: u64,
    /// The device time that it got, in nanoseconds, and its account in the present judgement of shares.
    pub(super) got: u64,
    account: Account,
    /// For floors. A node of requests is `busy` while it has any, waiting or in the device.
    coverage: Coverage,
    busy: bool,
    /// It has requests, in itself or below, that no limit below it holds back.
    ready: bool,
    /// The nodes below it, by member; `u32::MAX` where a node was removed.
    members: Vec<u32>,
    /// Members that are ready and within their limits.
    standing: Heap<(u64, u32)>,
}

impl Node {
    pub(super) fn new(id: GroupIndex, parent: u32, depth: u16, weight: u32) -> Self {
        Self {
            id,
            parent,
            member: 0,
            depth,
            weight,
            guarantee: Guarantee::default(),
            reserve: None,
            limit: None,
            r: 0,
            l: 0,
            p: 0,
            rem: 0,
            v: 0,
            got: 0,
            account: Account::default(),
            coverage: Coverage::default(),
            busy: false,
            ready: false,
            members: Vec::new(),
            standing: Heap::new(),
        }
    }
}

/// How a floor was kept in a window in which its group had requests all the time, by the service that it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Floors {
    /// No group with a floor had requests all the time.
    Unknown,
    /// A group got less than its floor, or hardly more: the least part of a floor, in thousandths.
    Short(u64),
    /// A group got a little more than its floor.
    Edge,
    /// Every group got much more than its floor, or its floor while requests of it waited.
    Roomy,
}

/// Parts of a floor, in thousandths. The floor is short below the first where requests wait, and below the second where
/// all that the group asks for is in the device. There it is at the edge below the third.
const MISSED: u64 = 990;
const EDGE: u64 = 1_050;
const ROOMY: u64 = 1_150;
const SECOND: u64 = 1_000_000_000;
/// A group that had requests for this part of a window, in thousandths, counts as having had them all the time.
const COVERED: u64 = 940;

/// The time in a window in which a node had requests, and the service that it got, in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
struct Coverage {
    /// Busy nodes of requests in it or below it, and the time since which there are any.
    busy: u32,
    since: u64,
    covered: u64,
    /// The device time that it had got at the begin of the window, and the cost of its last request.
    before: u64,
    last: u64,
    /// The missing part of its floor, over windows in a row in which it had requests all the time.
    debt: u64,
}

impl Coverage {
    /// Begins a window.
    pub(super) fn begin(&mut self, now: u64, got: u64) {
        *self = Self { since: now, covered: 0, before: got, ..*self };
    }

    /// Begins a window for another floor, of which nothing is owed.
    pub(super) fn begin_anew(&mut self, now: u64, got: u64) {
        self.begin(now, got);
        self.debt = 0;
    }

    #[inline]
    pub(super) fn charge(&mut self, cost: u64) {
        self.last = cost;
    }

    pub(super) fn began(&mut self, now: u64) {
        if self.busy == 0 {
            self.since = now;
        }
        self.busy += 1;
    }

    pub(super) fn ended(&mut self, now: u64) {
        self.busy -= 1;
        if self.busy == 0 {
            self.covered += now - self.since;
        }
    }

    /// Returns how the floor was kept. The floor is `due`, a part of the device's time in units of 2^-32, and the
    /// window took `span` ns. With `waiting`, requests of the node wait in the policy.
    pub(super) fn judge(
        &mut self,
        now: u64,
        span: u64,
        got: u64,
        due: u64,
        waiting: bool,
    ) -> Floors {
        let last = if self.busy > 0 { now - self.since } else { 0 };
        let covered = self.covered + last;
        if covered < span / 1_000 * COVERED {
            self.debt = 0;
            return Floors::Unknown;
        }
        let of = |time: u64| ((u128::from(time) * u128::from(due)) >> 32) as u64;
        let (due, got) = (of(covered), got - self.before);
        // A debt of more than a tenth of a second would be repaid at the expense of all others.
        self.debt = (self.debt + due).saturating_sub(got).min(of(SECOND / 10));
        let part = u128::from(got) * 1_000 / u128::from(due.max(1));
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        if self.debt > of(SECOND / 50).max(2 * self.last) {
            return Floors::Short(part.min(MISSED));
        }
        if part < if waiting { MISSED } else { EDGE } {
            Floors::Short(part)
        } else if waiting || part >= ROOMY {
            Floors::Roomy
        } else {
            Floors::Edge
        }
    }
}

impl Floors {
    /// Returns the worse of two.
    fn or_worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Short(a), Self::Short(b)) => Self::Short(a.min(b)),
            (Self::Short(_), _) | (_, Self::Unknown) => self,
            (_, Self::Short(_)) | (Self::Unknown, _) => other,
            (Self::Edge, _) | (_, Self::Edge) => Self::Edge,
            _ => Self::Roomy,
        }
    }
}

/// The account of a node, from its first loss after a judgement to the next judgement, in nanoseconds of device time.
#[derive(Clone, Copy, Default, Debug)]
struct Account {
    /// The number of its judgement. Zero is no judgement.
    judgement: u64,
    lost: u64,
    /// The service of the node and of its parent before the first loss.
    before: [u64; 2],
}

impl Account {
    /// Returns the loss so far in `judgement`.
    pub(super) fn lost(&self, judgement: u64) -> u64 {
        if self.judgement == judgement { self.lost } else { 0 }
    }

    /// Adds a loss. `got` is the service of the node and of its parent so far.
    pub(super) fn add(&mut self, judgement: u64, lost: u64, got: [u64; 2]) {
        if self.judgement != judgement {
            *self = Self { judgement, lost: 0, before: got };
        }
        self.lost += lost;
    }

    /// Returns the part of its share that the node got, in thousandths.
    pub(super) fn part(&self, judgement: u64, got: [u64; 2]) -> u64 {
        let lost = self.lost(judgement);
        if lost == 0 {
            return 1_000;
        }
        let [got, all] = [0, 1].map(|at| got[at] - self.before[at]);
        let part = |got: u64, of: u64| u128::from(got) * 1_000_000 / u128::from(of.max(1));
        let (has, due) = (part(got, all), part(got + lost, all + lost));
        (has * 1_000 / due.max(1)).min(1_000) as u64
    }
}

/// Why a node was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The floor of this node was due. Below the node, weights decided.
    Floor(u32),
    /// Its turn by weight.
    Turn,
    /// Outside of its turn: more of a batch, or a request at the head.
    Extra,
}

/// How a node was served, as far as its siblings are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    InTurn,
    Ahead,
    Extra,
}

/// The group of all groups.
pub(super) const ROOT: u32 = 0;
/// The weight of a group's own requests among its groups.
const OWN_WEIGHT: u32 = 100;
/// The longest debt of a floor, in nanoseconds of its clock. Older debts are written off.
const MOST_OWED: u64 = 1_000_000_000;
/// The unused time of a ceiling or of the pace that may be used later, in nanoseconds.
const SLACK: u64 = 10_000_000;

const NOBODY: u32 = u32::MAX;

/// The groups.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Numbers of removed groups.
    free: Vec<u32>,
    /// By group: its node, or the node of the nearest group above it that is not removed.
    names: Vec<u32>,
    /// Ready nodes with floors, by reservation tag; of equal ones the deeper node first.
    floors: Heap<(u64, u32)>,
    /// Ready nodes that stand aside, by limit tag.
    aside: Heap<u64>,
    /// The time by which the clock of reservations is behind: all debts written off, in nanoseconds.
    slip: u64,
    /// Judgements of shares, the present one included, and the node that has lost most in it.
    judgement: u64,
    loser: u32,
    /// The part of the device that is given by weight, and its tags by the clocks of requests and of bytes.
    pace: Option<Share>,
    pace_tags: [u64; 2],
    /// The pace is one that was found. It has one clock, that of costs.
    pace_found: bool,
    /// Groups with floors, and the begin of their window in nanoseconds.
    promised: u32,
    begun: u64,
}

/// The node of the own requests of `group`.
pub(super) const fn own(group: u32) -> u32 {
    group + 1
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            free: Vec::new(),
            names: alloc::vec![ROOT],
            floors: Heap::new(),
            aside: Heap::new(),
            slip: 0,
            judgement: 1,
            loser: ROOT,
            pace: None,
            pace_tags: [0; 2],
            pace_found: false,
            promised: 0,
            begun: 0,
        };
        tree.place(
            ROOT,
            Node::new(GroupIndex::ROOT, NOBODY, 0, 1),
            Node::new(GroupIndex::ROOT, ROOT, 1, OWN_WEIGHT),
        );
        tree
    }

    /// Returns the node to which I/O of `group` belongs: that of the root, if the group is not known.
    #[inline]
    pub(super) fn named(&self, group: GroupIndex) -> u32 {
        self.names.get(usize::from(group.0)).copied().unwrap_or(ROOT)
    }

    /// The number above those of all nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn at(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn at_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    pub(super) fn parent(&self, node: u32) -> u32 {
        self.at(node).parent
    }

    pub(super) fn id(&self, node: u32) -> GroupIndex {
        self.at(node).id
    }

    /// Makes a group the node `node`, and its own requests the next one.
    fn place(&mut self, node: u32, group: Node, own: Node) {
        let at = node as usize;
        if at == self.nodes.len() {
            self.nodes.extend([group, own]);
            let all = self.nodes.len();
            self.floors.make_room(all);
            self.aside.make_room(all);
        } else {
            (self.nodes[at], self.nodes[at + 1]) = (group, own);
        }
        self.join(node, node + 1);
    }

    fn join(&mut self, parent: u32, node: u32) {
        let above = self.at_mut(parent);
        let member =
            above.members.iter().position(|other| *other == NOBODY).unwrap_or(above.members.len());
        if member == above.members.len() {
            above.members.push(node);
            above.standing.make_room(member + 1);
        } else {
            above.members[member] = node;
        }
        self.at_mut(node).member = member as u32;
    }

    pub(super) fn add(&mut self, id: GroupIndex, parent: GroupIndex, weight: u32) -> u32 {
        let above = self.named(parent);
        let depth = self.at(above).depth + 1;
        let node = self.free.pop().unwrap_or(self.nodes.len() as u32);
        self.place(
            node,
            Node::new(id, above, depth, weight.max(1)),
            // The depth orders floors, and a node of requests has none.
            Node::new(id, node, depth, OWN_WEIGHT),
        );
        self.join(above, node);
        let at = usize::from(id.0);
        if self.names.len() <= at {
            self.names.resize(at + 1, ROOT);
        }
        self.names[at] = node;
        node
    }

    pub(super) fn set_weight(&mut self, node: u32, weight: u32) {
        if node != ROOT {
            self.at_mut(node).weight = weight.max(1);
        }
    }

    /// Removes the group `node`, without requests or groups below it. Its name leads to its parent. O(names).
    pub(super) fn remove(&mut self, node: u32) {
        let &Node { parent, member, ready, .. } = self.at(node);
        debug_assert!(!ready, "its requests have moved");
        self.names.iter_mut().filter(|name| **name == node).for_each(|name| *name = parent);
        self.at_mut(parent).members[member as usize] = NOBODY;
        self.promised -= u32::from(self.at(node).reserve.is_some());
        let of = self.at_mut(node);
        (of.guarantee, of.account) = (Guarantee::default(), Account::default());
        of.reserve = None;
        self.free.push(node);
    }

    /// Sets the guarantee of `node` and begins its tags anew.
    pub(super) fn promise(&mut self, node: u32, guarantee: Guarantee, costs: &Costs, now: Instant) {
        if node == ROOT {
            return;
        }
        let tau = self.tau(now);
        let [reserve, limit] =
            [guarantee.reserve, guarantee.limit].map(|rate: Rate| costs.share(&rate));
        let ready = self.at(node).ready;
        if self.promised == 0 {
            // Without floors, coverage is not kept.
            self.nodes.iter_mut().for_each(|of| (of.coverage, of.busy) = Default::default());
        }
        self.promised += u32::from(reserve.is_some());
        self.promised -= u32::from(self.at(node).reserve.is_some());
        let of = self.at_mut(node);
        (of.guarantee, of.reserve, of.limit) = (guarantee, reserve, limit);
        (of.r, of.l) = (tau, now.as_nanos());
        of.coverage.begin_anew(now.as_nanos(), of.got);
        if ready {
            self.floors.remove(node);
            self.begin_floor(node, tau);
            if self.aside.remove(node) {
                self.stand(node, now);
            }
        }
    }

    /// Begins the tags of floors, ceilings and the pace anew, for another capacity. O(groups).
    pub(super) fn reprice(&mut self, costs: &Costs, pace_percent: u32, now: Instant) {
        self.pace = (pace_percent > 0).then(|| Share::percent(pace_percent));
        self.pace_found = false;
        self.pace_tags = [0; 2];
        for node in (0..self.nodes.len() as u32).step_by(2) {
            let guarantee = self.at(node).guarantee;
            if guarantee != Guarantee::default() {
                self.promise(node, guarantee, costs, now);
            }
        }
    }

    /// Sets a pace that was found, in millionths of the device; zero for none.
    pub(super) fn find_pace(&mut self, ppm: u64) {
        self.pace_found = ppm > 0;
        self.pace = self.pace_found.then(|| Share::ppm(ppm));
    }

    /// Returns whether any group has a floor.
    #[inline]
    pub(super) fn has_floors(&self) -> bool {
        self.promised > 0
    }

    /// Sets whether the node of requests `leaf` has any, waiting or in the device.
    pub(super) fn set_busy(&mut self, leaf: u32, is_busy: bool, now: Instant) {
        let now = now.as_nanos();
        if core::mem::replace(&mut self.at_mut(leaf).busy, is_busy) == is_busy {
            return;
        }
        let mut node = leaf;
        while node != ROOT {
            let coverage = &mut self.at_mut(node).coverage;
            if is_busy {
                coverage.began(now);
            } else {
                coverage.ended(now);
            }
            node = self.at(node).parent;
        }
    }

    /// Begins a window for floors. O(groups).
    pub(super) fn begin_floors(&mut self, now: Instant) {
        self.begun = now.as_nanos();
        for node in self.nodes.iter_mut().filter(|node| node.reserve.is_some()) {
            node.coverage.begin(now.as_nanos(), node.got);
        }
    }

    /// Returns how floors were kept in the window, and begins the next. O(groups).
    pub(super) fn judge_floors(&mut self, now: Instant) -> Floors {
        if !self.has_floors() {
            return Floors::Unknown;
        }
        let at = now.as_nanos();
        let span = at - self.begun;
        let judge = |node: &mut Node| {
            let due = node.reserve?.units();
            Some(node.coverage.judge(at, span, node.got, due, node.ready))
        };
        let kept = self.nodes.iter_mut().filter_map(judge).fold(Floors::Unknown, Floors::or_worse);
        self.begin_floors(now);
        kept
    }

    /// The clock of reservations at the time `now`.
    fn tau(&self, now: Instant) -> u64 {
        now.as_nanos() - self.slip.min(now.as_nanos())
    }

    fn begin_floor(&mut self, node: u32, tau: u64) {
        let of = self.at_mut(node);
        if of.reserve.is_some() {
            of.r = of.r.max(tau);
            self.file_floor(node);
        }
    }

    fn file_floor(&mut self, node: u32) {
        let of = self.at(node);
        let key = (of.r, u32::from(!of.depth) << 16 | u32::from(of.id.0));
        self.floors.set(node, key);
    }

    /// Makes the node of requests `node` ready. If it `is_busy`, the device has other requests of it.
    pub(super) fn filled(&mut self, node: u32, is_busy: bool, now: Instant) {
        self.become_ready(node, is_busy, now);
    }

    /// Makes `node` ready, and with it each group above that had no standing member.
    fn become_ready(&mut self, mut node: u32, is_busy: bool, now: Instant) {
        let tau = self.tau(now);
        loop {
            self.at_mut(node).ready = true;
            self.begin_floor(node, tau);
            if node == ROOT {
                return;
            }
            let of = self.at(node);
            if of.l > now.as_nanos() {
                self.aside.set(node, of.l);
                return;
            }
            if is_busy {
                self.count_lost(node);
            }
            if !self.enter(node) {
                return;
            }
            node = self.at(node).parent;
        }
    }

    /// Returns the service of `node` and of its parent so far.
    fn got(&self, node: u32) -> [u64; 2] {
        [node, self.at(node).parent].map(|node| self.at(node).got)
    }

    /// Counts the turns that `node`, which begins to stand, has lost while the device had requests of it.
    fn count_lost(&mut self, node: u32) {
        let &Node { parent, p, weight, .. } = self.at(node);
        let behind = self.at(parent).v.saturating_sub(p);
        if behind == 0 {
            return;
        }
        let (judgement, got) = (self.judgement, self.got(node));
        let account = &mut self.at_mut(node).account;
        account.add(judgement, behind.saturating_mul(weight.into()), got);
        let lost = account.lost(judgement);
        if self.at(self.loser).account.lost(judgement) < lost {
            self.loser = node;
        }
    }

    /// Returns the part of its share that the node with the greatest loss got since the last judgement, in thousandths.
    pub(super) fn judge_shares(&mut self) -> u64 {
        let judgement = self.judgement;
        self.judgement += 1;
        // The root has no parent, and loses nothing.
        if self.loser == ROOT {
            return 1_000;
        }
        self.at(self.loser).account.part(judgement, self.got(self.loser))
    }

    /// Files `node` among the standing members of its parent. Returns whether it is the first.
    fn enter(&mut self, node: u32) -> bool {
        let v = self.at(self.at(node).parent).v;
        let of = self.at_mut(node);
        of.p = of.p.max(v);
        let parent = of.parent;
        self.file(node);
        self.at(parent).standing.len() == 1
    }

    fn file(&mut self, node: u32) {
        let of = self.at(node);
        let is_own = node % 2 == 1;
        // Group zero is the root, which is below no other.
        let key = (of.p, if is_own { 0 } else { u32::from(of.id.0) });
        let (parent, member) = (of.parent, of.member);
        self.at_mut(parent).standing.set(member, key);
    }

    /// Lets `node`, which stood aside, compete again.
    fn stand(&mut self, node: u32, now: Instant) {
        if self.enter(node) {
            self.become_ready(self.at(node).parent, false, now);
        }
    }

    /// Ends the readiness of the node of requests `node`.
    pub(super) fn emptied(&mut self, node: u32) {
        self.end_ready(node);
    }

    /// Ends the readiness of `node`, and of each group above that has no other standing member.
    fn end_ready(&mut self, mut node: u32) {
        loop {
            self.floors.remove(node);
            self.at_mut(node).ready = false;
            if node == ROOT || self.aside.remove(node) || !self.leave(node) {
                return;
            }
            node = self.at(node).parent;
        }
    }

    /// Takes `node` from the standing members of its parent. Returns whether it was the last.
    fn leave(&mut self, node: u32) -> bool {
        let &Node { parent, member, .. } = self.at(node);
        let standing = &mut self.at_mut(parent).standing;
        standing.remove(member);
        standing.is_empty()
    }

    fn is_standing(&self, node: u32) -> bool {
        let of = self.at(node);
        self.at(of.parent).standing.contains(of.member)
    }

    /// Returns whether limits allow service of the node of requests `node` outside of its turn.
    pub(super) fn is_within_limits(&self, mut node: u32) -> bool {
        while node != ROOT {
            if !self.is_standing(node) {
                return false;
            }
            node = self.at(node).parent;
        }
        true
    }

    /// Lets nodes compete whose limit tags have passed.
    pub(super) fn release(&mut self, now: Instant) {
        while let Some((_, node)) = self.aside.least().filter(|(l, _)| *l <= now.as_nanos()) {
            self.aside.remove(node);
            self.stand(node, now);
        }
    }

    /// Returns the node of requests for the floor that is due first, if any is due. Writes off debts that are too old.
    pub(super) fn due(&mut self, now: Instant) -> Option<(u32, Reason)> {
        let ((r, _), node) = self.floors.least()?;
        let owed = self.tau(now).saturating_sub(r);
        self.slip += owed.saturating_sub(MOST_OWED);
        (r <= self.tau(now)).then(|| (self.descend(node), Reason::Floor(node)))
    }

    /// The time at which the next floor is due, in nanoseconds; `None` without ready floors.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.floors.least().map(|((r, _), _)| r.saturating_add(self.slip))
    }

    /// Returns the node of requests whose turn it is by weight; `None` if no node stands.
    pub(super) fn turn(&self) -> Option<u32> {
        (!self.at(ROOT).standing.is_empty()).then(|| self.descend(ROOT))
    }

    /// The time until which the pace allows no pick by weight, in nanoseconds; `None` if it allows one.
    pub(super) fn paced_until(&self, now: Instant) -> Option<u64> {
        let [requests, bytes] = self.pace_tags;
        self.pace.map(|_| requests.max(bytes)).filter(|tag| *tag > now.as_nanos())
    }

    /// The time at which the next limit that holds a node back ends, in nanoseconds.
    pub(super) fn next_release(&self) -> Option<u64> {
        self.aside.least().map(|(l, _)| l)
    }

    /// Follows the least tags from a ready node down to a node of requests.
    fn descend(&self, mut node: u32) -> u32 {
        while node.is_multiple_of(2) {
            let of = self.at(node);
            let (_, member) = of.standing.least().expect("a group is ready if a member stands");
            node = of.members[member as usize];
        }
        node
    }

    /// Charges the node of requests `leaf`, the groups above it, and the pace for a request.
    pub(super) fn charge(&mut self, leaf: u32, charge: &Charge, reason: Reason, now: Instant) {
        let (cost, time) = (charge.clocks.cost(), charge.time);
        let tau = self.tau(now);
        let mut in_turn = reason != Reason::Extra;
        let mut node = leaf;
        while node != ROOT {
            if reason == Reason::Floor(node) {
                in_turn = false;
            }
            let served = if in_turn {
                Served::InTurn
            } else if reason == Reason::Extra {
                Served::Extra
            } else {
                Served::Ahead
            };
            self.charge_weight(node, charge.weighed, served);
            let of = self.at_mut(node);
            of.got += time;
            of.coverage.charge(cost);
            if let Some(reserve) = of.reserve {
                of.r = of.r.min(tau).saturating_add(reserve.gap(cost));
            }
            if let Some(limit) = of.limit {
                let from = of.l.max(now.as_nanos().saturating_sub(SLACK));
                of.l = from.saturating_add(limit.gap(cost));
            }
            if self.floors.contains(node) {
                self.file_floor(node);
            }
            node = self.at(node).parent;
        }
        self.at_mut(ROOT).got += time;
        if let Some(pace) = self.pace {
            let earliest = now.as_nanos().saturating_sub(SLACK);
            let clocks = if self.pace_found { [time; 2] } else { charge.clocks.0 };
            for (tag, takes) in self.pace_tags.iter_mut().zip(clocks) {
                *tag = (*tag).max(earliest).saturating_add(pace.gap(takes));
            }
        }
        self.hold_back(leaf, now);
    }

    fn charge_weight(&mut self, node: u32, cost: u64, served: Served) {
        let parent = self.at(node).parent;
        let p = self.at(node).p;
        if served == Served::InTurn {
            let above = self.at_mut(parent);
            above.v = above.v.max(p);
        }
        let v = self.at(parent).v;
        let of = self.at_mut(node);
        let weight = u64::from(of.weight);
        let whole = cost + of.rem;
        (of.p, of.rem) = (p + whole / weight, whole % weight);
        if served == Served::Ahead {
            // Later turns are not spent on the floor.
            of.p = of.p.min(p.max(v + 2 * cost / weight));
        }
        if self.is_standing(node) {
            self.file(node);
        }
    }

    /// Sets aside `leaf` and the nodes above it that have used up their limits.
    fn hold_back(&mut self, leaf: u32, now: Instant) {
        let mut node = leaf;
        while node != ROOT {
            let of = self.at(node);
            let (parent, l) = (of.parent, of.l);
            if l > now.as_nanos() && self.is_standing(node) {
                let was_last = self.leave(node);
                self.aside.set(node, l);
                if was_last {
                    self.end_ready(parent);
                }
            } else if self.aside.contains(node) {
                self.aside.set(node, l);
            }
            node = parent;
        }
    }

    /// The time by which the clock of reservations is behind, in nanoseconds.
    pub(super) fn slip(&self) -> u64 {
        self.slip
    }

    pub(super) fn held_back(&self) -> usize {
        self.aside.len()
    }

    pub(super) fn floors(&self) -> usize {
        self.floors.len()
    }
}
