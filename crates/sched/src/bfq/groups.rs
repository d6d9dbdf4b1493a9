//! Groups as levels of the service tree: the mapping from groups to levels, and the counts of each level.
//!
//! The name of a removed group leads to its parent, for I/O that still arrives under it.

use super::Bfq;
use super::budget::Reason;
use super::notes::Kind;
use super::wf2q::{From, Keep, ROOT, When};
use crate::{Cx, GroupChange};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant};

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
    /// By group: its level, or for a removed group the level that its name leads to now. The root for unknown groups.
    levels: Vec<u32>,
    /// By level.
    at: Vec<Group>,
    /// Groups with queues that are busy or have requests in the device.
    pending: u32,
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

    /// One more queue of a level is busy or has requests in the device.
    pub(super) fn begin(&mut self, level: u32) {
        let group = &mut self.at[level as usize];
        group.pending += 1;
        self.pending += u32::from(group.pending == 1);
    }

    /// One less.
    pub(super) fn end(&mut self, level: u32) {
        let group = &mut self.at[level as usize];
        group.pending -= 1;
        self.pending -= u32::from(group.pending == 0);
    }

    fn add(&mut self, id: GroupIndex, level: u32) {
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
    fn remove(&mut self, level: u32, parent: u32) {
        self.levels.iter_mut().filter(|l| **l == level).for_each(|l| *l = parent);
    }
}

impl Bfq {
    /// The tree of groups has changed. O(queues) for a removal.
    pub(super) fn change_groups(&mut self, cx: &Cx<'_>, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, weight } => {
                let above = self.groups.level(parent);
                let level = self.wf.add_level(above, weight.clamp(1, 1_000));
                self.groups.add(group, level);
                self.forget_name(group);
            }
            GroupChange::Weight { group, weight } => {
                let level = self.groups.level(group);
                if level != ROOT {
                    self.wf.set_level_weight(level, weight.clamp(1, 1_000));
                }
            }
            GroupChange::Guarantee { .. } => {}
            GroupChange::Removed { group } => self.remove_group(cx, group),
        }
    }

    fn remove_group(&mut self, cx: &Cx<'_>, group: GroupIndex) {
        let level = self.groups.level(group);
        let Some(parent) = self.wf.parent(level) else { return };
        if self.groups.of(level).id != group {
            return;
        }
        self.abandon_async_of(group);
        // The queues that have been busy for longest come first; the order of the others does not matter.
        let busy: Vec<u32> = self.queues.busy().collect();
        for q in busy.into_iter().chain(0..self.queues.capacity()) {
            if self.queues[q].live && self.wf.level(q) == level {
                self.free_if_unused(cx, q);
                self.move_queue(cx, q, parent);
            }
        }
        debug_assert!(self.groups.of(level).waiting == 0);
        self.wf.remove_level(level);
        self.groups.remove(level, parent);
    }

    /// A group's name is reused: processes that used it may have queues on other levels.
    fn forget_name(&mut self, group: GroupIndex) {
        let its: Vec<u32> =
            self.procs.all().filter(|p| self.procs.at(*p).group == Some(group)).collect();
        its.into_iter().for_each(|proc| self.procs.at_mut(proc).group = None);
    }

    /// Moves a queue to another level: takes it off the service tree, moves it, and puts it back.
    pub(super) fn move_queue(&mut self, cx: &Cx<'_>, q: u32, level: u32) {
        let old = self.wf.level(q);
        debug_assert!(old != level);
        if q == self.slot.queue {
            self.expire(cx, Reason::Preempted);
        }
        if !self.queues[q].live {
            return;
        }
        let busy = self.queues[q].busy;
        self.unfile(q);
        if busy {
            self.busy[self.wf.class(q) as usize] -= 1;
            self.wf.deactivate(q, Keep::Nothing, When::Waiting, self.now);
        }
        if core::mem::take(&mut self.queues[q].pending) {
            self.groups.end(old);
        }
        self.wf.move_to(q, level);
        for rq in self.held.waiting(q, self.queues[q].lane) {
            let kind = Kind::of(cx.requests.get(rq));
            self.groups.unqueued(cx, old, kind, self.now);
            self.groups.queued(cx, level, kind, self.slot.is_on(level), self.now);
        }
        if busy {
            self.wf.activate(q, From::Now, self.now);
            self.busy[self.wf.class(q) as usize] += 1;
            self.queues[q].waiting_since = self.now;
        }
        self.recount(q);
        self.refile(q);
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
}
