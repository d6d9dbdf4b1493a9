//! The results of the groups of a run: the I/O of the jobs in each group and the scheduler's counters; and the counts
//! of the queue itself.

use super::tally::Part;
use crate::plan::runs::ThreadSpec;
use crate::plan::{Plan, StatsChoice};
use crate::report::group::{GroupResult, Groups, Waited};
use crate::report::model::{OpTimes, Shared};
use blkmq_core::{GroupId, GroupIndex};
use blkmq_engine::{GroupTree, Queue, QueueTimes, Wait};
use blkmq_sched::{FloorCause, FloorReport, GroupStats, Reading};
use std::collections::BTreeMap;

/// The counters of the level `basic`; each also has a variant that includes all groups below.
const BASIC: [&str; 6] =
    ["io_service_bytes", "io_serviced", "io_service_time", "io_wait_time", "io_merged", "sectors"];

/// The results of `plan`'s groups after a run of `parts` on `queue`; none if there is only the root and nothing is
/// counted.
pub fn results<P: Send + 'static>(
    plan: &Plan,
    parts: &[(ThreadSpec, Part)],
    queue: &Queue<P>,
) -> Groups {
    if plan.groups.is_empty() && plan.group_stats == StatsChoice::Off {
        return Groups::default();
    }
    // A scheduler that does not share by group has no turns to count, and zeros would suggest that it had.
    let has_turns = matches!(
        queue.group_stat(GroupId::ROOT, "time_recursive"),
        Some(Reading::Number(time)) if time > 0
    );
    let level = match plan.group_stats {
        StatsChoice::Full | StatsChoice::Inline if !has_turns => StatsChoice::Basic,
        level => level,
    };
    let root = GroupResult { name: "/".into(), ..GroupResult::default() };
    let mut found = vec![(GroupId::ROOT, root)];
    add_below(&plan.groups, 0, &mut found);
    let times = queue.times();
    for (id, group) in &mut found {
        for (thread, part) in parts {
            let name = plan.jobs[thread.job].cgroup.as_deref().unwrap_or("/");
            if name == group.name {
                group.ios += part.tally.ios();
                group.bytes += part.tally.bytes();
            }
        }
        group.stats = stats(level, *id, queue);
        group.stats.extend(floor(&plan.groups, *id, &times));
    }
    if plan.iostats {
        add_waits(&queue.waits(), &mut found);
    }
    let all = found.into_iter().map(|(_, group)| group).collect();
    Groups { level: plan.group_stats.to_string(), all }
}

/// Adds the groups below the group at `parent`, each followed by its descendants.
fn add_below(tree: &GroupTree, parent: usize, found: &mut Vec<(GroupId, GroupResult)>) {
    let above = found[parent].0;
    for group in tree.iter().filter(|group| group.parent == above) {
        let result = GroupResult {
            name: group.name.clone(),
            parent: Some(parent),
            weight: Some(group.weight),
            ..GroupResult::default()
        };
        found.push((group.id, result));
        add_below(tree, found.len() - 1, found);
    }
}

/// Gives each group the times for which it waited.
fn add_waits(waits: &[Wait], found: &mut [(GroupId, GroupResult)]) {
    let places: BTreeMap<GroupIndex, usize> =
        found.iter().enumerate().map(|(at, (id, _))| (id.index(), at)).collect();
    for Wait { waiting, behind, time } in waits {
        // No group is removed in a run.
        let behind = behind.and_then(|id| places.get(&id).copied());
        if let Some(at) = places.get(waiting) {
            found[*at].1.waited.push(Waited { behind, ns: time.0 });
        }
    }
}

/// All counters of `level` for a group.
fn stats<P: Send + 'static>(
    level: StatsChoice,
    group: GroupId,
    queue: &Queue<P>,
) -> Vec<(String, Reading)> {
    let is_counted = |name: &str| match level {
        StatsChoice::Off => false,
        StatsChoice::Basic => BASIC.contains(&name),
        StatsChoice::Full | StatsChoice::Inline => true,
    };
    let names = GroupStats::names().filter(|(name, _)| is_counted(name));
    let names = names.map(
        |(name, recursive)| {
            if recursive { format!("{name}_recursive") } else { name.to_owned() }
        },
    );
    names.filter_map(|name| queue.group_stat(group, &name).map(|it| (name, it))).collect()
}

/// The account of a group's floor, if it has one: the shortfall in nanoseconds, the seconds judged, and the seconds
/// missed, in total and by cause.
fn floor(groups: &GroupTree, id: GroupId, times: &QueueTimes) -> Vec<(String, Reading)> {
    let has_floor = groups.get(id).is_some_and(|it| !it.promise.guarantee.reserve.is_none());
    if !has_floor {
        return Vec::new();
    }
    let report = times.floor(id).copied().unwrap_or_else(|| FloorReport::new(id.index()));
    let mut all = vec![
        ("floor_short_time".to_owned(), report.short.0),
        ("floor_seconds".to_owned(), report.seconds),
        ("floor_missed".to_owned(), report.missed),
    ];
    let causes = FloorCause::ALL.into_iter().zip(report.causes).filter(|(_, count)| *count > 0);
    all.extend(causes.map(|(cause, count)| (format!("floor_missed_{}", cause.name()), count)));
    all.into_iter().map(|(name, count)| (name, Reading::Number(count))).collect()
}

/// The floors of groups that were missed in a run, a line for each.
pub fn floors<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<String> {
    plan.groups.missed_floors(&queue.times().floors)
}

/// How the latency goals of groups stood at the end of a run, a line for each.
pub fn goals<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<String> {
    let lines = queue.goals().map(|goals| goals.lines(&plan.groups)).unwrap_or_default();
    lines.into_iter().map(|line| format!("latency goal: {line}")).collect()
}

/// The operations, in the order of the counts.
const OPS: [&str; 4] = ["read", "write", "discard", "flush"];

/// Returns the stages of each operation's time, if `plan` requests these counts.
pub fn times<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<OpTimes> {
    if !plan.iostats {
        return Vec::new();
    }
    let all = queue.times().all();
    let some = OPS.into_iter().zip(&all).filter(|(_, of)| of.ios > 0);
    let times = some.map(|(op, of)| OpTimes {
        op,
        requests: of.ios,
        merged: of.merged,
        stages: [of.slot, of.policy, of.tag, of.device],
    });
    times.collect()
}

/// The state shared by the scheduler's instances, as far as the scheduler exposes it.
pub fn shared<P: Send + 'static>(queue: &Queue<P>) -> Shared {
    let mut governor = Vec::new();
    queue.inspect_governor(&mut |name, value| governor.push((name, value)));
    let tokens = queue.tokens().into_iter().map(|(_, tokens)| tokens).collect();
    Shared { tokens, governor }
}
