//! The part of the device that each group has and is due: by weight, and by floor.
//!
//! The part by weight decides whether a goal is missed because of the group's own depth, and how much a goal may take
//! from others. A tenant waits for itself if it has at least its share, and so much outstanding that all of the share
//! would take longer than its goal for that. Taking from others would give it more than it is due, in place of a
//! shorter queue.
//!
//! Nothing is taken of a floor. If a group, or one above it, has had less than its floor lately, it may have its next
//! request whatever is taken from its tier. A floor is a part of the device's time, as policies count it. Here a
//! request counts by the device's figures for reads, and never for more than the policy charges, so a group gets rather
//! too much than too little.

use super::{DEFAULT_WEIGHT, Member};
use crate::Capacity;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op, SECTOR_SIZE};

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Default)]
struct ShareGroup {
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
    groups: Vec<ShareGroup>,
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
        self.groups
            .resize(last + 1, ShareGroup { weight: DEFAULT_WEIGHT, ..ShareGroup::default() });
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
            let ShareGroup { parent, weight, waits, all, .. } = self.groups[usize::from(*at)];
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
            let ShareGroup { parent, weight, waits, all, .. } = self.groups[usize::from(*at)];
            let ShareGroup { due, rivals, .. } = self.groups[usize::from(parent)];
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

/// The unused time of a floor that may be used later.
const LATE: Nanos = Nanos::from_millis(5);
/// The whole device, in millionths.
const MILLION: u64 = 1_000_000;
/// The longest time for which a request uses up a floor.
const LONGEST: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Default)]
struct FloorGroup {
    parent: u16,
    /// Millionths of the device; 0 without a floor.
    floor: u64,
    /// It, or a group above it, has a floor.
    is_covered: bool,
    /// The floor is used up until this time.
    next: Instant,
    /// The end sector of its last request. A request that begins there is sequential.
    end: u64,
}

#[derive(Default)]
pub(super) struct Floors {
    /// The groups by number.
    groups: Vec<FloorGroup>,
    /// The numbers of groups with a floor.
    with: Vec<u16>,
    capacity: Option<Capacity>,
    /// A group with a floor has had I/Os since the last look.
    used: bool,
}

impl Floors {
    pub(super) fn set(&mut self, members: &[Member], capacity: Option<Capacity>) {
        self.capacity = capacity;
        let last = members.iter().map(|member| usize::from(member.group.0)).max().unwrap_or(0);
        let before = core::mem::take(&mut self.groups);
        self.groups.resize(last + 1, FloorGroup::default());
        self.with.clear();
        for member in members {
            let parent = member.parent.0;
            let floor = self.capacity.map_or(0, |of| of.millionths(&member.reserve));
            let floor = floor.min(MILLION.into()) as u64;
            let is_covered = floor > 0 || self.groups[usize::from(parent)].is_covered;
            let at = usize::from(member.group.0);
            let old = before.get(at).copied().unwrap_or_default();
            self.groups[at] = FloorGroup { parent, floor, is_covered, ..old };
            if floor > 0 {
                self.with.push(member.group.0);
            }
        }
    }

    fn group(&self, group: GroupIndex) -> FloorGroup {
        self.groups.get(usize::from(group.0)).copied().unwrap_or_default()
    }

    /// Returns whether the group, or one above it, has a floor.
    pub(super) fn covers(&self, group: GroupIndex) -> bool {
        self.group(group).is_covered
    }

    /// Returns whether a floor entitles `group` to a request at `now`, whatever is taken from its tier.
    pub(super) fn owes(&self, group: GroupIndex, now: Instant) -> bool {
        let mut at = self.group(group);
        while at.is_covered {
            if at.floor > 0 && at.next <= now {
                return true;
            }
            at = self.groups[usize::from(at.parent)];
        }
        false
    }

    /// The earliest time after `now` at which a floor entitles a group to a request; `None` if there is none.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let times = self.with.iter().map(|group| self.groups[usize::from(*group)].next);
        times.filter(|next| *next > now).min()
    }

    /// Charges a request that has arrived, or an I/O that `joined` one.
    pub(super) fn charge(&mut self, io: &IoMeta, now: Instant, joined: bool) {
        if !self.covers(io.group) {
            return;
        }
        self.used = true;
        let mut at = usize::from(io.group.0);
        let is_next = joined || io.sector == self.groups[at].end;
        self.groups[at].end = io.end();
        let time = self.price(io, is_next);
        while self.groups[at].is_covered {
            let group = &mut self.groups[at];
            if group.floor > 0 {
                let from =
                    group.next.max(Instant::from_nanos(now.as_nanos().saturating_sub(LATE.0)));
                let gap = u128::from(time) * u128::from(MILLION) / u128::from(group.floor);
                group.next = from + Nanos(gap.min(LONGEST.0.into()) as u64);
            }
            at = usize::from(group.parent);
        }
    }

    /// The device time of a request, in nanoseconds; zero without a capacity.
    fn price(&self, io: &IoMeta, is_next: bool) -> u64 {
        let Some(Capacity { iops, bps, .. }) = self.capacity else { return 0 };
        let bytes = match io.op {
            Op::Read | Op::Write => u64::from(io.sectors) * u64::from(SECTOR_SIZE),
            Op::Discard | Op::WriteZeroes | Op::Flush => 0,
        };
        let moved = u128::from(bytes) * u128::from(SECOND) / u128::from(bps.max(1));
        let begun = if is_next { 0 } else { SECOND / iops.max(1) };
        begun.max(u64::try_from(moved).unwrap_or(u64::MAX))
    }

    /// Returns whether a group with a floor has had I/Os since the last call.
    pub(super) fn take_used(&mut self) -> bool {
        core::mem::take(&mut self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, Rate};

    const WINDOW: Nanos = Nanos(SECOND);
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
        shares.measure(WINDOW, true);
        shares.restart(WINDOW, true);
        shares.explain(GroupIndex(1), WINDOW, mean, Nanos(MS))
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
        equal.measure(WINDOW, true);
        assert!(!equal.explain(GroupIndex(1), WINDOW, 100 * MS, Nanos(MS)), "one I/O at a time");
    }

    #[test]
    fn what_the_device_does_when_nothing_is_taken_is_shared() {
        let mut equal = shares(&[(1, 0, 100), (2, 0, 100)]);
        explains(&mut equal, [10, 90], MS);
        equal.charge(GroupIndex(1), 10, 4_000);
        equal.charge(GroupIndex(2), 2, 4_000);
        equal.measure(WINDOW, false);
        assert!(!equal.explain(GroupIndex(1), WINDOW, 2 * MS, Nanos(MS)), "10 of 100, not of 12");
    }

    #[test]
    fn a_share_is_one_of_the_group_above() {
        let mut tree = shares(&[(3, 0, 100), (2, 0, 300), (1, 3, 100), (4, 3, 300)]);
        tree.charge(GroupIndex(4), 10, 4_000);
        assert!(explains(&mut tree, [10, 140], 2 * MS), "a quarter of a quarter of 160");
        tree.charge(GroupIndex(4), 10, 4_000);
        assert!(!explains(&mut tree, [5, 145], 2 * MS));
    }

    const CAPACITY: Capacity = Capacity { iops: 1_000, bps: 100_000_000, safe_percent: 90 };

    fn floors(tree: &[(u16, u16, u64)]) -> Floors {
        let member = |&(group, parent, iops): &(u16, u16, u64)| Member {
            group: GroupIndex(group),
            parent: GroupIndex(parent),
            weight: 100,
            goal: Goal::default(),
            reserve: Rate { iops, ..Rate::default() },
        };
        let mut floors = Floors::default();
        floors.set(&Vec::from_iter(tree.iter().map(member)), Some(CAPACITY));
        floors
    }

    /// The number of requests in a second of a group that asks each microsecond.
    fn had(floors: &mut Floors, group: u16, sectors: u32, step: u64) -> u64 {
        let mut had = 0;
        for at in (0..SECOND).step_by(1_000) {
            let now = Instant::from_nanos(10 * SECOND + at);
            if floors.owes(GroupIndex(group), now) {
                let io = IoMeta::new(Op::Read, had * step, sectors);
                floors.charge(&IoMeta { group: GroupIndex(group), ..io }, now, false);
                had += 1;
            }
        }
        had
    }

    #[test]
    fn a_group_has_its_floor_and_no_more() {
        let within = |had: u64, due: u64| assert!((due..=due + 7).contains(&had), "{had} of {due}");
        within(had(&mut floors(&[(1, 0, 400)]), 1, 8, 1_000), 400);
        // The device does 100 reads of 1 MB in a second.
        within(had(&mut floors(&[(1, 0, 400)]), 1, 1_953, 9_999), 40);
        // Sequential requests take the time of their bytes alone, so more of them are admitted.
        assert!(had(&mut floors(&[(1, 0, 400)]), 1, 8, 8) > 9_000);
        assert_eq!(had(&mut floors(&[(1, 0, 0)]), 1, 8, 1_000), 0, "it has none");
    }

    #[test]
    fn what_is_below_a_group_has_the_floor_of_the_group() {
        let mut tree = floors(&[(1, 0, 400), (2, 1, 0), (3, 1, 0), (4, 0, 0)]);
        assert!(
            tree.covers(GroupIndex(2))
                && !tree.covers(GroupIndex(4))
                && !tree.covers(GroupIndex(99))
        );
        let all = had(&mut tree, 2, 8, 1_000) + had(&mut tree, 3, 8, 1_000);
        assert!((400..=410).contains(&all), "together, in one second: {all}");
        assert!(tree.take_used() && !tree.take_used());
        assert!(tree.next(Instant::ZERO).is_some());
    }
}
