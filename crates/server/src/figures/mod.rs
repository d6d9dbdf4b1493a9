//! The counts of a server at a moment: what `stat`, the metrics and the page show.
//!
//! All of them only grow while counting is on, but for those that say otherwise. They are taken in
//! `control/counts.rs`.

mod condition;
mod judge;
mod promise;

pub use condition::{Condition, State};
pub(crate) use judge::Judge;
pub use judge::time;
pub use promise::{Bounded, FloorStat, GoalStat};
pub(crate) use promise::{bounded, goals};

use serde::{Deserialize, Serialize};

/// Counts so far.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// In the order given.
    pub exports: Vec<ExportStat>,
    /// In the order of their numbers.
    pub devices: Vec<DeviceStat>,
}

/// Counts of an export.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportStat {
    /// Its name.
    pub name: String,
    /// The number of its device, from 1.
    pub device: usize,
    /// Its weight, at present.
    pub weight: u32,
    /// Its limits, at present, as [`ExportSettings::max`](crate::control::ExportSettings::max).
    pub max: String,
    /// Its floor, ceiling and goals, at present, as [`ExportSettings::promise`](crate::control::ExportSettings::promise).
    pub promise: String,
    /// How it fares.
    pub condition: Condition,
    /// Connections that have agreed on it, at present.
    pub connections: usize,
    /// Requests.
    pub figures: Figures,
    /// Where their time went.
    pub stages: Stages,
    /// Nanoseconds of device time that they are charged with ([`IoTimes::charged`](blkmq::IoTimes::charged)): beside those
    /// of other exports of the device, the share that weights are about.
    pub charged: u64,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// The requests that have not ended, at present.
    pub held: Held,
    /// Nanoseconds of its floor that it lacked in seconds in which it always had requests: half of a floor for a second is
    /// half a second.
    pub short_time: u64,
    /// How its floor was kept.
    pub floor: FloorStat,
    /// Its latency goals, reads first.
    pub goals: Vec<GoalStat>,
}

/// Requests that have not ended, without those that a limit holds back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    /// Requests that the scheduler has picked.
    pub in_flight: u64,
    /// Requests that the scheduler holds, and those that wait for a slot.
    pub waiting: u64,
    /// The age of the oldest one in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest of those that wait.
    pub waited: u64,
}

/// Counts of a device: those of all its exports, and the counts that only the device has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStat {
    /// Its description.
    pub name: String,
    /// The name of its scheduler, at present.
    pub scheduler: String,
    /// Requests.
    pub figures: Figures,
    /// Where their time went.
    pub stages: Stages,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// Flushes sent to the device; one of them may serve many requests.
    pub flushes: u64,
    /// Nanoseconds that these flushes were at the device, summed.
    pub flush_time: u64,
    /// Requests that the scheduler has picked and that have not ended, at present: reads, and all others.
    pub in_flight: [u64; 2],
    /// Nanoseconds in which there was at least one such request.
    pub busy_time: u64,
    /// I/Os that wait for a slot or in the scheduler, at present.
    pub waiting: u64,
    /// The age of the oldest request that has not ended, in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest request at the device.
    pub kept: u64,
    /// The bounds that are in force for latency goals.
    pub bounded: Bounded,
    /// How it fares.
    pub condition: Condition,
}

/// Counts of requests, as iostat has them; each is of reads, writes and discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Completed requests.
    pub ios: [u64; 3],
    /// Their bytes.
    pub bytes: [u64; 3],
    /// I/Os merged into another request.
    pub merged: [u64; 3],
    /// Nanoseconds that requests waited for the device, summed.
    pub wait: [u64; 3],
    /// Nanoseconds that requests were at the device, summed.
    pub service: [u64; 3],
}

/// The times of completed requests by the place where they passed; each is of reads, writes, discards and flushes.
///
/// `slot`, `policy` and `tag` are the parts of `queue`; `queue` and `device` are the parts of `total`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    /// From the arrival until the request had a slot (a scheduler tag). Sums only.
    pub slot: [Times; 4],
    /// In the scheduler, which held the request back or had others to issue first. Sums only.
    pub policy: [Times; 4],
    /// In the scheduler while a driver tag, or room at the device, was missing. Sums only.
    pub tag: [Times; 4],
    /// From the arrival until the scheduler picked the request.
    pub queue: [Times; 4],
    /// From then until the completion was found at the device.
    pub device: [Times; 4],
    /// From the arrival until then.
    pub total: [Times; 4],
}

/// A distribution of times.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// How many there are.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum: u64,
    /// In ascending order: the longest time in nanoseconds that a bucket takes, and how many times it has. Empty
    /// buckets are left out. Where only sums are counted there is none.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// The times that are here and were not in `earlier`, which was taken before of the same.
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

    /// The time in nanoseconds that the part `q` of all times, from 0.0 to 1.0, does not exceed. It is the upper end
    /// of its bucket. `None` without buckets.
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
