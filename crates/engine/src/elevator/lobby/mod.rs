//! The lobby, where I/Os of groups wait for a slot (decision 0013): lines by group and submitter, and the choice of
//! the next line.
//!
//! Slots are scarce by design, so most of the I/O that a busy server has outstanding waits for one. In staging an I/O
//! waits behind everything that the same submitter pushed before it, and a policy that shares by group sees the
//! groups only in that order of arrival. So under such a policy I/Os without a slot move from staging to the lobby,
//! and a free slot goes to the group that [`Tree`] names. Within a group submitters take turns, and the I/Os of a
//! submitter keep their order.
//!
//! Under other policies, and without groups, the lobby holds only I/Os left by the queue before a rebuild.
//!
//! The lobby does not merge and does not know whether a slot is free. The elevator always tries merging first, and
//! takes the next I/O from here only when a slot is free. The credit of the submitters bounds how many I/Os wait.

mod tree;

use crate::groups::MAX_GROUPS;
use crate::shared::hctx::PluggedRequest;
use blkmq_core::{GroupIndex, Instant, IoMeta, Op, RequestId, SubmitterId};
use blkmq_sched::GroupChange;
use std::collections::VecDeque;
use tree::Tree;

pub(crate) use tree::Slots;

/// The end of a line.
const NIL: u32 = u32::MAX;
/// The node of a request that is not counted for any group.
const UNCOUNTED: u16 = u16::MAX;

/// The first and the last place of a line.
#[derive(Clone, Copy)]
struct Line {
    first: u32,
    last: u32,
}

const EMPTY: Line = Line { first: NIL, last: NIL };

/// The lines of one group.
#[derive(Default)]
struct Lines {
    /// Submitters with an I/O in line, in the order of their turns.
    turns: VecDeque<SubmitterId>,
    /// The number of them that were refused in a row in this round.
    refused: u32,
}

/// The line that is next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    node: u16,
    submitter: SubmitterId,
}

pub(crate) struct Lobby {
    tree: Tree,
    submitters: u16,
    /// By node and submitter.
    lines: Vec<Line>,
    /// By node.
    nodes: Vec<Lines>,
    /// The I/Os that wait, by place. `behind` has the place behind each one, in its line or in the list of free places.
    places: Vec<Option<PluggedRequest>>,
    behind: Vec<u32>,
    free: u32,
    waiting: u32,
    /// Nodes that can get no slot in this round.
    refused: Vec<u16>,
    /// An I/O was pushed, or the tree of groups changed, since the last round.
    fresh: bool,
    /// The number of bare flushes among the waiting I/Os.
    flushes: u32,
    /// The node of each request that the policy holds, by slot. Empty until requests are counted.
    holders: Box<[u16]>,
}

impl Lobby {
    /// The lobby of an elevator with this many submitters, without groups.
    pub(crate) fn new(submitters: u16) -> Self {
        let mut lobby = Self {
            tree: Tree::new(),
            submitters,
            lines: Vec::new(),
            nodes: Vec::new(),
            places: Vec::new(),
            behind: Vec::new(),
            free: NIL,
            waiting: 0,
            refused: Vec::new(),
            fresh: false,
            flushes: 0,
            holders: Box::default(),
        };
        lobby.make_lines();
        lobby
    }

    fn make_lines(&mut self) {
        let nodes = self.tree.len();
        self.lines.resize(nodes * usize::from(self.submitters), EMPTY);
        let submitters = usize::from(self.submitters);
        let lines = || Lines { turns: VecDeque::with_capacity(submitters), refused: 0 };
        self.nodes.resize_with(nodes, lines);
        self.refused.reserve(nodes);
    }

    /// Returns whether I/Os without a slot wait here. True when there are groups.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.tree.has_groups()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// The I/Os that wait, in no order. O(places).
    pub(crate) fn all(&self) -> impl Iterator<Item = &IoMeta> {
        self.places.iter().flatten().map(|proto| &proto.meta)
    }

    /// Shows the first I/O of each line. O(groups + lines with I/Os).
    pub(crate) fn show_waiting(&self, mut show: impl FnMut(&IoMeta)) {
        if self.is_empty() {
            return;
        }
        for (node, lines) in (0..).zip(&self.nodes) {
            let firsts = lines
                .turns
                .iter()
                .filter_map(|submitter| self.first(Turn { node, submitter: *submitter }));
            firsts.for_each(&mut show);
        }
    }

    /// Sets the time, which decides the floors that are due.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.tree.advance(now);
    }

    /// Sets the nanoseconds between two slots of a group by which its floor is kept; zero if it has none. O(log
    /// groups).
    pub(crate) fn set_gap(&mut self, group: GroupIndex, gap: u64) {
        self.tree.set_gap(self.tree.node(group), gap);
    }

    #[inline]
    pub(crate) fn has_flush(&self) -> bool {
        self.flushes > 0
    }

    /// Returns whether an I/O was pushed, or the tree of groups changed, since the last round.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns whether the requests that the policy holds are counted by group.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Follows a change of the tree of groups. The first change begins to count requests: the elevator has `slots`
    /// slots, and the policy holds `held`. Up to `most` I/Os may wait. O(groups), and with the first group O(slots).
    pub(crate) fn regroup<'a>(
        &mut self,
        change: GroupChange,
        (slots, held): (usize, impl Iterator<Item = (RequestId, &'a IoMeta)>),
        most: usize,
    ) {
        if !self.counts() {
            self.holders = vec![UNCOUNTED; slots].into_boxed_slice();
            held.for_each(|(id, meta)| self.hold(id, meta.group));
            // This reserves address space; memory is used as places are.
            self.places.reserve_exact(most);
            self.behind.reserve_exact(most);
        }
        self.tree.regroup(change, MAX_GROUPS);
        self.make_lines();
        self.fresh = true;
    }

    /// Counts a request that the policy now holds for a group.
    #[inline]
    pub(crate) fn hold(&mut self, id: RequestId, group: GroupIndex) {
        let node = self.tree.node(group);
        self.holders[id.index()] = node;
        self.tree.hold(node);
    }

    /// Counts a request that has left the policy.
    #[inline]
    pub(crate) fn release(&mut self, id: RequestId) {
        let node = std::mem::replace(&mut self.holders[id.index()], UNCOUNTED);
        if node != UNCOUNTED {
            self.tree.release(node);
        }
    }

    fn index(&self, turn: Turn) -> usize {
        usize::from(turn.node) * usize::from(self.submitters) + usize::from(turn.submitter.0)
    }

    fn line(&mut self, turn: Turn) -> &mut Line {
        let index = self.index(turn);
        &mut self.lines[index]
    }

    fn take_place(&mut self, proto: PluggedRequest) -> u32 {
        self.waiting += 1;
        self.flushes += u32::from(proto.meta.op == Op::Flush);
        if self.free == NIL {
            self.places.push(Some(proto));
            self.behind.push(NIL);
            return self.places.len() as u32 - 1;
        }
        let place = self.free;
        self.free = std::mem::replace(&mut self.behind[place as usize], NIL);
        self.places[place as usize] = Some(proto);
        place
    }

    fn leave_place(&mut self, place: u32) -> PluggedRequest {
        self.waiting -= 1;
        self.behind[place as usize] = std::mem::replace(&mut self.free, place);
        let proto = self.places[place as usize].take().expect("a place in line is taken");
        self.flushes -= u32::from(proto.meta.op == Op::Flush);
        proto
    }

    /// Adds an I/O at the end of the line of its group and submitter. O(log groups).
    pub(crate) fn push(&mut self, now: Instant, by: SubmitterId, proto: PluggedRequest) {
        // A group that begins to wait is owed nothing for the time before.
        self.tree.advance(now);
        let node = self.tree.node(proto.meta.group);
        let place = self.take_place(proto);
        let line = self.line(Turn { node, submitter: by });
        let last = std::mem::replace(&mut line.last, place);
        if last == NIL {
            line.first = place;
            self.nodes[usize::from(node)].turns.push_back(by);
            self.tree.wait(node);
        } else {
            self.behind[last as usize] = place;
        }
        self.fresh = true;
    }

    /// The line that gets the next slot, among the lines not refused in this round.
    pub(crate) fn next(&self) -> Option<Turn> {
        let node = self.tree.next()?;
        let submitter = self.nodes[usize::from(node)].turns.front();
        Some(Turn {
            node,
            submitter: *submitter.expect("a group that waits has a submitter in line"),
        })
    }

    /// The first I/O of a line.
    pub(crate) fn first(&self, turn: Turn) -> Option<&IoMeta> {
        let first = self.lines[self.index(turn)].first;
        let proto = self.places.get(first as usize)?.as_ref();
        Some(&proto.expect("a place in line is taken").meta)
    }

    /// Takes the first I/O of the line that is next, to be given a slot, and charges its group.
    pub(crate) fn take(&mut self, turn: Turn) -> PluggedRequest {
        self.tree.charge(turn.node);
        let lines = &mut self.nodes[usize::from(turn.node)];
        // The other submitters of the group are next.
        lines.turns.rotate_left(1);
        lines.refused = 0;
        self.pop(turn)
    }

    /// Takes the first I/O of a line, to join a request that has a slot.
    pub(crate) fn pop(&mut self, turn: Turn) -> PluggedRequest {
        let first = self.line(turn).first;
        self.unlink(turn, NIL, first);
        self.leave_place(first)
    }

    /// Takes `place`, which is behind `before`, out of a line.
    fn unlink(&mut self, turn: Turn, before: u32, place: u32) {
        let Turn { node, submitter } = turn;
        let next = std::mem::replace(&mut self.behind[place as usize], NIL);
        if before != NIL {
            self.behind[before as usize] = next;
        }
        let line = self.line(turn);
        if before == NIL {
            line.first = next;
        }
        if next == NIL {
            line.last = before;
        }
        if line.first == NIL {
            let lines = &mut self.nodes[usize::from(node)];
            // Usually this submitter has just had its turn.
            if lines.turns.back() == Some(&submitter) {
                lines.turns.pop_back();
            } else {
                lines.turns.retain(|id| *id != submitter);
            }
            if lines.turns.is_empty() {
                self.tree.leave(node);
            }
        }
    }

    /// Returns whether the policy holds as many requests of the group in turn as the group may have while others wait.
    pub(crate) fn has_its_part(&self, turn: Turn, slots: Slots) -> bool {
        self.tree.has_its_part(turn.node, slots)
    }

    /// Sets aside the group in turn: it gets no slot in this round.
    pub(crate) fn pass_over_group(&mut self, turn: Turn) {
        self.nodes[usize::from(turn.node)].refused = 0;
        self.tree.leave(turn.node);
        self.refused.push(turn.node);
    }

    /// Sets aside the line in turn, because there is no slot for its I/O.
    pub(crate) fn pass_over(&mut self, turn: Turn) {
        let lines = &mut self.nodes[usize::from(turn.node)];
        lines.turns.rotate_left(1);
        lines.refused += 1;
        if lines.refused as usize >= lines.turns.len() {
            self.pass_over_group(turn);
        }
    }

    /// Ends the round: the lines and groups refused in it are eligible again in the next one.
    pub(crate) fn end_round(&mut self) {
        self.fresh = false;
        while let Some(node) = self.refused.pop() {
            let lines = &mut self.nodes[usize::from(node)];
            lines.refused = 0;
            if !lines.turns.is_empty() {
                self.tree.resume(node);
            }
        }
    }

    /// Takes the oldest I/O of a submitter for which `is` returns true. O(groups + waiting I/Os).
    #[cold]
    pub(crate) fn remove(
        &mut self,
        by: SubmitterId,
        is: impl Fn(&PluggedRequest) -> bool,
    ) -> Option<PluggedRequest> {
        let found = (0..self.nodes.len() as u16).filter_map(|node| {
            let turn = Turn { node, submitter: by };
            let (before, place) = self.find(turn, &is)?;
            let proto = self.places[place as usize].as_ref();
            Some((proto.expect("a place in line is taken").meta.arrived, turn, before, place))
        });
        let (_, turn, before, place) = found.min_by_key(|(arrived, ..)| *arrived)?;
        self.unlink(turn, before, place);
        Some(self.leave_place(place))
    }

    /// The first place of a line that matches, and the place before it.
    fn find(&self, turn: Turn, is: impl Fn(&PluggedRequest) -> bool) -> Option<(u32, u32)> {
        let (mut before, mut at) = (NIL, self.lines[self.index(turn)].first);
        while at != NIL {
            if self.places[at as usize].as_ref().is_some_and(&is) {
                return Some((before, at));
            }
            (before, at) = (at, self.behind[at as usize]);
        }
        None
    }

    /// Takes all I/Os, in the order of arrival, each with its submitter.
    pub(crate) fn take_all(&mut self) -> Vec<(SubmitterId, PluggedRequest)> {
        let mut all = Vec::with_capacity(self.waiting as usize);
        for node in 0..self.nodes.len() as u16 {
            for submitter in (0..self.submitters).map(SubmitterId) {
                let turn = Turn { node, submitter };
                while self.first(turn).is_some() {
                    all.push((submitter, self.pop(turn)));
                }
            }
        }
        all.sort_by_key(|(_, proto)| proto.meta.arrived);
        all
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    //! The lobby alone: which group is next, compared with a search through all groups, and how lines change.

    use super::tree::{Slots, Tree};
    use super::{Lobby, Turn};
    use crate::BioTable;
    use crate::groups::MAX_GROUPS;
    use crate::shared::hctx::PluggedRequest;
    use crate::shared::slots::{Claim, Credit};
    use blkmq_core::{GroupIndex, Instant, IoMeta, Op, Owner, RequestId, Rng, SubmitterId};
    use blkmq_sched::GroupChange;
    use std::collections::BTreeMap;

    fn added(group: u16, parent: u16, weight: u32) -> GroupChange {
        GroupChange::Added { group: GroupIndex(group), parent: GroupIndex(parent), weight }
    }

    fn tree(changes: &[GroupChange]) -> Tree {
        let mut tree = Tree::new();
        changes.iter().for_each(|change| tree.regroup(*change, MAX_GROUPS));
        tree
    }

    /// Gives out `slots` slots and holds none of them. Returns how many each group was given.
    fn give_out(tree: &mut Tree, slots: u32) -> BTreeMap<u16, u32> {
        let mut given = BTreeMap::new();
        for _ in 0..slots {
            let node = tree.next().expect("a group has waiting I/Os");
            tree.charge(node);
            *given.entry(node).or_default() += 1;
        }
        given
    }

    #[test]
    fn slots_go_by_weight_among_those_who_wait() {
        let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100), added(3, 0, 1000)]);
        let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
        tree.wait(one);
        tree.wait(two);
        let given = give_out(&mut tree, 400);
        assert_eq!((given[&one], given[&two]), (300, 100));
        tree.leave(one);
        assert_eq!(give_out(&mut tree, 10)[&two], 10);
        // The group did not wait for a while, and is owed no slots for that time.
        tree.wait(one);
        let given = give_out(&mut tree, 400);
        assert!((299..=301).contains(&given[&one]), "{given:?}");
    }

    /// Sets a floor of `slots` slots a second for a group. The tests give out a thousand slots a second.
    fn floor_of(tree: &mut Tree, node: u16, slots: u64) {
        tree.set_gap(node, 1_000_000_000 / slots);
    }

    /// Gives out a slot each millisecond from `from` to `to`.
    fn give_out_by_time(tree: &mut Tree, (from, to): (u64, u64)) -> BTreeMap<u16, u32> {
        let mut given = BTreeMap::new();
        for ms in from..to {
            tree.advance(Instant::from_nanos(ms * 1_000_000));
            given = give_out(tree, 1).into_iter().fold(given, |mut given, (node, slots)| {
                *given.entry(node).or_default() += slots;
                given
            });
        }
        given
    }

    #[test]
    fn a_floor_that_is_due_has_the_next_slot_whatever_the_weights() {
        let mut tree = tree(&[added(1, 0, 1), added(2, 0, 1000), added(3, 0, 1000)]);
        let [one, two, three] = [1, 2, 3].map(|group| tree.node(GroupIndex(group)));
        floor_of(&mut tree, one, 400);
        floor_of(&mut tree, two, 100);
        [one, two, three].into_iter().for_each(|node| tree.wait(node));
        let given = give_out_by_time(&mut tree, (0, 5_000));
        assert!(given[&one].abs_diff(2_000) <= 2, "{given:?}");
        assert!(given[&two].abs_diff(given[&three]) <= 4, "turns count for a floor: {given:?}");
        // The group did not wait for a second, and is owed nothing for that time.
        tree.leave(one);
        assert!(!give_out_by_time(&mut tree, (5_000, 6_000)).contains_key(&one));
        tree.wait(one);
        let given = give_out_by_time(&mut tree, (6_000, 6_100));
        assert!(given[&one].abs_diff(40) <= 1, "{given:?}");
        // The group is set aside for a while, as in a round without a slot for it, and is owed that time.
        tree.leave(one);
        give_out_by_time(&mut tree, (6_100, 6_200));
        tree.resume(one);
        let given = give_out_by_time(&mut tree, (6_200, 6_300));
        assert!((70..=82).contains(&given[&one]), "{given:?}");
        floor_of(&mut tree, one, 1);
        tree.set_gap(one, 0);
        let given = give_out_by_time(&mut tree, (7_000, 9_000));
        assert!(given.get(&one).is_none_or(|slots| *slots <= 4), "without a floor: {given:?}");
    }

    #[test]
    fn slots_beyond_the_share_by_weight_are_not_paid_for_later() {
        let mut tree = tree(&[added(1, 0, 100), added(2, 0, 100)]);
        let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
        floor_of(&mut tree, one, 900);
        [one, two].into_iter().for_each(|node| tree.wait(node));
        let given = give_out_by_time(&mut tree, (0, 2_000));
        assert!(given[&one].abs_diff(1_800) <= 2, "{given:?}");
        tree.set_gap(one, 0);
        let given = give_out_by_time(&mut tree, (2_000, 2_100));
        assert!(given[&one].abs_diff(50) <= 3, "{given:?}");
    }

    #[test]
    fn a_floor_is_for_the_groups_below_by_weight() {
        let mut tree =
            tree(&[added(1, 0, 1), added(2, 0, 1000), added(3, 1, 300), added(4, 1, 100)]);
        let [one, two, three, four] = [1, 2, 3, 4].map(|group| tree.node(GroupIndex(group)));
        floor_of(&mut tree, one, 400);
        [two, three, four].into_iter().for_each(|node| tree.wait(node));
        let given = give_out_by_time(&mut tree, (0, 2_000));
        assert!((given[&three] + given[&four]).abs_diff(800) <= 2, "{given:?}");
        assert!(given[&three].abs_diff(600) <= 4, "{given:?}");
    }

    #[test]
    fn a_group_that_was_set_aside_keeps_what_it_has_in_hand() {
        let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100)]);
        let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
        tree.wait(one);
        tree.wait(two);
        // The heavier group is set aside in every other round.
        let mut given = BTreeMap::from([(one, 0), (two, 0)]);
        for round in 0..400 {
            if round % 2 == 0 {
                tree.leave(one);
            }
            let node = tree.next().expect("a group has waiting I/Os");
            tree.charge(node);
            *given.entry(node).or_default() += 1;
            tree.resume(one);
        }
        assert_eq!(
            (given[&one], given[&two]),
            (200, 200),
            "every other round is all that it can have"
        );
        // The group is owed three quarters of those slots, and gets them.
        assert_eq!(give_out(&mut tree, 400)[&one], 400);
    }

    #[test]
    fn groups_below_a_group_divide_its_part_with_its_own_io() {
        let mut tree =
            tree(&[added(1, 0, 100), added(2, 0, 100), added(3, 1, 300), added(4, 1, 100)]);
        let [one, two, three, four] = [1, 2, 3, 4].map(|group| tree.node(GroupIndex(group)));
        [one, two, three].into_iter().for_each(|node| tree.wait(node));
        let given = give_out(&mut tree, 800);
        assert_eq!((given[&two], given[&three], given[&one]), (400, 300, 100));
        assert!(!given.contains_key(&four), "nothing of it waits");
    }

    #[test]
    fn what_a_group_may_have_is_its_part_or_enough() {
        let mut tree = tree(&[added(1, 0, 300), added(2, 0, 100)]);
        let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
        tree.wait(one);
        (0..5).for_each(|_| tree.hold(one));
        let has = |tree: &Tree, all, enough| tree.has_its_part(one, Slots { all, enough });
        assert!(!has(&tree, 8, 4), "it is alone");
        tree.hold(two);
        assert!(has(&tree, 8, 4));
        assert!(!has(&tree, 8, 6), "five are not enough");
        tree.release(two);
        assert!(!has(&tree, 8, 4), "it is alone again");
    }

    #[test]
    fn a_group_that_is_gone_keeps_its_place_until_nothing_is_left_of_it() {
        let mut tree = tree(&[added(1, 0, 100), added(2, 1, 100)]);
        let [one, two] = [1, 2].map(|group| tree.node(GroupIndex(group)));
        tree.wait(two);
        tree.hold(two);
        tree.regroup(GroupChange::Removed { group: GroupIndex(2) }, MAX_GROUPS);
        assert_eq!(tree.node(GroupIndex(2)), one, "new I/O is its parent's");
        tree.regroup(GroupChange::Removed { group: GroupIndex(1) }, MAX_GROUPS);
        assert!(!tree.has_groups());
        assert_eq!(tree.node(GroupIndex(2)), tree.node(GroupIndex::ROOT));
        assert_eq!(tree.next(), Some(two));
        // The node of group 1 is free; that of group 2, whose I/O still waits, is not.
        tree.regroup(added(7, 0, 100), MAX_GROUPS);
        assert_eq!(tree.node(GroupIndex(7)), one);
        tree.regroup(added(8, 0, 100), MAX_GROUPS);
        assert!(tree.node(GroupIndex(8)) != two);
        tree.leave(two);
        tree.release(two);
        tree.regroup(added(9, 0, 100), MAX_GROUPS);
        assert_eq!(tree.node(GroupIndex(9)), two);
    }

    /// In any history, a waiting I/O is found, and an I/O that is found was waiting.
    #[test]
    fn no_waiting_group_is_forgotten() {
        for seed in 0..if cfg!(miri) { 1 } else { 50 } {
            let mut rng = Rng::new(seed);
            let mut tree = Tree::new();
            let (mut there, mut waiting): (Vec<u16>, Vec<u16>) = (vec![0], Vec::new());
            for step in 1..400 {
                let group = there[rng.below(there.len() as u64) as usize];
                let node = tree.node(GroupIndex(group));
                match rng.below(6) {
                    0 => {
                        tree.regroup(added(step, group, 1 + rng.below(1000) as u32), MAX_GROUPS);
                        there.push(step);
                    }
                    1 if group == there[there.len() - 1] && group != 0 => {
                        // The youngest group: no group is below it.
                        tree.regroup(GroupChange::Removed { group: GroupIndex(group) }, MAX_GROUPS);
                        there.pop();
                    }
                    2 => {
                        let weight = 1 + rng.below(1000) as u32;
                        tree.regroup(
                            GroupChange::Weight { group: GroupIndex(group), weight },
                            MAX_GROUPS,
                        );
                    }
                    3 | 4 => {
                        tree.wait(node);
                        waiting.retain(|other| *other != node);
                        waiting.push(node);
                    }
                    _ => {
                        tree.leave(node);
                        waiting.retain(|other| *other != node);
                    }
                }
                let next = tree.next();
                assert_eq!(next.is_some(), !waiting.is_empty(), "seed {seed}, step {step}");
                assert!(
                    next.is_none_or(|next| waiting.contains(&next)),
                    "seed {seed}, step {step}"
                );
                if let Some(next) = next {
                    tree.charge(next);
                }
            }
            // All remaining groups leave, and each is found.
            while let Some(next) = tree.next() {
                let at = waiting.iter().position(|other| *other == next).expect("it waits");
                waiting.swap_remove(at);
                tree.leave(next);
            }
            assert!(waiting.is_empty(), "seed {seed}: {waiting:?} are not found");
        }
    }

    /// A lobby with two groups and three submitters, and bios to put there.
    struct Fixture {
        lobby: Lobby,
        table: BioTable<()>,
        credits: Vec<Credit>,
        now: u64,
    }

    const GOLD: GroupIndex = GroupIndex(1);
    const TIN: GroupIndex = GroupIndex(2);

    impl Fixture {
        fn new() -> Self {
            let (table, credits) = BioTable::new(3, 16);
            let mut lobby = Lobby::new(3);
            for change in [added(1, 0, 300), added(2, 0, 100)] {
                lobby.regroup(change, (8, std::iter::empty::<(RequestId, &IoMeta)>()), 48);
            }
            Self { lobby, table, credits, now: 0 }
        }

        fn push(&mut self, by: u16, group: GroupIndex, cookie: u64) {
            self.now += 1;
            let arrived = Instant::from_nanos(self.now);
            let meta = IoMeta { group, arrived, ..IoMeta::new(Op::Read, cookie, 1) };
            let claim = Claim { sector: cookie, sectors: 1, owner: Owner(0), cookie };
            let bio = self.table.claim(&mut self.credits[usize::from(by)], claim, ());
            let bio = bio.expect("there is credit");
            self.lobby.push(arrived, SubmitterId(by), PluggedRequest { meta, bio, bios: 1 });
        }

        /// The cookies of the I/Os that are given slots next.
        fn take(&mut self, slots: u32) -> Vec<u64> {
            let mut taken = Vec::new();
            while taken.len() < slots as usize
                && let Some(turn) = self.lobby.next()
            {
                taken.push(self.lobby.take(turn).meta.sector);
            }
            self.lobby.end_round();
            taken
        }
    }

    #[test]
    fn lines_keep_their_order_and_submitters_take_turns() {
        let mut it = Fixture::new();
        for cookie in 0..3 {
            it.push(0, GOLD, cookie);
        }
        it.push(1, GOLD, 10);
        it.push(2, GOLD, 20);
        assert!(it.lobby.is_fresh() && !it.lobby.is_empty());
        assert_eq!(it.take(10), [0, 10, 20, 1, 2]);
        assert!(it.lobby.is_empty() && it.lobby.next().is_none());
    }

    #[test]
    fn a_group_with_a_floor_that_returns_is_owed_nothing_for_its_absence() {
        let mut it = Fixture::new();
        it.lobby.set_gap(TIN, 1_000_000);
        // An hour in which no slot was given out, so that the lobby received no time.
        it.now = 3_600_000_000_000;
        for cookie in 0..8 {
            it.push(0, GOLD, cookie);
            it.push(1, TIN, 100 + cookie);
        }
        let taken = it.take(8);
        let tin = taken.iter().filter(|cookie| **cookie >= 100).count();
        assert!(taken[0] == 100 && tin <= 3, "one for the floor, and a quarter: {taken:?}");
    }

    #[test]
    fn what_is_refused_is_passed_over_until_the_next_round() {
        let mut it = Fixture::new();
        it.push(0, GOLD, 1);
        it.push(1, GOLD, 2);
        it.push(0, TIN, 3);
        let mut seen = Vec::new();
        while let Some(turn) = it.lobby.next() {
            seen.push(it.lobby.first(turn).expect("it waits").sector);
            it.lobby.pass_over(turn);
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3], "each was asked once");
        it.lobby.end_round();
        let mut taken = it.take(10);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
    }

    #[test]
    fn one_that_is_given_up_leaves_its_line_from_anywhere() {
        for (gone, rest) in [(1, [2, 3]), (2, [1, 3]), (3, [1, 2])] {
            let mut it = Fixture::new();
            for cookie in 1..=3 {
                it.push(0, GOLD, cookie);
            }
            it.push(1, GOLD, gone);
            let is = |proto: &PluggedRequest| proto.meta.sector == gone;
            let found = it.lobby.remove(SubmitterId(0), is).expect("it waits");
            assert_eq!(it.table.submitter(&found.bio), SubmitterId(0));
            assert!(it.lobby.remove(SubmitterId(0), is).is_none());
            assert!(it.lobby.remove(SubmitterId(1), is).is_some());
            // The line can still be used.
            it.push(0, GOLD, 9);
            assert_eq!(it.take(10), [rest[0], rest[1], 9]);
        }
    }

    #[test]
    fn a_later_queue_is_given_everything_in_the_order_of_arrival() {
        let mut it = Fixture::new();
        for (by, group, cookie) in
            [(2, TIN, 1), (0, GOLD, 2), (2, TIN, 3), (1, GroupIndex::ROOT, 4), (0, TIN, 5)]
        {
            it.push(by, group, cookie);
        }
        let all = it.lobby.take_all();
        let all: Vec<_> = all.iter().map(|(by, proto)| (by.0, proto.meta.sector)).collect();
        assert_eq!(all, [(2, 1), (0, 2), (2, 3), (1, 4), (0, 5)]);
        assert!(it.lobby.is_empty() && it.lobby.next().is_none());
    }

    #[test]
    fn requests_are_counted_from_the_first_group_on() {
        let mut lobby = Lobby::new(1);
        assert!(!lobby.counts() && !lobby.is_open());
        let held = [0, 1].map(|slot| (RequestId::new(slot, 0), IoMeta::new(Op::Read, 0, 8)));
        let held = held.iter().map(|(id, meta)| (*id, meta));
        lobby.regroup(added(1, 0, 100), (4, held), 16);
        assert!(lobby.counts() && lobby.is_open());
        // Requests held before and since, and one that is unknown.
        lobby.release(RequestId::new(0, 0));
        lobby.hold(RequestId::new(2, 0), GroupIndex(1));
        lobby.release(RequestId::new(2, 0));
        lobby.release(RequestId::new(3, 0));
        let turn = Turn { node: 0, submitter: SubmitterId(0) };
        let slots = |enough| Slots { all: 0, enough };
        assert!(lobby.has_its_part(turn, slots(1)) && !lobby.has_its_part(turn, slots(2)));
    }
}
