//! The floors of groups, of which nothing is taken.
//!
//! If a group, or one above it, has had less than its floor lately, it may have its next request whatever is taken from
//! its tier. A floor is a part of the device's time, as policies count it. Here a request counts by the device's
//! figures for reads, and never for more than the policy charges, so a group gets rather too much than too little.

use super::Member;
use crate::Capacity;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op, SECTOR_SIZE};

/// The unused time of a floor that may be used later.
const LATE: Nanos = Nanos::from_millis(5);
/// The whole device, in millionths.
const MILLION: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// The longest time for which a request uses up a floor.
const LONGEST: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Default)]
struct Group {
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
    groups: Vec<Group>,
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
        self.groups.resize(last + 1, Group::default());
        self.with.clear();
        for member in members {
            let parent = member.parent.0;
            let floor = self.capacity.map_or(0, |of| of.millionths(&member.reserve));
            let floor = floor.min(MILLION.into()) as u64;
            let is_covered = floor > 0 || self.groups[usize::from(parent)].is_covered;
            let at = usize::from(member.group.0);
            let old = before.get(at).copied().unwrap_or_default();
            self.groups[at] = Group { parent, floor, is_covered, ..old };
            if floor > 0 {
                self.with.push(member.group.0);
            }
        }
    }

    fn group(&self, group: GroupIndex) -> Group {
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
