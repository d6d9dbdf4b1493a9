//! Why a tree of groups cannot be changed as asked.

use super::bounds::{MAX_GROUPS, MAX_NAME, MAX_WEIGHT};
use std::fmt;

/// Why a tree of groups cannot be changed as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// No group has that name; lists the names that exist.
    Unknown {
        /// The unknown name.
        name: String,
        /// Every name, separated by commas.
        known: String,
    },
    /// The group was removed, and another group has its name now.
    Gone(String),
    /// A group of that name exists.
    Exists(String),
    /// A name that could be confused with other words.
    Name(String),
    /// A weight outside the range of schedulers.
    Weight(u32),
    /// A weight in the spelling of cgroup v2, outside its range.
    IoWeight(u32),
    /// The tree has as many groups as it can have.
    Full,
    /// Other groups are below it, which would lose their parent.
    HasChildren {
        /// The group.
        name: String,
        /// One below it.
        child: String,
    },
    /// The root cannot be changed in this way.
    Root,
    /// The parent is the group itself, or below it.
    Cycle {
        /// The group.
        name: String,
        /// The parent that was asked for.
        parent: String,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, known } if known.is_empty() => {
                write!(f, "no group '{name}': none is defined but the root, '/'")
            }
            Self::Unknown { name, known } => {
                write!(f, "no group '{name}'; there are: {known}, and the root, '/'")
            }
            Self::Gone(name) => {
                write!(f, "group '{name}' was removed, and another one has its name")
            }
            Self::Exists(name) => write!(f, "there is a group '{name}' already"),
            Self::Name(name) => write!(
                f,
                "'{name}' is no name for a group; accepted: 1 to {MAX_NAME} letters, digits, '.', '_' and '-'"
            ),
            Self::Weight(weight) => write!(f, "weight is {weight}; accepted are 1 to {MAX_WEIGHT}"),
            Self::IoWeight(weight) => write!(f, "io.weight is {weight}; accepted are 1 to 10000"),
            Self::Full => write!(f, "there are {MAX_GROUPS} groups already, which is the most"),
            Self::HasChildren { name, child } => {
                write!(
                    f,
                    "group '{name}' has groups below it, '{child}' for one; remove those first"
                )
            }
            Self::Root => {
                f.write_str("the root has no weight among siblings and cannot be removed")
            }
            Self::Cycle { name, parent } => {
                write!(f, "group '{name}' cannot be below '{parent}', which is itself or below it")
            }
        }
    }
}

impl std::error::Error for GroupError {}
