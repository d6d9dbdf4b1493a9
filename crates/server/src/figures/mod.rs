//! The counts of a server at a moment: what `stat`, the metrics and the page show, with the condition of each export
//! and device, as a word with a reason, and the state of promises.
//!
//! The counts only grow while counting is on, except where stated otherwise. `control/counts.rs` takes them, and
//! `judge.rs` finds the conditions.

mod judge;

pub(crate) use judge::Judge;
pub use judge::time;

use blkmq::engine::GoalsStatus;
use blkmq::sched::{GoalReport, Taken};
use blkmq::{FloorCause, GroupIndex, SECTOR_SIZE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts so far.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// Exports, in the order given.
    pub exports: Vec<ExportStat>,
    /// Devices, by number.
    pub devices: Vec<DeviceStat>,
}

/// Counts of an export.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportStat {
    /// Its name.
    pub name: String,
    /// The number of its device, from 1.
    pub device: usize,
    /// The present weight.
    pub weight: u32,
    /// The present limits, in the form of [`ExportSettings::max`](crate::control::ExportSettings::max).
    pub max: String,
    /// The present floor, ceiling and goals, in the form of
    /// [`ExportSettings::promise`](crate::control::ExportSettings::promise).
    pub promise: String,
    /// The condition.
    pub condition: Condition,
    /// The present number of connections that have agreed on it.
    pub connections: usize,
    /// Requests.
    pub figures: Figures,
    /// The stages of their time.
    pub stages: Stages,
    /// Nanoseconds of device time charged to its requests ([`IoTimes::charged`](blkmq::IoTimes::charged)); compared
    /// with those of the other exports of the device, the share that weights control.
    pub charged: u64,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// The unfinished requests at present.
    pub held: Held,
    /// The shortfall from its floor in seconds in which it always had requests, in nanoseconds: half a floor for a
    /// second gives half a second.
    pub short_time: u64,
    /// How well its floor was kept.
    pub floor: FloorStat,
    /// Its latency goals, reads first.
    pub goals: Vec<GoalStat>,
}

/// Unfinished requests, excluding those delayed by a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    /// Requests issued by the scheduler.
    pub in_flight: u64,
    /// Requests in the scheduler or waiting for a slot.
    pub waiting: u64,
    /// The age of the oldest in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest waiting request in nanoseconds.
    pub waited: u64,
}

/// Counts of a device: the sums over its exports, and counts that only exist for the device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStat {
    /// Its description.
    pub name: String,
    /// The name of its present scheduler.
    pub scheduler: String,
    /// Requests.
    pub figures: Figures,
    /// The stages of their time.
    pub stages: Stages,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// Flushes sent to the device, each of which may serve many requests.
    pub flushes: u64,
    /// The total time of these flushes at the device, in nanoseconds.
    pub flush_time: u64,
    /// The present number of issued and unfinished requests: reads, and all others.
    pub in_flight: [u64; 2],
    /// Nanoseconds with at least one such request.
    pub busy_time: u64,
    /// The present number of I/Os that wait for a slot or in the scheduler.
    pub waiting: u64,
    /// The age of the oldest unfinished request, in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest request at the device, in nanoseconds.
    pub kept: u64,
    /// The present bounds for latency goals.
    pub bounded: Bounded,
    /// The condition.
    pub condition: Condition,
}

/// Counts of requests as in iostat, each for reads, writes and discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Completed requests.
    pub ios: [u64; 3],
    /// Their bytes.
    pub bytes: [u64; 3],
    /// I/Os merged into existing requests.
    pub merged: [u64; 3],
    /// The total time that requests waited for the device, in nanoseconds.
    pub wait: [u64; 3],
    /// The total time that requests were at the device, in nanoseconds.
    pub service: [u64; 3],
}

/// The times of completed requests by stage, each for reads, writes, discards and flushes.
///
/// `slot`, `policy` and `tag` are the parts of `queue`; `queue` and `device` are the parts of `total`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    /// From arrival until the request got a slot (a scheduler tag). Sums only.
    pub slot: [Times; 4],
    /// In the scheduler, which delayed the request or issued others first. Sums only.
    pub policy: [Times; 4],
    /// In the scheduler, while no driver tag or no room at the device was available. Sums only.
    pub tag: [Times; 4],
    /// From arrival until the scheduler picked the request.
    pub queue: [Times; 4],
    /// From the pick until the completion was reaped from the device.
    pub device: [Times; 4],
    /// From arrival until the completion was reaped.
    pub total: [Times; 4],
}

/// A distribution of times.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// The number of times.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum: u64,
    /// Buckets in ascending order: the longest time of a bucket in nanoseconds, and the number of times in it. Empty
    /// buckets are omitted. There are no buckets where only sums are counted.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// The times added since `earlier`, a previous reading of the same distribution.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for &(upper, count) in &self.buckets {
            while before.next_if(|(old, _)| *old < upper).is_some() {}
            let old = before.next_if(|(old, _)| *old == upper).map_or(0, |(_, count)| *count);
            if count > old {
                buckets.push((upper, count - old));
            }
        }
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum: self.sum.saturating_sub(earlier.sum),
            buckets,
        }
    }

    /// The quantile `q`, from 0.0 to 1.0, of the times in nanoseconds, rounded up to the end of its bucket; `None`
    /// without buckets.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let wanted = (q.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |(_, count): &&(u64, u64)| {
            seen += count;
            seen >= wanted
        };
        self.buckets.iter().find(reaches).map(|(upper, _)| *upper)
    }
}

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

/// When a server counts requests and the stages of their time (the attribute `queue/iostats` of its devices).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// From the first request for the counts.
    #[default]
    Asked,
    /// From the start.
    Always,
    /// Never; requests for the counts are refused.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(u64, u64)]) -> Times {
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = buckets.iter().map(|(upper, n)| upper * n).sum();
        Times { count, sum, buckets: buckets.to_vec() }
    }

    #[test]
    fn a_difference_has_what_came_between() {
        let earlier = times(&[(10, 1), (30, 5)]);
        let later = times(&[(10, 3), (20, 4), (30, 5), (40, 1)]);
        assert_eq!(later.since(&earlier), times(&[(10, 2), (20, 4), (40, 1)]));
        assert_eq!(later.since(&Times::default()), later);
        assert_eq!(later.since(&later), Times::default());
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let times = times(&[(10, 50), (20, 49), (30, 1)]);
        let of = |q| times.quantile(q);
        assert_eq!([of(0.0), of(0.5), of(0.501)], [Some(10), Some(10), Some(20)]);
        assert_eq!([of(0.99), of(0.991), of(1.0)], [Some(20), Some(30), Some(30)]);
        assert_eq!(Times::default().quantile(0.5), None);
    }
}
