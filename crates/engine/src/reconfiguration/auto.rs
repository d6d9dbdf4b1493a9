//! `scheduler=auto`: the policy that goes with the groups of a queue (decision 0034).
//!
//! The choice is a function of the tree of groups and of the device's default, so that it can be said before a queue is
//! built. [`Plan`](crate::Plan) has the rules for a queue in use.

use crate::GroupTree;
use blkmq_sched::{Factory, mclock};
use std::collections::BTreeSet;
use std::fmt;

/// The word that stands for the choice wherever a scheduler is named.
pub const AUTO: &str = "auto";

/// How the policy of a queue was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyChoice {
    /// By its name.
    #[default]
    Named,
    /// By [`AutoChoice`], again with each change of the groups.
    Auto,
}

/// The policy for a tree of groups, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct AutoChoice {
    /// The policy.
    pub scheduler: &'static Factory,
    /// The reason.
    pub reason: AutoReason,
}

/// Why a policy was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AutoReason {
    /// So many groups compete: all that have no groups below them, if these are two or more.
    Groups(usize),
    /// A group has a floor or a ceiling in device time, which only mclock keeps.
    Guarantee,
    /// No groups compete, and this is the device's default scheduler.
    Alone,
    /// Groups competed or had floors when the policy was chosen. It stays when they go.
    Before,
}

impl AutoChoice {
    /// Chooses mclock where two groups or more compete or a group has a floor or a ceiling in device time, and `default`, the
    /// default scheduler of the device, elsewhere. O(n log n) for n groups.
    #[must_use]
    pub fn of(groups: &GroupTree, default: &'static Factory) -> Self {
        let parents = BTreeSet::from_iter(groups.iter().map(|group| group.parent));
        let competing = groups.iter().filter(|group| !parents.contains(&group.id)).count();
        let mut guarantees = groups.iter().map(|group| group.promise.guarantee);
        let reason = if competing > 1 {
            AutoReason::Groups(competing)
        } else if guarantees.any(|it| !it.reserve.is_none() || !it.limit.is_none()) {
            AutoReason::Guarantee
        } else {
            return Self { scheduler: default, reason: AutoReason::Alone };
        };
        Self { scheduler: &mclock::FACTORY, reason }
    }
}

impl fmt::Display for AutoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, since ", self.scheduler.name)?;
        match self.reason {
            AutoReason::Groups(groups) => write!(f, "{groups} groups compete"),
            AutoReason::Guarantee => {
                f.write_str("a group has a floor (reserve_*) or a ceiling (limit_*) in device time")
            }
            AutoReason::Alone => {
                f.write_str("no groups compete and it is Linux's choice for such a device")
            }
            AutoReason::Before => {
                f.write_str("groups competed or had floors; queue/scheduler=auto chooses again")
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{GroupSpec, Promise};
    use blkmq_sched::none;

    fn chosen(groups: &[(&str, &str, &str)]) -> String {
        let spec = |&(name, parent, promise): &(&str, &str, &str)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            promise: Promise::default().set(promise).expect("right"),
            ..GroupSpec::default()
        };
        let tree = GroupTree::of(groups.iter().map(spec).collect()).expect("a tree");
        AutoChoice::of(&tree, &none::FACTORY).to_string()
    }

    #[test]
    fn groups_that_compete_have_mclock() {
        let alone = "none, since no groups compete and it is Linux's choice for such a device";
        assert_eq!(chosen(&[]), alone);
        assert_eq!(chosen(&[("a", "/", "")]), alone);
        assert_eq!(chosen(&[("a", "/", "p99_read=2ms")]), alone, "every scheduler keeps goals");
        assert_eq!(chosen(&[("a", "/", ""), ("b", "a", "")]), alone, "one has no group below it");
        let two = "mclock, since 2 groups compete";
        assert_eq!(chosen(&[("a", "/", ""), ("b", "/", "")]), two);
        assert_eq!(chosen(&[("a", "/", ""), ("b", "a", ""), ("c", "a", "")]), two);
    }

    #[test]
    fn a_floor_or_a_ceiling_in_device_time_needs_mclock() {
        for word in ["reserve_iops=100", "limit_percent=50", "reserve_iops=100 overcommit=1"] {
            let text = chosen(&[("a", "/", word)]);
            assert!(text.starts_with("mclock, since a group has a floor"), "{text}");
        }
    }
}
