//! Why a tree of groups cannot be changed as asked.

use super::tree::{MAX_GROUPS, MAX_NAME, MAX_WEIGHT};
use std::fmt;

/// Why a tree of groups cannot be changed as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// No group of that name; with the names that there are.
    Unknown {
        /// What was asked for.
        name: String,
        /// Every name, separated by commas.
        known: String,
    },
    /// It was removed; a group of that name is another one.
    Gone(String),
    /// There is one of that name.
    Exists(String),
    /// A name that could not be told from other words.
    Name(String),
    /// A weight beyond what schedulers take.
    Weight(u32),
    /// As cgroup v2 spells it, and beyond its range.
    IoWeight(u32),
    /// As many groups as there can be.
    Full,
    /// It has groups below it, which would hang in the air.
    HasChildren {
        /// The group.
        name: String,
        /// One below it.
        child: String,
    },
    /// The root cannot be changed in this way.
    Root,
    /// Its parent is itself, or below it.
    Cycle {
        /// The group.
        name: String,
        /// What was to be its parent.
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
