//! The promises to exports in the counts: the state of latency goals and floors, and the bounds that goals impose on
//! others.

use blkmq::engine::GoalsStatus;
use blkmq::sched::{GoalReport, Taken};
use blkmq::{FloorCause, GroupIndex, SECTOR_SIZE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How well the floor of an export was kept, judged by the completions in each second in which it always had requests
/// outstanding.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FloorStat {
    /// The present floor, such as `200 IOPS`; empty if there is none.
    pub promised: String,
    /// The state in the last second: `idle`, `kept`, `missed` or `infeasible`; empty if it was never judged.
    pub state: String,
    /// The number of seconds judged.
    pub seconds: u64,
    /// The number of seconds in which it completed less, by cause: `ceiling`, `slots`, `goal`, `device`, `depth` or
    /// `infeasible`.
    pub missed: BTreeMap<String, u64>,
}

impl FloorStat {
    /// The seconds judged since `before`, those in which the floor was missed, and the most frequent cause.
    #[must_use]
    pub fn since(&self, before: &Self) -> (u64, u64, Option<FloorCause>) {
        let grown = |cause: &FloorCause| {
            let of = |it: &Self| it.missed.get(cause.name()).copied().unwrap_or(0);
            of(self).saturating_sub(of(before))
        };
        let most = FloorCause::ALL.into_iter().max_by_key(grown).filter(|cause| grown(cause) > 0);
        let missed = FloorCause::ALL.iter().map(grown).sum();
        (self.seconds.saturating_sub(before.seconds), missed, most)
    }
}

/// A latency goal of an export. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GoalStat {
    /// The word that sets it, such as `p99_read`.
    pub word: String,
    /// The target.
    pub target: u64,
    /// `idle`, `unknown`, `met`, `missed`, `own-backlog` or `infeasible`.
    pub state: String,
    /// The 99th percentile in the last window judged, at most 25 % above the true one; 0 before the first.
    pub p99: u64,
    /// The number of windows judged.
    pub windows: u64,
    /// The number of windows in which it was missed.
    pub missed: u64,
}

impl GoalStat {
    fn of(report: &GoalReport) -> Self {
        Self {
            word: report.kind.word().to_owned(),
            target: report.goal.0,
            state: report.state.name().to_owned(),
            p99: report.p99.0,
            windows: report.windows,
            missed: report.missed,
        }
    }

    /// Returns whether the goal is missed.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        matches!(self.state.as_str(), "missed" | "own-backlog" | "infeasible")
    }
}

/// The goals of a group, reads first.
pub(crate) fn goals(status: Option<&GoalsStatus>, group: GroupIndex) -> Vec<GoalStat> {
    let all = status.into_iter().flat_map(|status| &status.goals);
    all.filter(|report| report.group == group).map(GoalStat::of).collect()
}

/// The present bounds for latency goals on exports without a goal, by kind: `length` (bytes of a request), `depth`
/// (requests at the device), and bytes per second, with 16 KiB added for each request, of exports that are `lighter`
/// than the lightest export with a goal, as heavy (`equal`), or `heavier`. Empty if nothing is bounded.
pub type Bounded = BTreeMap<String, u64>;

pub(crate) fn bounded(status: Option<&GoalsStatus>) -> Bounded {
    let Some(Taken { sectors, device_depth, rates: [lighter, equal, heavier] }) =
        status.map(|status| status.taken)
    else {
        return Bounded::new();
    };
    let all = [
        ("length", sectors.map(|it| u64::from(it) * u64::from(SECTOR_SIZE))),
        ("depth", device_depth.map(u64::from)),
        ("lighter", lighter),
        ("equal", equal),
        ("heavier", heavier),
    ];
    let there = all.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?)));
    there.collect()
}
