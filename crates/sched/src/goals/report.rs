//! The state of goals, and the lengths, depths and rates that are taken for them, in the words of their attribute.

use super::pace::TIERS;
use blkmq_core::{GroupIndex, Nanos, Op};

/// The I/Os that a goal is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoalKind {
    /// Reads.
    Read,
    /// Writes, discards and their like; and flushes, unless the group has a goal for those.
    Write,
    /// Flushes alone.
    Sync,
}

impl GoalKind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Sync];

    /// The kind of an operation.
    pub(super) fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Flush => Self::Sync,
            Op::Write | Op::Discard | Op::WriteZeroes => Self::Write,
        }
    }

    /// The word by which the goal is set.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "p99_read",
            Self::Write => "p99_write",
            Self::Sync => "p99_sync",
        }
    }
}

/// The state of a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GoalState {
    /// No I/O came and none waits.
    #[default]
    Idle,
    /// I/Os wait, and none has ended.
    Unknown,
    /// At most 1 % took longer.
    Met,
    /// More than 1 % took longer.
    Missed,
    /// Missed, and the group has its share of the device: the I/Os wait for each other. Nothing is taken for it.
    OwnBacklog,
    /// Missed although nothing was left to take.
    Infeasible,
}

impl GoalState {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Unknown => "unknown",
            Self::Met => "met",
            Self::Missed => "missed",
            Self::OwnBacklog => "own-backlog",
            Self::Infeasible => "infeasible",
        }
    }
}

/// A goal and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoalReport {
    /// The group.
    pub group: GroupIndex,
    /// The I/Os that it is about.
    pub kind: GoalKind,
    /// The target.
    pub goal: Nanos,
    /// How it stands.
    pub state: GoalState,
    /// The 99th percentile in the last window that was judged, at most 25 % above the true one; zero before the first.
    pub p99: Nanos,
    /// Windows judged so far, without those in which nothing came.
    pub windows: u64,
    /// Windows in which the goal was missed.
    pub missed: u64,
    /// The 99th percentile when there was nothing left to take: the evidence of an infeasible goal. Zero if the goal was
    /// never found infeasible.
    pub best: Nanos,
}

/// The bounds that the controller has put on the groups without a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// The most sectors in a read or a write of theirs, of groups without a floor; `None`: as many as the device takes.
    pub sectors: Option<u32>,
    /// The most requests at the device; `None`: as many as it takes.
    pub device_depth: Option<u32>,
    /// Bytes a second, with 16 KiB for each request, of all groups that are lighter than those with goals, as heavy as the
    /// lightest of these, and heavier; `None`: any number. The floor of a group is not counted.
    pub rates: [Option<u64>; TIERS],
}
