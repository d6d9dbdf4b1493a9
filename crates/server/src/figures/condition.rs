//! How an export or a device fares, in a word and with its reason: the same on each screen and in the metrics.

use serde::{Deserialize, Serialize};

/// How an export or a device fares. The first that holds, in the order from the last to the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No request is there, and none has ended lately.
    #[default]
    Idle,
    /// Requests are served.
    Served,
    /// Requests always waited, and the share of the device was less than the weight is due.
    ShareMissed,
    /// A latency goal of it is not kept.
    GoalMissed,
    /// Its floor is not kept.
    FloorMissed,
    /// Its requests wait for a second and more: others have what it is due, or are preferred.
    Starved,
    /// Requests have failed.
    Errors,
    /// The device keeps requests and answers none.
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

    /// Its name on screens and in metrics.
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

    /// Returns whether all is well.
    #[must_use]
    pub fn is_well(self) -> bool {
        self <= Self::Served
    }
}

/// A state and its reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Condition {
    /// The state, by the last five seconds.
    pub state: State,
    /// The reason; empty where all is well.
    pub why: String,
}
