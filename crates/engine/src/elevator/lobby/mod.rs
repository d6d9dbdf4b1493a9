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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::groups::MAX_GROUPS;
use crate::shared::inflight::PluggedRequest;
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
        Some(Turn { node, submitter: *submitter.expect("a group that waits has somebody in line") })
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
