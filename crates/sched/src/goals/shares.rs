//! The part of the device that each group has, and its part by weight. They decide whether a goal is missed because of
//! the group's own depth, and how much a goal may take from others.
//!
//! A tenant waits for itself if it has at least its share, and so much outstanding that all of the share would take
//! longer than its goal for that. Taking from others would give it more than it is due, in place of a shorter queue.

use super::{DEFAULT_WEIGHT, Member};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Nanos};

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Default)]
struct Group {
    parent: u16,
    weight: u32,
    used: Used,
    /// Like `used`, with the groups below it.
    all: Used,
    /// An I/O of it, or of a group below it, has not ended.
    waits: bool,
    /// The sum of the weights of its own I/O and of the groups below it, of those that had I/Os in the window or wait.
    rivals: u64,
    /// The cost a second that it is due by weight, with the groups below it.
    due: u64,
}

/// The I/Os of a window, and their cost in bytes.
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
    /// The groups by number. I/O of no group counts as the root's own, beside the groups below it.
    groups: Vec<Group>,
    /// The numbers, parents before children.
    order: Vec<u16>,
    /// The cost a second of all groups while nothing was taken: in the last such window, and usually.
    free: u64,
    usual: u64,
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

    /// Counts `ios` I/Os of `group`, which cost `cost` together.
    pub(super) fn charge(&mut self, group: GroupIndex, cost: u64, ios: u32) {
        let at = if usize::from(group.0) < self.groups.len() { usize::from(group.0) } else { 0 };
        self.groups[at].used.add(cost, ios.into());
    }

    /// Notes that an I/O of `group` has not ended.
    pub(super) fn wait(&mut self, group: GroupIndex) {
        if let Some(group) = self.groups.get_mut(usize::from(group.0)) {
            group.waits = true;
        }
    }

    /// Adds up the window and the groups that [wait](Self::wait). Nothing is taken in it if `is_free`. O(groups).
    pub(super) fn measure(&mut self, elapsed: Nanos, is_free: bool) {
        for group in &mut self.groups {
            group.all = group.used;
            group.rivals = if group.used.cost > 0 { DEFAULT_WEIGHT.into() } else { 0 };
        }
        for at in self.order.iter().rev() {
            let Group { parent, weight, waits, all, .. } = self.groups[usize::from(*at)];
            let above = &mut self.groups[usize::from(parent)];
            above.all.add(all.cost, all.ios);
            above.waits |= waits;
            above.rivals += if waits || all.cost > 0 { weight.into() } else { 0 };
        }
        let lately = self.a_second(self.groups[0].all.cost, elapsed);
        if is_free {
            self.free = lately;
        }
        self.groups[0].due = lately.max(self.free);
        for at in &self.order {
            let Group { parent, weight, waits, all, .. } = self.groups[usize::from(*at)];
            let Group { due, rivals, .. } = self.groups[usize::from(parent)];
            let is_rival = waits || all.cost > 0;
            self.groups[usize::from(*at)].due =
                if is_rival { part(due, weight.into(), rivals) } else { 0 };
        }
        self.groups.iter_mut().for_each(|group| group.waits = false);
    }

    /// Begins the next window, after one of this length. If nothing was taken in it, it counts for the usual rate, by
    /// its length in proportion to a second.
    pub(super) fn restart(&mut self, elapsed: Nanos, was_free: bool) {
        if was_free {
            let lately =
                self.a_second(self.groups.first().map_or(0, |root| root.all.cost), elapsed);
            let before = if self.usual == 0 { lately } else { self.usual };
            let [old, new] = [(before, SECOND), (lately, elapsed.0)]
                .map(|(rate, weight)| u128::from(rate) * u128::from(weight));
            self.usual = ((old + new) / u128::from(SECOND + elapsed.0)) as u64;
        }
        self.groups.iter_mut().for_each(|group| group.used = Used::default());
    }

    /// The cost a second that the device usually does while nothing is taken.
    pub(super) fn usual(&self) -> u64 {
        self.usual
    }

    fn a_second(&self, cost: u64, elapsed: Nanos) -> u64 {
        let second = u128::from(cost) * 1_000_000_000 / u128::from(elapsed.0.max(1));
        u64::try_from(second).unwrap_or(u64::MAX)
    }

    /// Shows each group that had I/Os of its own in the window, with the cost a second that these are due by weight, of
    /// the usual cost of the device. O(groups).
    pub(super) fn due(&self, mut show: impl FnMut(GroupIndex, u64)) {
        let whole = self.groups.first().map_or(0, |root| root.due);
        for (at, group) in (0..).zip(&self.groups).filter(|(_, group)| group.used.cost > 0) {
            let own = part(group.due, DEFAULT_WEIGHT.into(), group.rivals);
            show(GroupIndex(at), part(own, self.usual, whole));
        }
    }

    /// Returns whether `group` has its share, and a queue that would take longer than `goal` with all of the share. An
    /// I/O takes `mean` nanoseconds. One I/O at a time is no queue. O(1).
    pub(super) fn explain(
        &self,
        group: GroupIndex,
        elapsed: Nanos,
        mean: u64,
        goal: Nanos,
    ) -> bool {
        let Some(own) = self.groups.get(usize::from(group.0)) else { return false };
        let has = u128::from(self.a_second(own.all.cost, elapsed));
        let due = u128::from(own.due);
        // Little's law: the number outstanding is the I/Os of a second times the time of each.
        let queues = 2 * u128::from(own.all.ios) * u128::from(mean) > 3 * u128::from(elapsed.0);
        queues && has * 10 >= due * 9 && has * u128::from(mean) > due * u128::from(goal.0)
    }
}

/// The part of `whole` that `some` is of `all`.
fn part(whole: u64, some: u64, all: u64) -> u64 {
    let part = u128::from(whole) * u128::from(some) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, Rate};

    const SECOND: Nanos = Nanos(super::SECOND);
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
        shares.restart(SECOND, true);
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
