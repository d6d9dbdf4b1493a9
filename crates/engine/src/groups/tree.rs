//! [`GroupTree`]: the groups of a queue, parents first, with their weights and limits.

use super::IoMax;
use crate::groups::Promise;
use crate::sync::GlobalCount;
use blkmq_core::{GroupId, GroupIndex};
use blkmq_sched::GroupChange;
use blkmq_sched::goals::Member;

/// The default weight of a group.
pub(crate) const DEFAULT_WEIGHT: u32 = 100;

/// A group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its id, which I/Os carry.
    pub id: GroupId,
    /// Its name, unique in its tree.
    pub name: String,
    /// Its parent.
    pub parent: GroupId,
    /// Its share among its siblings, 1 to 1000.
    pub weight: u32,
    /// Its limits.
    pub max: IoMax,
    /// Its floor and its ceiling, for schedulers that keep them.
    pub promise: Promise,
}

/// A tree of groups. The root always exists, without a name (or as `/`), weight or limits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupTree {
    /// Parents before children.
    groups: Vec<Group>,
    /// The index assigned last. Indices are assigned in a circle, so that a freed one is not reused soon.
    last: GroupIndex,
}

/// Converts a weight of cgroup v2's `io.weight`, 1 to 10000 with 100 as the default, to the range 1 to 1000: unchanged
/// up to 100, and proportionally above, as in systemd.
///
/// # Errors
/// If `io_weight` is out of range.
pub fn weight_of_io_weight(io_weight: u32) -> Result<u32, GroupError> {
    match io_weight {
        1..=100 => Ok(io_weight),
        101..=10_000 => Ok(100 + (io_weight - 100) * (1000 - 100) / (10_000 - 100)),
        _ => Err(GroupError::IoWeight(io_weight)),
    }
}

fn checked_weight(weight: u32) -> Result<u32, GroupError> {
    if (1..=MAX_WEIGHT).contains(&weight) { Ok(weight) } else { Err(GroupError::Weight(weight)) }
}

fn is_root(name: &str) -> bool {
    matches!(name, "" | "/")
}

/// The description of a group to be created. In a list, its parent may come later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSpec {
    /// Its name.
    pub name: String,
    /// The name of its parent; `/` for the root.
    pub parent: String,
    /// Its weight.
    pub weight: u32,
    /// Its limits.
    pub max: IoMax,
    /// Its floor and its ceiling.
    pub promise: Promise,
}

impl GroupSpec {
    /// The name of the group of a client called `label`, which may be any text: the label with underscores in place of
    /// slashes, or `default` for an empty one. If that is not a valid name, the result is the beginning of the label
    /// and a digest of all of it, the same on every machine.
    #[must_use]
    pub fn name_for(label: &str) -> String {
        let name = if label.is_empty() { "default".to_owned() } else { label.replace('/', "_") };
        // The tree knows which names are valid.
        let is_possible = GroupTree::default().add(&name, "/").is_ok();
        if is_possible { name } else { stand_in(label) }
    }
}

/// A valid name in place of `label`.
fn stand_in(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
    let start: String = label.chars().take(40).map(plain).collect();
    // FNV-1a: the same in every process and on every machine.
    let digest = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{start}-{digest:016x}")
}

impl Default for GroupSpec {
    /// Without a name, directly below the root, with a weight of 100, and without limits and guarantees.
    fn default() -> Self {
        Self {
            name: String::new(),
            parent: String::from("/"),
            weight: DEFAULT_WEIGHT,
            max: IoMax::default(),
            promise: Promise::default(),
        }
    }
}

impl GroupTree {
    /// Builds a tree of these groups, in any order.
    ///
    /// # Errors
    /// As [`add`](Self::add) and [`set_weight`](Self::set_weight); and if groups form a cycle.
    pub fn of(mut wanted: Vec<GroupSpec>) -> Result<Self, GroupError> {
        let mut tree = Self::default();
        while !wanted.is_empty() {
            let (ready, rest): (Vec<_>, Vec<_>) =
                wanted.into_iter().partition(|group| tree.find(&group.parent).is_ok());
            if ready.is_empty() {
                return Err(tree.without_parent(&rest));
            }
            for GroupSpec { name, parent, weight, max, promise } in ready {
                tree.add(&name, &parent)?;
                tree.set_weight(&name, weight)?;
                tree.set_max(&name, max)?;
                tree.set_promise(&name, promise)?;
            }
            wanted = rest;
        }
        Ok(tree)
    }

    /// Why no group of `rest` has a parent in the tree.
    fn without_parent(&self, rest: &[GroupSpec]) -> GroupError {
        let is_wanted = |name: &str| rest.iter().any(|group| group.name == name);
        match rest.iter().find(|group| !is_wanted(&group.parent)) {
            Some(orphan) => self.find(&orphan.parent).expect_err("it would be in the tree"),
            // The parent of each group is in the list, so the path up from any of them leads into a cycle.
            None => {
                let (name, parent) = (rest[0].name.clone(), rest[0].parent.clone());
                GroupError::Cycle { name, parent }
            }
        }
    }

    /// Every group but the root, parents before children.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Returns whether there is only the root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The group with that id; `None` for the root and for a removed group. O(groups).
    #[must_use]
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.at(id.index()).filter(|group| group.id == id)
    }

    /// The group that currently has that index, by which reports name it; `None` for the root and for a free index.
    /// O(groups).
    #[must_use]
    pub fn at(&self, index: GroupIndex) -> Option<&Group> {
        self.groups.iter().find(|group| group.id.index() == index)
    }

    /// The id of the group called `name`; `/` is the root. O(groups).
    ///
    /// # Errors
    /// If no group has that name.
    pub fn find(&self, name: &str) -> Result<GroupId, GroupError> {
        if is_root(name) {
            return Ok(GroupId::ROOT);
        }
        Ok(self.groups[self.position(name)?].id)
    }

    fn position(&self, name: &str) -> Result<usize, GroupError> {
        let at = self.groups.iter().position(|group| group.name == name);
        at.ok_or_else(|| GroupError::Unknown {
            name: name.into(),
            known: Vec::from_iter(self.groups.iter().map(|group| &*group.name)).join(", "),
        })
    }

    fn named(&mut self, name: &str) -> Result<&mut Group, GroupError> {
        if is_root(name) {
            return Err(GroupError::Root);
        }
        let at = self.position(name)?;
        Ok(&mut self.groups[at])
    }

    /// Adds a group below `parent`, with a weight of 100 and no limits.
    ///
    /// # Errors
    /// If the name is taken or invalid, the parent is unknown, or there are too many groups.
    pub fn add(&mut self, name: &str, parent: &str) -> Result<GroupId, GroupError> {
        let possible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(possible) {
            return Err(GroupError::Name(name.into()));
        }
        if self.groups.iter().any(|group| group.name == name) {
            return Err(GroupError::Exists(name.into()));
        }
        let parent = self.find(parent)?;
        static GROUPS: GlobalCount = GlobalCount::new(0);
        self.last = self.free_index().ok_or(GroupError::Full)?;
        let id = GroupId::new(self.last, GROUPS.take_one());
        let (weight, max) = (DEFAULT_WEIGHT, IoMax::default());
        let promise = Promise::default();
        self.groups.push(Group { id, name: name.into(), parent, weight, max, promise });
        Ok(id)
    }

    fn free_index(&self) -> Option<GroupIndex> {
        let last = self.last.0;
        let mut indices = (last + 1..=MAX_GROUPS).chain(1..=last).map(GroupIndex);
        indices.find(|index| self.at(*index).is_none())
    }

    /// Sets the weight of a group.
    ///
    /// # Errors
    /// If there is no such group, it is the root, or the weight is out of range.
    pub fn set_weight(&mut self, name: &str, weight: u32) -> Result<(), GroupError> {
        self.named(name)?.weight = checked_weight(weight)?;
        Ok(())
    }

    /// Sets the limits of a group.
    ///
    /// # Errors
    /// If there is no such group, or it is the root.
    pub fn set_max(&mut self, name: &str, max: IoMax) -> Result<(), GroupError> {
        self.named(name)?.max = max;
        Ok(())
    }

    /// Sets the floor and the ceiling of a group. The plan is refused if the scheduler cannot keep all floors of the
    /// tree.
    ///
    /// # Errors
    /// If there is no such group, or it is the root.
    pub fn set_promise(&mut self, name: &str, promise: Promise) -> Result<(), GroupError> {
        self.named(name)?.promise = promise;
        Ok(())
    }

    /// The parent of `id`; the root for itself and for a removed group.
    #[must_use]
    pub fn parent(&self, id: GroupId) -> GroupId {
        self.get(id).map_or(GroupId::ROOT, |group| group.parent)
    }

    /// Removes a group from the tree. Its waiting I/O, and I/O that still carries its id, belong to its parent.
    ///
    /// # Errors
    /// If there is no such group, it is the root, or it has children.
    pub fn remove(&mut self, name: &str) -> Result<(), GroupError> {
        let id = self.named(name)?.id;
        if let Some(child) = self.groups.iter().find(|group| group.parent == id) {
            let child = child.name.clone();
            return Err(GroupError::HasChildren { name: name.into(), child });
        }
        self.groups.retain(|group| group.id != id);
        Ok(())
    }

    /// Returns whether any group has a latency goal.
    #[must_use]
    pub fn has_goals(&self) -> bool {
        self.groups.iter().any(|group| !group.promise.goal.is_none())
    }

    /// The groups, for the controller of latency goals and the account of floors.
    pub(crate) fn members(&self) -> Vec<Member> {
        let member = |group: &Group| Member {
            group: group.id.index(),
            parent: group.parent.index(),
            weight: group.weight,
            goal: group.promise.goal,
            reserve: group.promise.guarantee.reserve,
        };
        self.groups.iter().map(member).collect()
    }

    /// The changes, in order, that turn this tree into `to`, for a scheduler.
    pub(crate) fn changes(&self, to: &Self) -> Vec<GroupChange> {
        let mut changes = Vec::new();
        // Children first.
        for gone in self.groups.iter().rev().filter(|group| to.get(group.id).is_none()) {
            changes.push(GroupChange::Removed { group: gone.id.index() });
        }
        for &Group { id, parent, weight, promise, .. } in &to.groups {
            let (group, parent) = (id.index(), parent.index());
            let guarantee = promise.guarantee;
            let old = self.get(id);
            match old {
                None => changes.push(GroupChange::Added { group, parent, weight }),
                Some(old) if old.weight != weight => {
                    changes.push(GroupChange::Weight { group, weight });
                }
                Some(_) => {}
            }
            if old.map(|old| old.promise.guarantee).unwrap_or_default() != guarantee {
                changes.push(GroupChange::Guarantee { group, guarantee });
            }
        }
        changes
    }
}

/// The most groups that a tree may have, without the root.
pub const MAX_GROUPS: u16 = 1023;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 1000;
/// The most characters in a name.
pub(super) const MAX_NAME: usize = 64;

/// Why a tree of groups cannot be changed as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// No group has that name; lists the names that exist.
    #[error("no group '{name}'{}", there_are(known))]
    Unknown {
        /// The unknown name.
        name: String,
        /// Every name, separated by commas.
        known: String,
    },
    /// The group was removed, and another group has its name.
    #[error("group '{0}' was removed, and another one has its name")]
    Gone(String),
    /// A group of that name exists.
    #[error("there is a group '{0}' already")]
    Exists(String),
    /// The name could be confused with other words.
    #[error(
        "'{0}' is no name for a group; accepted: 1 to {MAX_NAME} letters, digits, '.', '_' and '-'"
    )]
    Name(String),
    /// The weight is outside of the range of schedulers.
    #[error("weight is {0}; accepted are 1 to {MAX_WEIGHT}")]
    Weight(u32),
    /// The weight, as spelled by cgroup v2, is out of range.
    #[error("io.weight is {0}; accepted are 1 to 10000")]
    IoWeight(u32),
    /// The tree has the maximum number of groups.
    #[error("there are {MAX_GROUPS} groups already, which is the most")]
    Full,
    /// The group has children, which would lose their parent.
    #[error("group '{name}' has groups below it, '{child}' for one; remove those first")]
    HasChildren {
        /// The group.
        name: String,
        /// One of its children.
        child: String,
    },
    /// The root cannot be changed in this way.
    #[error("the root has no weight among siblings and cannot be removed")]
    Root,
    /// The parent is the group itself, or its descendant.
    #[error("group '{name}' cannot be below '{parent}', which is itself or below it")]
    Cycle {
        /// The group.
        name: String,
        /// The requested parent.
        parent: String,
    },
}

/// The groups that exist, as the end of a message.
fn there_are(known: &str) -> String {
    match known {
        "" => ": none is defined but the root, '/'".to_owned(),
        _ => format!("; there are: {known}, and the root, '/'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, parent: &str, weight: u32) -> GroupSpec {
        GroupSpec { name: name.into(), parent: parent.into(), weight, ..GroupSpec::default() }
    }

    fn refusal(result: Result<impl std::fmt::Debug, GroupError>) -> String {
        result.expect_err("it is not possible").to_string()
    }

    #[test]
    fn groups_are_found_by_name_and_by_id() {
        let mut tree = GroupTree::default();
        assert!(tree.is_empty() && tree.find("/") == Ok(GroupId::ROOT));
        let web = tree.add("web", "/").expect("free");
        let shop = tree.add("shop", "web").expect("free");
        tree.set_weight("shop", 300).expect("there");
        assert_eq!(
            (tree.find("shop"), tree.parent(shop), tree.parent(web)),
            (Ok(shop), web, GroupId::ROOT)
        );
        assert_eq!(tree.get(shop).map(|group| group.weight), Some(300));
        assert_eq!(tree.iter().count(), 2);
        tree.remove("shop").expect("nothing is below it");
        assert_eq!(tree.get(shop), None);
        let again = tree.add("shop", "/").expect("free");
        assert_ne!(again.index(), shop.index(), "an index rests before it is used again");
    }

    #[test]
    fn a_list_may_be_in_any_order() {
        let tree =
            GroupTree::of(vec![wanted("c", "b", 3), wanted("a", "/", 1), wanted("b", "a", 2)]);
        let tree = tree.expect("a tree");
        let names: Vec<_> = tree.iter().map(|group| (&*group.name, group.weight)).collect();
        assert_eq!(names, [("a", 1), ("b", 2), ("c", 3)]);
    }

    #[test]
    fn what_is_impossible_is_said() {
        let mut tree =
            GroupTree::of(vec![wanted("a", "/", 1), wanted("b", "a", 2)]).expect("a tree");
        assert!(refusal(tree.find("x")).contains("no group 'x'; there are: a, b"));
        assert!(refusal(GroupTree::default().find("x")).contains("none is defined"));
        assert!(refusal(tree.add("a", "/")).contains("already"));
        assert!(refusal(tree.add("a b", "/")).contains("letters, digits"));
        assert!(refusal(tree.add("", "/")).contains("letters"));
        assert!(refusal(tree.add("n".repeat(65).as_str(), "/")).contains("1 to 64"));
        assert!(refusal(tree.set_weight("a", 0)).contains("1 to 1000"));
        assert!(refusal(tree.set_weight("a", 1001)).contains("1 to 1000"));
        assert!(refusal(tree.set_weight("/", 5)).contains("root"));
        assert!(refusal(tree.remove("a")).contains("'b' for one"));
        let looped = vec![wanted("a", "b", 1), wanted("b", "c", 1), wanted("c", "a", 1)];
        assert!(refusal(GroupTree::of(looped)).contains("below"));
        assert!(refusal(GroupTree::of(vec![wanted("a", "a", 1)])).contains("below 'a'"));
        assert!(refusal(GroupTree::of(vec![wanted("a", "x", 1)])).contains("no group 'x'"));
    }

    #[test]
    fn every_label_has_a_name() {
        let long = "x".repeat(65);
        for (label, name) in [("gold", "gold"), ("vm/db", "vm_db"), ("", "default")] {
            assert_eq!(GroupSpec::name_for(label), name);
        }
        for label in ["/", "a b", "nbd://h:1/x?y={z}", "\n", &*long] {
            let name = GroupSpec::name_for(label);
            GroupTree::default().add(&name, "/").unwrap_or_else(|e| panic!("{label}: {name}: {e}"));
        }
        // Only the digest distinguishes these.
        assert_ne!(GroupSpec::name_for(&long), GroupSpec::name_for(&"x".repeat(66)));
    }

    #[test]
    fn there_is_a_most() {
        let mut tree = GroupTree::default();
        for n in 0..MAX_GROUPS {
            tree.add(&n.to_string(), "/").expect("there is room");
        }
        assert_eq!(tree.add("one-more", "/"), Err(GroupError::Full));
        tree.remove("7").expect("nothing is below it");
        let one_more = tree.add("one-more", "/").expect("there is room");
        assert_eq!(one_more.index(), GroupIndex(8));
    }

    #[test]
    fn weights_of_cgroup_v2_are_taken_in_proportion() {
        let weights = [1, 50, 100, 101, 1000, 5050, 10_000]
            .map(|w| weight_of_io_weight(w).expect("in range"));
        assert_eq!(weights, [1, 50, 100, 100, 181, 550, 1000]);
        assert_eq!(weight_of_io_weight(0), Err(GroupError::IoWeight(0)));
        assert_eq!(weight_of_io_weight(10_001), Err(GroupError::IoWeight(10_001)));
    }

    #[test]
    fn schedulers_hear_of_what_is_different_children_first() {
        let from =
            GroupTree::of(vec![wanted("a", "/", 1), wanted("b", "a", 2), wanted("c", "/", 3)]);
        let from = from.expect("a tree");
        let (a, b, c) = (GroupIndex(1), GroupIndex(3), GroupIndex(2));
        assert_eq!(from.find("b").map(GroupId::index), Ok(b));
        let mut to = from.clone();
        to.remove("b").expect("nothing is below it");
        to.remove("a").expect("nothing is below it any more");
        to.set_weight("c", 30).expect("there");
        let d = to.add("d", "c").expect("free").index();
        let expected = [
            GroupChange::Removed { group: b },
            GroupChange::Removed { group: a },
            GroupChange::Weight { group: c, weight: 30 },
            GroupChange::Added { group: d, parent: c, weight: 100 },
        ];
        assert_eq!(from.changes(&to), expected);
        assert_eq!(to.changes(&to), []);
        assert_eq!(GroupTree::default().changes(&from).len(), 3);
        // Another tree has other ids, although it looks the same.
        let alike = GroupTree::of(vec![wanted("a", "/", 1)]).expect("a tree");
        let again = GroupTree::of(vec![wanted("a", "/", 1)]).expect("a tree");
        let added = GroupChange::Added { group: a, parent: GroupIndex::ROOT, weight: 1 };
        assert_eq!(alike.changes(&again), [GroupChange::Removed { group: a }, added]);
    }
}
