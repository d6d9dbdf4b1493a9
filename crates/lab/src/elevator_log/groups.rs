//! The tree of groups that a log tells its policy of.
//!
//! An engine changes the tree one group at a time and never leaves a child without its parent; policies rely on that.
//! The bytes of a log may say anything.

use blkmq_core::GroupIndex;
use blkmq_engine::{MAX_GROUPS, MAX_WEIGHT};
use blkmq_sched::GroupChange;
use std::collections::BTreeMap;

/// The groups that exist after the calls so far, each with its parent. The root is not in it.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<GroupIndex, GroupIndex>);

impl Groups {
    /// Checks that an engine could have made this change. The error says why not. O(groups) for a removal.
    pub(super) fn check(&self, change: GroupChange) -> Result<(), String> {
        match change {
            GroupChange::Added { group, parent, weight } => {
                if self.exists(group) {
                    return Err(format!("{group:?} is added, which exists already"));
                }
                if self.0.len() >= usize::from(MAX_GROUPS) {
                    return Err(format!("{group:?} is added to {MAX_GROUPS} groups, the most"));
                }
                self.known(parent)?;
                weighs(weight)
            }
            GroupChange::Weight { group, weight } => {
                self.known(group)?;
                weighs(weight)
            }
            GroupChange::Guarantee { group, .. } => self.known(group),
            GroupChange::Removed { group: GroupIndex::ROOT } => {
                Err("the root is removed".to_owned())
            }
            GroupChange::Removed { group } => {
                self.known(group)?;
                match self.0.iter().find(|(_, parent)| **parent == group) {
                    Some((child, _)) => Err(format!("{group:?} is removed before its {child:?}")),
                    None => Ok(()),
                }
            }
        }
    }

    /// Makes the change.
    pub(super) fn follow(&mut self, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, .. } => {
                self.0.insert(group, parent);
            }
            GroupChange::Removed { group } => {
                self.0.remove(&group);
            }
            GroupChange::Weight { .. } | GroupChange::Guarantee { .. } => {}
        }
    }

    fn exists(&self, group: GroupIndex) -> bool {
        group == GroupIndex::ROOT || self.0.contains_key(&group)
    }

    fn known(&self, group: GroupIndex) -> Result<(), String> {
        if self.exists(group) { Ok(()) } else { Err(format!("there is no {group:?}")) }
    }
}

fn weighs(weight: u32) -> Result<(), String> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        return Ok(());
    }
    Err(format!("a weight of {weight}; weights are 1 to {MAX_WEIGHT}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_sched::Guarantee;

    fn added(group: u16, parent: u16, weight: u32) -> GroupChange {
        GroupChange::Added { group: GroupIndex(group), parent: GroupIndex(parent), weight }
    }

    fn removed(group: u16) -> GroupChange {
        GroupChange::Removed { group: GroupIndex(group) }
    }

    #[test]
    fn a_change_that_no_engine_makes_is_said_to_be_one() {
        let mut groups = Groups::default();
        for change in [added(1, 0, 100), added(2, 1, 1), added(3, 1, 1000), removed(3)] {
            assert_eq!(groups.check(change), Ok(()));
            groups.follow(change);
        }
        let guarantee = |group| GroupChange::Guarantee {
            group: GroupIndex(group),
            guarantee: Guarantee::default(),
        };
        assert_eq!(groups.check(guarantee(2)), Ok(()));
        let weight = |group, weight| GroupChange::Weight { group: GroupIndex(group), weight };
        let wrong = [
            (added(0, 0, 100), "exists already"),
            (added(2, 0, 100), "exists already"),
            (added(4, 3, 100), "no GroupIndex(3)"),
            (added(4, 4, 100), "no GroupIndex(4)"),
            (added(4, 0, 0), "weight of 0"),
            (weight(2, 1001), "weight of 1001"),
            (weight(3, 1), "no GroupIndex(3)"),
            (guarantee(3), "no GroupIndex(3)"),
            (removed(0), "the root"),
            (removed(1), "before its GroupIndex(2)"),
            (removed(3), "no GroupIndex(3)"),
        ];
        for (change, part) in wrong {
            let error = groups.check(change).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn there_are_no_more_groups_than_an_engine_has() {
        let mut groups = Groups::default();
        (1..=MAX_GROUPS).for_each(|group| groups.follow(added(group, group - 1, 100)));
        let error = groups.check(added(MAX_GROUPS + 1, 0, 100)).expect_err("one too many");
        assert!(error.contains("1023"), "{error}");
    }
}
