//! Groups as levels of the service tree: the mapping from groups to levels, the counts of each level, the notes about
//! groups (`spec/bfq.md` section 17) with the counts that decide when to take them, and the number of queues of each
//! weight, which shows whether their claims differ.
//!
//! The name of a removed group leads to its parent, for I/O that still arrives under it. Notes go to the engine, which
//! keeps the statistics. With `Basic`, service, merges and completions are noted, and with `Full` all events.

use super::is_sync;
use super::queue::Key;
use super::queue::Priority;
use super::wf2q::ROOT;
use crate::{About, Cx, Event, StatsLevel};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, IoPrio, Nanos, Op};

/// The counts of a level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) id: GroupIndex,
    /// Requests waiting, including those at the head.
    pub(super) waiting: u32,
    /// Queues that are busy or have requests in the device.
    pending: u32,
    /// The time since which it has waited for its turn, if statistics are on.
    pub(super) waits: Option<Instant>,
    /// The time since which it has been empty, if statistics are on.
    pub(super) empty: Option<Instant>,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    /// By group: its level, or that of the nearest group above it that is not removed. The root for unknown groups.
    levels: Vec<u32>,
    /// The groups by level.
    at: Vec<Group>,
    /// Groups with queues that are busy or have requests in the device.
    pending: u32,
    /// The level of the queue in service.
    pub(super) in_turn: Option<u32>,
}

impl Group {
    const fn new(id: GroupIndex) -> Self {
        Self { id, waiting: 0, pending: 0, waits: None, empty: None }
    }
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            levels: alloc::vec![ROOT],
            at: alloc::vec![Group::new(GroupIndex::ROOT)],
            pending: 0,
            in_turn: None,
        }
    }

    /// The level that I/O of `group` belongs to.
    #[inline]
    pub(super) fn level(&self, group: GroupIndex) -> u32 {
        self.levels.get(usize::from(group.0)).copied().unwrap_or(ROOT)
    }

    #[inline]
    pub(super) fn at(&mut self, level: u32) -> &mut Group {
        &mut self.at[level as usize]
    }

    #[inline]
    pub(super) fn of(&self, level: u32) -> &Group {
        &self.at[level as usize]
    }

    /// Groups with queues that are busy or have requests in the device.
    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.pending
    }

    /// Counts one more queue of a level that is busy or has requests in the device.
    pub(super) fn begin(&mut self, level: u32) {
        let group = &mut self.at[level as usize];
        group.pending += 1;
        self.pending += u32::from(group.pending == 1);
    }

    /// Counts one less.
    pub(super) fn end(&mut self, level: u32) {
        let group = &mut self.at[level as usize];
        group.pending -= 1;
        self.pending -= u32::from(group.pending == 0);
    }

    pub(super) fn add(&mut self, id: GroupIndex, level: u32) {
        let at = usize::from(id.0);
        if self.levels.len() <= at {
            self.levels.resize(at + 1, ROOT);
        }
        self.levels[at] = level;
        if self.at.len() <= level as usize {
            self.at.resize(level as usize + 1, Group::new(id));
        }
        self.at[level as usize] = Group::new(id);
    }

    /// Redirects the names that lead to `level` to `parent`.
    pub(super) fn remove(&mut self, level: u32, parent: u32) {
        self.levels.iter_mut().filter(|l| **l == level).for_each(|l| *l = parent);
    }

    /// The key of the sender of `io`.
    #[inline]
    pub(super) fn key_of(&self, io: &IoMeta) -> Key {
        if is_sync(io) { Key::process(io.owner) } else { self.shared_key(io.group, io.ioprio) }
    }

    /// The key of the async queue for I/O of `group` with this priority.
    pub(super) fn shared_key(&self, group: GroupIndex, ioprio: IoPrio) -> Key {
        Key::shared(self.of(self.level(group)).id, Priority::of(ioprio).number())
    }
}

impl Groups {
    /// Notes an event of `level` about I/O.
    #[inline(always)]
    pub(super) fn note(&self, cx: &Cx<'_>, level: u32, meta: &IoMeta, what: Event) {
        self.write(cx, level, (meta.op, is_sync(meta)), what);
    }

    /// Notes an event of `level` about no I/O in particular.
    #[inline(always)]
    pub(super) fn note_queue(&self, cx: &Cx<'_>, level: u32, what: Event) {
        self.write(cx, level, (Op::Read, true), what);
    }

    /// Notes an event if it is wanted at the current level of detail.
    #[inline(always)]
    fn write(&self, cx: &Cx<'_>, level: u32, (op, sync): (Op, bool), what: Event) {
        let basic = matches!(what, Event::Served(_) | Event::Merged | Event::Completed { .. });
        if cx.stats >= if basic { StatsLevel::Basic } else { StatsLevel::Full } {
            cx.note(About::new(self.of(level).id, op, sync), what);
        }
    }

    /// Counts and notes a request that waits on `level`.
    #[inline]
    pub(super) fn queued(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        let group = self.at(level);
        group.waiting += 1;
        if cx.stats < StatsLevel::Full {
            // With statistics off, the end of a span is not seen.
            (group.empty, group.waits) = (None, None);
            return;
        }
        self.note(cx, level, meta, Event::Queued);
        let group = self.of(level);
        if group.empty.is_some() || group.waits.is_none() {
            self.filled(cx, level, now);
        }
    }

    /// Ends the empty span of a group that has a request, and begins to wait for its turn.
    #[inline(never)]
    fn filled(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        if let Some(since) = self.at(level).empty.take() {
            self.note_queue(cx, level, Event::Empty(now.since(since)));
        }
        if self.in_turn != Some(level) {
            self.at(level).waits.get_or_insert(now);
        }
    }

    /// Counts and notes a request of `level` that stops waiting without having been picked.
    #[inline]
    pub(super) fn unqueued(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        self.note(cx, level, meta, Event::Unqueued);
        self.left(cx, level, now);
    }

    /// Counts and notes a picked request of `level`.
    #[inline]
    pub(super) fn served(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        self.note(cx, level, meta, Event::Served(meta.sectors));
        self.left(cx, level, now);
    }

    #[inline]
    fn left(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        let group = self.at(level);
        group.waiting -= 1;
        if cx.stats >= StatsLevel::Full && group.waiting == 0 {
            group.empty.get_or_insert(now);
        }
    }

    /// Begins the turn of a queue of `level`. A queue leaves service before it is moved.
    pub(super) fn begin_turn(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        self.in_turn = Some(level);
        self.note_queue(cx, level, Event::QueueSize(self.of(level).waiting));
        if let Some(since) = self.at(level).waits.take() {
            self.note_queue(cx, level, Event::Waited(now.since(since)));
        }
    }

    /// Ends the turn of the queue in service, which took `time`.
    pub(super) fn end_turn(&mut self, cx: &Cx<'_>, time: Nanos) {
        if let Some(level) = self.in_turn.take() {
            self.note_queue(cx, level, Event::Time(time));
        }
    }
}

/// The number of queues of each weight, among those that are busy or have requests in the device and are not raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights([u32; 8]);

impl Weights {
    pub(crate) const NEW: Self = Self([0; 8]);

    /// The index of a weight; weights are 10, 20 up to 80.
    pub(crate) fn index(weight: u32) -> u8 {
        (weight / 10 - 1).min(7) as u8
    }

    pub(crate) fn add(&mut self, index: u8) {
        self.0[usize::from(index)] += 1;
    }

    pub(crate) fn remove(&mut self, index: u8) {
        self.0[usize::from(index)] -= 1;
    }

    pub(crate) fn differ(&self) -> bool {
        self.0.iter().filter(|n| **n > 0).count() > 1
    }

    pub(crate) fn lowest(&self) -> Option<u8> {
        self.0.iter().position(|n| *n > 0).map(|at| at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_removed_groups_go_up() {
        let mut groups = Groups::new();
        groups.add(GroupIndex(7), 1);
        groups.add(GroupIndex(9), 2);
        assert_eq!([7, 9, 3].map(|id| groups.level(GroupIndex(id))), [1, 2, ROOT]);
        groups.remove(2, 1);
        assert_eq!(groups.level(GroupIndex(9)), 1);
        groups.remove(1, ROOT);
        assert_eq!([7, 9].map(|id| groups.level(GroupIndex(id))), [ROOT; 2]);
    }

    #[test]
    fn groups_with_something_pending_are_counted_once() {
        let mut groups = Groups::new();
        groups.add(GroupIndex(1), 1);
        [1, 1, ROOT].into_iter().for_each(|level| groups.begin(level));
        assert_eq!(groups.pending(), 2);
        groups.end(1);
        assert_eq!(groups.pending(), 2);
        groups.end(1);
        assert_eq!(groups.pending(), 1);
    }

    #[test]
    fn weights_differ_when_two_are_there() {
        let mut weights = Weights::NEW;
        weights.add(Weights::index(40));
        weights.add(Weights::index(40));
        assert!(!weights.differ());
        weights.add(Weights::index(10));
        assert!(weights.differ());
        assert_eq!(weights.lowest(), Some(0));
        weights.remove(0);
        assert!(!weights.differ());
    }
}
