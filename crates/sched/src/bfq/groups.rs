//! Groups as levels of the service tree: the mapping from groups to levels, and the counts of each level.
//!
//! The name of a removed group leads to its parent, for I/O that still arrives under it.

use super::is_sync;
use super::procs::Key;
use super::queue::Priority;
use super::wf2q::ROOT;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, IoPrio};

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
