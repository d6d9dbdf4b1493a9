//! The forms of an attribute's value: how it is got, which values it accepts, and what setting it does to a plan.

use super::Snapshot;
use crate::reconfiguration::plan::Plan;
use std::ops::RangeInclusive;

/// The kind of an attribute's value, and its source.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A text that cannot be set.
    Said(fn(&Snapshot) -> String),
    /// A number of the plan, which can be set if `set` is there.
    Number { get: fn(&Plan) -> u64, set: Option<SetNumber> },
    /// One of a few words.
    Words(Words),
}

/// How a number is set.
#[derive(Clone, Copy)]
pub(super) struct SetNumber {
    /// The accepted range, or the reason why the number cannot be set at present.
    pub(super) range: fn(&Plan) -> Result<RangeInclusive<u64>, &'static str>,
    pub(super) edges: Edges,
    /// The number must be a multiple of this.
    pub(super) step: fn(&Plan) -> u64,
    /// Makes the plan with this number, which is accepted and differs from the current one.
    pub(super) set: fn(Plan, u64) -> Plan,
}

/// What happens to a number outside of its range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Edges {
    /// It is refused.
    Strict,
    /// A number below the range is raised into it; one above is refused.
    Raise,
    /// A number above the range is lowered into it; one below is refused.
    Lower,
}

/// How a word is shown and set.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The word for the current value.
    pub(super) get: fn(&Plan) -> &'static str,
    pub(super) accepted: fn(&Plan) -> Vec<&'static str>,
    pub(super) shown: Shown,
    /// Makes the plan with this word, which is accepted, and may be the current one.
    pub(super) set: fn(Plan, &str) -> Plan,
}

/// How a choice among words is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// The current word.
    Alone,
    /// All accepted words, with the current one in brackets: `none [mq-deadline]`.
    AmongAll,
}
