//! The part of the device that each group has, and its part by weight: whether a goal is missed for its own depth.
//!
//! A tenant that has at least its share, and has so much outstanding that this would take longer than its goal with all of
//! the share, waits for itself. Taking from others would give it more than it is due, for want of a shorter queue.

use super::{DEFAULT_WEIGHT, Member};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Nanos};

#[derive(Clone, Copy, Default)]
struct Group {
    parent: u16,
    weight: u32,
    used: Used,
    /// Like `used`, but with the groups below it.
    all: Used,
}

/// The I/Os of a window.
#[derive(Clone, Copy, Default)]
struct Used {
    cost: u64,
    ios: u64,
}

impl Used {
    fn add(&mut self, cost: u64, ios: u64) {
        self.cost = self.cost.saturating_add(cost);
        self.ios += ios;
    }
}

#[derive(Default)]
pub(super) struct Shares {
    /// By number. The root has the I/Os of no group, as a group beside those below it.
    groups: Vec<Group>,
    /// The numbers, parents before children.
    order: Vec<u16>,
    /// The cost a second of all, when nothing was taken.
    free: u64,
    lately: u64,
}

impl Shares {
    pub(super) fn set(&mut self, members: &[Member]) {
        let last = members.iter().map(|member| usize::from(member.group.0)).max().unwrap_or(0);
        self.groups.clear();
        self.groups.resize(last + 1, Group { weight: DEFAULT_WEIGHT, ..Group::default() });
        self.order = members.iter().map(|member| member.group.0).collect();
        for member in members {
            let group = &mut self.groups[usize::from(member.group.0)];
            (group.parent, group.weight) = (member.parent.0, member.weight);
        }
    }

    /// So many I/Os of `group` have this cost together.
    pub(super) fn charge(&mut self, group: GroupIndex, cost: u64, ios: u32) {
        let at = if usize::from(group.0) < self.groups.len() { usize::from(group.0) } else { 0 };
        self.groups[at].used.add(cost, ios.into());
    }

    /// The window is over: adds it up.
    pub(super) fn measure(&mut self, elapsed: Nanos, is_free: bool) {
        self.groups.iter_mut().for_each(|group| group.all = group.used);
        for at in self.order.iter().rev() {
            let Group { parent, all, .. } = self.groups[usize::from(*at)];
            self.groups[usize::from(parent)].all.add(all.cost, all.ios);
        }
        self.lately = self.a_second(self.groups[0].all.cost, elapsed);
        if is_free {
            self.free = self.lately;
        }
    }

    /// The next window begins.
    pub(super) fn restart(&mut self) {
        self.groups.iter_mut().for_each(|group| group.used = Used::default());
    }

    fn a_second(&self, cost: u64, elapsed: Nanos) -> u64 {
        let second = u128::from(cost) * 1_000_000_000 / u128::from(elapsed.0.max(1));
        u64::try_from(second).unwrap_or(u64::MAX)
    }

    /// The cost a second that a group is due by weight, beside those that had something in the window.
    fn due(&self, group: GroupIndex) -> u128 {
        let mut due = u128::from(self.lately.max(self.free));
        let mut at = group.0;
        while at != 0 {
            let Group { parent, weight, .. } = self.groups[usize::from(at)];
            let rival = |it: &&u16| self.groups[usize::from(**it)].parent == parent && **it != at;
            let others = self.order.iter().filter(rival).map(|it| self.groups[usize::from(*it)]);
            let others: u64 =
                others.filter(|it| it.all.cost > 0).map(|it| u64::from(it.weight)).sum();
            let above = self.groups[usize::from(parent)];
            let others = others + if above.used.cost > 0 { u64::from(DEFAULT_WEIGHT) } else { 0 };
            due = due * u128::from(weight) / u128::from(u64::from(weight) + others).max(1);
            at = parent;
        }
        due
    }

    /// Returns whether `group` has its share and a queue of its own that would take longer than `goal` with all of the share,
    /// if an I/O takes `mean` nanoseconds. One I/O at a time is no queue. O(groups) for each group above it.
    pub(super) fn explain(
        &self,
        group: GroupIndex,
        elapsed: Nanos,
        mean: u64,
        goal: Nanos,
    ) -> bool {
        let Some(own) = self.groups.get(usize::from(group.0)) else { return false };
        let has = u128::from(self.a_second(own.all.cost, elapsed));
        let due = self.due(group);
        // Little's law: the I/Os of a second, times the time of each, are outstanding.
        let queues = 2 * u128::from(own.all.ios) * u128::from(mean) > 3 * u128::from(elapsed.0);
        queues && has * 10 >= due * 9 && has * u128::from(mean) > due * u128::from(goal.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, Rate};

    const SECOND: Nanos = Nanos::from_secs(1);
    const MS: u64 = 1_000_000;

    fn shares(groups: &[(u16, u16, u32)]) -> Shares {
        let member = |&(group, parent, weight): &(u16, u16, u32)| Member {
            group: GroupIndex(group),
            parent: GroupIndex(parent),
            weight,
            goal: Goal::default(),
            reserve: Rate::default(),
        };
        let mut shares = Shares::default();
        shares.set(&Vec::from_iter(groups.iter().map(member)));
        shares
    }

    fn explains(shares: &mut Shares, used: [u64; 2], mean: u64) -> bool {
        shares.charge(GroupIndex(1), used[0], 4_000);
        shares.charge(GroupIndex(2), used[1], 4_000);
        shares.measure(SECOND, true);
        shares.restart();
        shares.explain(GroupIndex(1), SECOND, mean, Nanos(MS))
    }

    #[test]
    fn a_tenant_with_its_share_waits_for_itself() {
        let mut equal = shares(&[(1, 0, 100), (2, 0, 100)]);
        assert!(explains(&mut equal, [50, 50], 13 * MS / 10));
        assert!(explains(&mut equal, [46, 54], 13 * MS / 10), "nearly");
        assert!(!explains(&mut equal, [10, 90], 13 * MS / 10), "it has less than its share");
        assert!(!explains(&mut equal, [50, 50], MS / 2), "its backlog is short");
        let mut heavy = shares(&[(1, 0, 900), (2, 0, 100)]);
        assert!(!explains(&mut heavy, [50, 50], 13 * MS / 10), "it is due more");
        assert!(explains(&mut heavy, [90, 10], 13 * MS / 10));
        assert!(explains(&mut equal, [50, 0], 2 * MS), "it is alone");
        equal.charge(GroupIndex(1), 50, 10);
        equal.measure(SECOND, true);
        assert!(!equal.explain(GroupIndex(1), SECOND, 100 * MS, Nanos(MS)), "one I/O at a time");
    }

    #[test]
    fn what_the_device_does_when_nothing_is_taken_is_shared() {
        let mut equal = shares(&[(1, 0, 100), (2, 0, 100)]);
        explains(&mut equal, [10, 90], MS);
        equal.charge(GroupIndex(1), 10, 4_000);
        equal.charge(GroupIndex(2), 2, 4_000);
        equal.measure(SECOND, false);
        assert!(!equal.explain(GroupIndex(1), SECOND, 2 * MS, Nanos(MS)), "10 of 100, not of 12");
    }

    #[test]
    fn a_share_is_one_of_the_group_above() {
        let mut tree = shares(&[(3, 0, 100), (2, 0, 300), (1, 3, 100), (4, 3, 300)]);
        tree.charge(GroupIndex(4), 10, 4_000);
        assert!(explains(&mut tree, [10, 140], 2 * MS), "a quarter of a quarter of 160");
        tree.charge(GroupIndex(4), 10, 4_000);
        assert!(!explains(&mut tree, [5, 145], 2 * MS));
    }
}
