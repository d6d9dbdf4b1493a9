//! Reports: the state of goals, and the bounds on length, depth and rates that are taken for them.

use super::pace::TIERS;
use blkmq_core::{GroupIndex, Nanos, Op};

/// The kind of I/O that a goal is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoalKind {
    /// Reads.
    Read,
    /// Writes, discards and write-zeroes; also flushes, unless the group has a goal for flushes.
    Write,
    /// Flushes.
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

    /// The attribute that sets the goal.
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
    /// At most 1 % took longer than the goal.
    Met,
    /// More than 1 % took longer than the goal.
    Missed,
    /// Missed, and the group has its share of the device: its I/Os wait for each other. Nothing is taken for it.
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

/// A goal and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoalReport {
    /// The group.
    pub group: GroupIndex,
    /// The kind of I/O.
    pub kind: GoalKind,
    /// The target.
    pub goal: Nanos,
    /// Its state.
    pub state: GoalState,
    /// The 99th percentile in the last window that was judged, at most 25 % above the true one; zero before the first.
    pub p99: Nanos,
    /// Windows judged so far, without those that had no I/O.
    pub windows: u64,
    /// Windows in which the goal was missed.
    pub missed: u64,
    /// The 99th percentile with nothing left to take, the evidence of an infeasible goal; zero if never infeasible.
    pub best: Nanos,
}

/// The bounds that the controller sets on the groups without a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// The most sectors of a read or write of groups without a floor; `None` for as many as the device takes.
    pub sectors: Option<u32>,
    /// The most requests at the device; `None` for as many as it takes.
    pub device_depth: Option<u32>,
    /// Bytes a second, with 16 KiB for each request, of all groups that are lighter than the lightest group with a
    /// goal, as heavy, and heavier; `None` for no bound. I/O by a floor is not counted.
    pub rates: [Option<u64>; TIERS],
}
