//! Owners in groups, for scripts: the owner of an I/O, and changes of the tree of groups.

use super::step::{Step, account};
use crate::{GroupChange, Guarantee, Rate};
use alloc::vec::Vec;
use blkmq_core::{Class, GroupIndex, IoFlags, IoMeta, IoPrio, Op, Rng};

/// Groups at a time, without the root.
const GROUPS: usize = 5;
/// Names of groups; few, so that they are reused.
const NAMES: u64 = 9;

/// The owners and groups of a script.
pub(super) struct Tenants {
    rng: Rng,
    owners: u64,
    /// The group of each owner.
    homes: Vec<GroupIndex>,
    /// Existing groups, each with its parent.
    groups: Vec<(GroupIndex, GroupIndex)>,
    /// Of a thousand steps, this many change groups or owners.
    changes: u64,
    /// Remaining steps at the beginning in which groups are created.
    founding: u32,
    /// Of 8 I/Os, this many are async reads or sync writes.
    odd: u64,
    /// Of 8 owners, this many have a priority.
    ranked: u64,
    /// Requests are up to this many times eight sectors.
    large: u64,
}

impl Tenants {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7e4a_97b5);
        let owners = 1 + rng.below(12);
        let changes = if rng.chance(1, 4) { 0 } else { 5 + rng.below(40) };
        let founding = if changes == 0 { 0 } else { rng.below(40) as u32 };
        Self {
            owners,
            homes: alloc::vec![GroupIndex::ROOT; owners as usize],
            groups: Vec::new(),
            changes,
            founding,
            odd: rng.below(4),
            ranked: if rng.chance(1, 2) { 0 } else { rng.below(9) },
            large: 1 << rng.below(9),
            rng,
        }
    }

    /// Gives `meta` an owner.
    pub(super) fn claim(&mut self, meta: &mut IoMeta) {
        let owner = self.rng.below(self.owners);
        meta.owner = account(owner);
        meta.group = self.homes[owner as usize];
        if self.rng.chance(self.odd, 8) {
            meta.flags = if meta.op == Op::Read { IoFlags::NONE } else { IoFlags::SYNC };
        }
        if owner < self.ranked {
            let class = if self.rng.chance(1, 40) { Class::Idle } else { Class::BestEffort };
            // Now and then the owner changes its priority.
            let level = if self.rng.chance(1, 50) { self.rng.below(8) } else { owner };
            meta.ioprio = IoPrio::new(class, level as u16 % 8).unwrap_or_default();
        }
        meta.sectors = 8 * (1 + self.rng.below(self.large)) as u32;
    }

    /// Now and then, a step that only scripts with tenants have.
    pub(super) fn step(&mut self) -> Option<Step> {
        let owner = self.rng.below(self.owners);
        if self.founding > 0 {
            self.founding -= 1;
            self.homes[owner as usize] = self.any_group();
            return self.add().map(Step::Regroup);
        }
        if !self.rng.chance(self.changes, 1_000) {
            return None;
        }
        match self.rng.below(9) {
            0 => return Some(Step::Left(account(owner))),
            1 | 2 => {
                let mut meta = IoMeta::new(Op::Write, 8, 8);
                self.claim(&mut meta);
                return Some(Step::Admits(meta));
            }
            3 | 4 => {
                self.homes[owner as usize] = self.any_group();
                return None;
            }
            5 => self.weight(),
            6 => self.remove(),
            7 => self.guarantee(),
            _ => self.add(),
        }
        .map(Step::Regroup)
    }

    fn any_group(&mut self) -> GroupIndex {
        let at = self.rng.below(self.groups.len() as u64 + 1) as usize;
        self.groups.get(at).map_or(GroupIndex::ROOT, |(group, _)| *group)
    }

    fn add(&mut self) -> Option<GroupChange> {
        let group = GroupIndex(1 + self.rng.below(NAMES) as u16);
        let exists = self.groups.iter().any(|(other, _)| *other == group);
        if exists || self.groups.len() == GROUPS {
            return None;
        }
        let (parent, weight) = (self.any_group(), 1 + self.rng.below(1_000) as u32);
        self.groups.push((group, parent));
        Some(GroupChange::Added { group, parent, weight })
    }

    fn weight(&mut self) -> Option<GroupChange> {
        let group = self.any_group();
        let weight = 1 + self.rng.below(1_000) as u32;
        (group != GroupIndex::ROOT).then_some(GroupChange::Weight { group, weight })
    }

    fn guarantee(&mut self) -> Option<GroupChange> {
        let group = self.any_group();
        let guarantee = Guarantee { reserve: self.rate(), limit: self.rate() };
        (group != GroupIndex::ROOT).then_some(GroupChange::Guarantee { group, guarantee })
    }

    /// Often none; else up to some thousand I/Os or some MB a second, or up to twice the device.
    fn rate(&mut self) -> Rate {
        let bits = self.rng.below(24);
        let number = self.rng.below(1 << bits);
        match self.rng.below(6) {
            0 => Rate { iops: number >> 10, ..Rate::default() },
            1 => Rate { bps: number, ..Rate::default() },
            2 => Rate { percent: self.rng.below(200) as u32, ..Rate::default() },
            _ => Rate::default(),
        }
    }

    /// Removes a group without groups below it. Its owners keep naming it for a while.
    fn remove(&mut self) -> Option<GroupChange> {
        let leaf = |at: &usize| self.groups.iter().all(|(_, parent)| *parent != self.groups[*at].0);
        let at = (0..self.groups.len()).find(leaf)?;
        let (group, _) = self.groups.swap_remove(at);
        Some(GroupChange::Removed { group })
    }
}
