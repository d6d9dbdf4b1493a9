//! The figures of queues: their groups, and the state shared by the instances of their scheduler.

use super::super::group::{Groups, Waited};
use super::super::model::{OpTimes, Report, STAGES};
use super::map::Map;
use blkmq_sched::Reading;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Details<'a> {
    run: usize,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tokens: &'a [u32],
    #[serde(skip_serializing_if = "Map::is_empty")]
    governor: Map<&'static str, u64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    times: Map<&'static str, Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_stats: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Group<'a>>,
}

#[derive(Serialize)]
struct Times {
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
            times: Map(it.times.iter().map(|of| (of.op, Times::new(of))).collect()),
            group_stats: (!it.groups.all.is_empty()).then_some(it.groups.level.as_str()),
            groups: (0..it.groups.all.len()).map(|at| Group::new(&it.groups, at)).collect(),
        });
        let is_any =
            |it: &Self| !(it.tokens.is_empty() && it.groups.is_empty() && it.times.is_empty());
        details.filter(is_any).collect()
    }
}

impl Times {
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
