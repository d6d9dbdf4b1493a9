//! The figures of the document: one kind of transfer of a job, its times, and the classes of completion latency. The
//! figures of a queue are its groups, and the state shared by the instances of its scheduler.

use super::super::job::{Direction, JobResult, Latency, Percentile, ratio};
use super::super::model::{Groups, OpTimes, Report, Run, STAGES, Shared, Waited};
use super::{Detail, Fields, Map};
use blkmq_lab::workload::Latencies;
use blkmq_sched::Reading;
use serde::{Serialize, Serializer};
use serde_json::json;

pub(super) struct Transfer<'a> {
    pub direction: &'a Direction,
    /// Its percentage of the bandwidth of its reporting group.
    pub bw_agg: f64,
    pub show: Show<'a>,
    /// The latencies of which percentiles are shown.
    pub of: Latencies,
}

/// The latency of the I/Os of one priority, as fio prints it.
#[derive(Serialize)]
struct Prio<'a> {
    prioclass: u8,
    prio: u16,
    clat_ns: Times<'a>,
}

/// The summary of a latency, with its percentiles and perhaps its buckets.
#[derive(Clone, Copy)]
pub(super) struct Times<'a>(pub Option<&'a Latency>, pub Show<'a>);

/// The percentiles that are shown in addition to a summary, and whether buckets are.
pub(super) type Show<'a> = (&'a [Percentile], Detail);

impl Serialize for Transfer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { direction, bw_agg, show, of } = *self;
        let times = |latency, is_wanted: bool| {
            Times(latency, if is_wanted { show } else { (&[], Detail::Plain) })
        };
        let Direction { bw_samples: bw, iops_samples: iops, .. } = *direction;
        let bw_bytes = direction.bytes_per_second().round() as u64;
        let whole = |value: f64| value.round() as u64;
        let mut fields = Fields::of(serializer);
        fields.put("io_bytes", direction.io_bytes);
        fields.put("io_kbytes", direction.io_bytes / 1024);
        fields.put("bw_bytes", bw_bytes);
        fields.put("bw", bw_bytes / 1024);
        fields.put("iops", direction.iops());
        fields.put("runtime", millis(direction.runtime_ns));
        fields.put("total_ios", direction.total_ios);
        fields.put("short_ios", direction.short_ios);
        fields.put("drop_ios", direction.drop_ios);
        fields.put("slat_ns", times(direction.slat.as_ref(), of.slat));
        fields.put("clat_ns", times(direction.clat.as_ref(), of.clat));
        fields.put("lat_ns", times(direction.lat.as_ref(), of.lat));
        let prios = Vec::from_iter(direction.prios.iter().map(|(prio, clat)| Prio {
            prioclass: prio.class() as u8,
            prio: prio.level(),
            clat_ns: times(Some(clat), of.clat),
        }));
        fields.put_if(!prios.is_empty(), "prios", prios);
        fields.put("bw_min", whole(bw.min / 1024.0));
        fields.put("bw_max", whole(bw.max / 1024.0));
        fields.put("bw_agg", bw_agg);
        fields.put("bw_mean", bw.mean / 1024.0);
        fields.put("bw_dev", bw.stddev / 1024.0);
        fields.put("bw_samples", bw.count);
        fields.put("iops_min", whole(iops.min));
        fields.put("iops_max", whole(iops.max));
        fields.put("iops_mean", iops.mean);
        fields.put("iops_stddev", iops.stddev);
        fields.put("iops_samples", iops.count);
        fields.end()
    }
}

impl Serialize for Times<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(latency, (list, detail)) = self;
        // fio prints zeros if nothing was timed.
        let latency = latency.cloned().unwrap_or_default();
        let times = &latency.0;
        let is_timed = times.count() > 0;
        let percentile = list.iter().map(|p| (format!("{:.6}", p.percent()), p.of(times)));
        let mut fields = Fields::of(serializer);
        fields.put("min", times.min());
        fields.put("max", times.max());
        fields.put("mean", times.mean());
        fields.put("stddev", latency.stddev());
        fields.put("N", times.count());
        fields.put_if(is_timed && !list.is_empty(), "percentile", Map(percentile.collect()));
        let has_bins = is_timed && *detail == Detail::Bins;
        fields.put_if(has_bins, "bins", Map(times.buckets().collect()));
        fields.end()
    }
}

/// Milliseconds, rounded; a time that is not 0 is at least 1.
pub(super) fn millis(ns: u64) -> u64 {
    ((ns + 500_000) / 1_000_000).max(u64::from(ns > 0))
}

/// The upper ends (exclusive) of fio's classes of completion latency, in the unit of each object; only milliseconds
/// have the last two.
const ENDS: [u64; 12] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000, u64::MAX];

/// The percentage of the job's timed I/Os in each class, for nanoseconds, microseconds and milliseconds.
pub(super) fn latency_classes(job: &JobResult) -> [Map<String, f64>; 3] {
    let timed = || job.directions().into_iter().filter_map(|(_, d)| d.clat.as_ref());
    let total: u64 = timed().map(|l| l.0.count()).sum();
    let classes = |unit: u64, first: u64, ends: &[u64]| {
        let mut from = first;
        let class = |end: &u64| {
            let range = from..end.saturating_mul(unit);
            from = range.end;
            let buckets = timed().flat_map(|l| l.0.buckets());
            let n: u64 = buckets.filter(|(value, _)| range.contains(value)).map(|(_, n)| n).sum();
            let name = if *end == u64::MAX { ">=2000".into() } else { end.to_string() };
            (name, 100.0 * ratio(n as f64, total as f64))
        };
        Map(ends.iter().map(class).collect())
    };
    let fine = &ENDS[..10];
    [classes(1, 0, fine), classes(1_000, 1_000, fine), classes(1_000_000, 1_000_000, &ENDS)]
}

/// The figures of a run's queue.
pub(super) struct Details<'a> {
    number: usize,
    run: &'a Run,
}

/// The group with this index.
struct Group<'a>(&'a Groups, usize);

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
        let is_any = |run: &Run| {
            !(run.shared.tokens.is_empty() && run.groups.all.is_empty() && run.times.is_empty())
        };
        runs.map(|(number, run)| Self { number, run }).filter(|it| is_any(it.run)).collect()
    }
}

impl Serialize for Details<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Run { shared: Shared { tokens, governor }, times, groups, .. } = self.run;
        let mut fields = Fields::of(serializer);
        fields.put("run", self.number);
        fields.put_if(!tokens.is_empty(), "tokens", tokens);
        fields.put_if(!governor.is_empty(), "governor", Map(governor.clone()));
        let stages = times.iter().map(|of| (of.op, op_times(of))).collect();
        fields.put_if(!times.is_empty(), "times", Map(stages));
        let all = Vec::from_iter((0..groups.all.len()).map(|at| Group(groups, at)));
        fields.put_if(!all.is_empty(), "group_stats", &groups.level);
        fields.put_if(!all.is_empty(), "groups", all);
        fields.end()
    }
}

fn op_times(of: &OpTimes) -> Map<String, u64> {
    let counts = [("requests".to_owned(), of.requests), ("merged".to_owned(), of.merged)];
    let stages = STAGES.iter().zip(of.stages).map(|(name, sum)| (format!("{name}_ns"), sum));
    Map(counts.into_iter().chain(stages).collect())
}

impl Serialize for Group<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(groups, at) = *self;
        let group = &groups.all[at];
        let name = |at: usize| &groups.all[at].name;
        let statistic = |reading: &Reading| match reading {
            Reading::Flow(flow) => Statistic::Flow(Map(flow.rows().to_vec())),
            Reading::Number(number) => Statistic::Number(*number),
        };
        let waited = |it: &Waited| json!({ "group": it.behind.map(name), "time_ns": it.ns });
        let stats = group.stats.iter().map(|(name, reading)| (name, statistic(reading)));
        let mut fields = Fields::of(serializer);
        fields.put("name", &group.name);
        fields.put("parent", group.parent.map(name));
        fields.put("weight", group.weight);
        fields.put("ios", group.ios);
        fields.put("bytes", group.bytes);
        fields.put("share", groups.share(at));
        fields.put("due", groups.due(at));
        fields.put_if(!group.stats.is_empty(), "stats", Map(stats.collect()));
        let waited_for = Vec::from_iter(group.waited.iter().map(waited));
        fields.put_if(!waited_for.is_empty(), "waited_for", waited_for);
        fields.end()
    }
}
