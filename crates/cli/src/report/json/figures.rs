//! The figures of the document: one kind of transfer of a job, its times, and the classes of completion latency. The
//! figures of a queue are its groups, and the state shared by the instances of its scheduler.

use super::super::job::{Direction, JobResult, Latency, Percentile, ratio};
use super::super::model::{Groups, OpTimes, Report, STAGES, Waited};
use super::{Detail, Map};
use blkmq_core::IoPrio;
use blkmq_lab::workload::Latencies;
use blkmq_sched::Reading;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Transfer {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Times,
    clat_ns: Times,
    lat_ns: Times,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prios: Vec<Prio>,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: u64,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: u64,
}

/// The latency of the I/Os of one priority, as fio prints it.
#[derive(Serialize)]
struct Prio {
    prioclass: u8,
    prio: u16,
    clat_ns: Times,
}

#[derive(Default, Serialize)]
pub(super) struct Times {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    percentile: Map<String, u64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    bins: Map<u64, u64>,
}

/// The distributions of a latency that fio prints in addition to its summary.
#[derive(Clone, Copy)]
pub(super) enum Show<'a> {
    Summary,
    Percentiles(&'a [Percentile]),
    Bins(&'a [Percentile]),
}

impl<'a> Show<'a> {
    /// Everything about `job` that a report with this detail shows.
    pub(super) fn all(detail: Detail, job: &'a JobResult) -> Self {
        match detail {
            Detail::Plain => Self::Percentiles(&job.percentiles),
            Detail::Bins => Self::Bins(&job.percentiles),
        }
    }
}

impl Transfer {
    pub(super) fn new(direction: &Direction, bw_agg: f64, shown: Show<'_>, of: Latencies) -> Self {
        let if_wanted = |wanted: bool| if wanted { shown } else { Show::Summary };
        let Direction { bw_samples: bw, iops_samples: iops, .. } = *direction;
        let bw_bytes = direction.bytes_per_second().round() as u64;
        let (kib, whole) =
            (|value: f64| (value / 1024.0).round() as u64, |v: f64| v.round() as u64);
        Self {
            io_bytes: direction.io_bytes,
            io_kbytes: direction.io_bytes / 1024,
            bw_bytes,
            bw: bw_bytes / 1024,
            iops: direction.iops(),
            runtime: millis(direction.runtime_ns),
            total_ios: direction.total_ios,
            short_ios: direction.short_ios,
            drop_ios: direction.drop_ios,
            slat_ns: Times::new(direction.slat.as_ref(), if_wanted(of.slat)),
            clat_ns: Times::new(direction.clat.as_ref(), if_wanted(of.clat)),
            lat_ns: Times::new(direction.lat.as_ref(), if_wanted(of.lat)),
            prios: direction
                .prios
                .iter()
                .map(|(prio, clat)| Prio::new(*prio, clat, if_wanted(of.clat)))
                .collect(),
            bw_min: kib(bw.min),
            bw_max: kib(bw.max),
            bw_agg,
            bw_mean: bw.mean / 1024.0,
            bw_dev: bw.stddev / 1024.0,
            bw_samples: bw.count,
            iops_min: whole(iops.min),
            iops_max: whole(iops.max),
            iops_mean: iops.mean,
            iops_stddev: iops.stddev,
            iops_samples: iops.count,
        }
    }
}

impl Prio {
    fn new(prio: IoPrio, clat: &Latency, shown: Show<'_>) -> Self {
        let (prioclass, level) = (prio.class() as u8, prio.level());
        Self { prioclass, prio: level, clat_ns: Times::new(Some(clat), shown) }
    }
}

impl Times {
    pub(super) fn new(latency: Option<&Latency>, show: Show<'_>) -> Self {
        // fio prints zeros if nothing was timed.
        let Some(latency) = latency.filter(|l| l.0.count() > 0) else { return Self::default() };
        let times = &latency.0;
        let percentile = match show {
            Show::Summary => vec![],
            Show::Percentiles(list) | Show::Bins(list) => {
                list.iter().map(|p| (format!("{:.6}", p.percent()), p.of(times))).collect()
            }
        };
        let bins = if matches!(show, Show::Bins(_)) { times.buckets().collect() } else { vec![] };
        Self {
            min: times.min(),
            max: times.max(),
            mean: times.mean(),
            stddev: latency.stddev(),
            count: times.count(),
            percentile: Map(percentile),
            bins: Map(bins),
        }
    }
}

/// Milliseconds, rounded; a time that is not 0 is at least 1.
pub(super) fn millis(ns: u64) -> u64 {
    ((ns + 500_000) / 1_000_000).max(u64::from(ns > 0))
}

/// fio's classes of completion latency: names and upper ends (exclusive) in the unit of each object.
const FINE: [(&str, u64); 10] = [
    ("2", 2),
    ("4", 4),
    ("10", 10),
    ("20", 20),
    ("50", 50),
    ("100", 100),
    ("250", 250),
    ("500", 500),
    ("750", 750),
    ("1000", 1000),
];
const SLOW: [(&str, u64); 2] = [("2000", 2000), (">=2000", u64::MAX)];

/// The percentage of the job's timed I/Os in each class, for nanoseconds, microseconds and milliseconds.
pub(super) fn latency_classes(job: &JobResult) -> [Vec<(&'static str, f64)>; 3] {
    let timed = || job.directions().into_iter().filter_map(|(_, d)| d.clat.as_ref());
    let total: u64 = timed().map(|l| l.0.count()).sum();
    let classes = |unit: u64, first: u64, names: &[(&'static str, u64)]| {
        let mut from = first;
        let class = |&(name, end): &(&'static str, u64)| {
            let range = from..end.saturating_mul(unit);
            from = range.end;
            let buckets = timed().flat_map(|l| l.0.buckets());
            let n: u64 = buckets.filter(|(value, _)| range.contains(value)).map(|(_, n)| n).sum();
            (name, 100.0 * ratio(n as f64, total as f64))
        };
        names.iter().map(class).collect::<Vec<_>>()
    };
    let milliseconds: Vec<_> = FINE.into_iter().chain(SLOW).collect();
    [
        classes(1, 0, &FINE),
        classes(1_000, 1_000, &FINE),
        classes(1_000_000, 1_000_000, &milliseconds),
    ]
}

#[derive(Serialize)]
pub(super) struct Details<'a> {
    run: usize,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "Map::is_empty")]
    governor: Map<&'static str, u64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    times: Map<&'static str, QueueTimes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_stats: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Group<'a>>,
}

#[derive(Serialize)]
struct QueueTimes {
    requests: u64,
    merged: u64,
    #[serde(flatten)]
    stages: Map<String, u64>,
}

#[derive(Serialize)]
struct Group<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    weight: Option<u32>,
    ios: u64,
    bytes: u64,
    share: f64,
    due: Option<f64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    stats: Map<&'a str, Statistic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waited_for: Vec<WaitedFor<'a>>,
}

#[derive(Serialize)]
struct WaitedFor<'a> {
    group: Option<&'a str>,
    time_ns: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Statistic {
    Flow(Map<&'static str, u64>),
    Number(u64),
}

impl<'a> Details<'a> {
    /// The entries of every run with such figures.
    pub(super) fn all(report: &'a Report) -> Vec<Self> {
        let runs = report.runs.iter().enumerate();
        let details = runs.map(|(run, it)| Self {
            run,
            tokens: &it.shared.tokens,
            governor: Map(it.shared.governor.clone()),
            times: Map(it.times.iter().map(|of| (of.op, QueueTimes::new(of))).collect()),
            group_stats: (!it.groups.all.is_empty()).then_some(it.groups.level.as_str()),
            groups: (0..it.groups.all.len()).map(|at| Group::new(&it.groups, at)).collect(),
        });
        let is_any =
            |it: &Self| !(it.tokens.is_empty() && it.groups.is_empty() && it.times.is_empty());
        details.filter(is_any).collect()
    }
}

impl QueueTimes {
    fn new(of: &OpTimes) -> Self {
        let stages = STAGES.iter().zip(of.stages).map(|(name, sum)| (format!("{name}_ns"), sum));
        Self { requests: of.requests, merged: of.merged, stages: Map(stages.collect()) }
    }
}

impl<'a> Group<'a> {
    fn new(groups: &'a Groups, at: usize) -> Self {
        let group = &groups.all[at];
        let statistic = |reading: &Reading| match reading {
            Reading::Flow(flow) => Statistic::Flow(Map(flow.rows().to_vec())),
            Reading::Number(number) => Statistic::Number(*number),
        };
        let waited = |waited: &Waited| WaitedFor {
            group: waited.behind.map(|at| groups.all[at].name.as_str()),
            time_ns: waited.ns,
        };
        let stats = group.stats.iter().map(|(name, reading)| (name.as_str(), statistic(reading)));
        Self {
            name: &group.name,
            parent: group.parent.map(|parent| groups.all[parent].name.as_str()),
            weight: group.weight,
            ios: group.ios,
            bytes: group.bytes,
            share: groups.share(at),
            due: groups.due(at),
            stats: Map(stats.collect()),
            waited_for: group.waited.iter().map(waited).collect(),
        }
    }
}
