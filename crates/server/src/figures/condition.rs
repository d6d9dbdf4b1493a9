//! The condition of an export or a device, as a word with a reason: the same on each screen and in the metrics.

use serde::{Deserialize, Serialize};

/// The condition of an export or a device. If several apply, the last in this order is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There are no requests, and none has ended recently.
    #[default]
    Idle,
    /// Requests are being served.
    Served,
    /// Requests always waited, and the export used less of the device than is due to its weight.
    ShareMissed,
    /// One of its latency goals is missed.
    GoalMissed,
    /// Its floor is missed.
    FloorMissed,
    /// Its requests have waited for a second or more: other exports use what is due to it, or have precedence.
    Starved,
    /// Requests have failed.
    Errors,
    /// The device holds requests and completes none.
    Stuck,
}

impl State {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Served,
        Self::ShareMissed,
        Self::GoalMissed,
        Self::FloorMissed,
        Self::Starved,
        Self::Errors,
        Self::Stuck,
    ];

    /// The name on screens and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Served => "served",
            Self::ShareMissed => "share-missed",
            Self::GoalMissed => "goal-missed",
            Self::FloorMissed => "floor-missed",
            Self::Starved => "starved",
            Self::Errors => "errors",
            Self::Stuck => "stuck",
        }
    }

    /// Returns whether nothing is wrong.
    #[must_use]
    pub fn is_well(self) -> bool {
        self <= Self::Served
    }
}

/// A state and its reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Condition {
    /// The state over the last five seconds.
    pub state: State,
    /// The reason; empty if nothing is wrong.
    pub why: String,
}
