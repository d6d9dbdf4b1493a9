//! Shares by weight that were missed, in the notes on a run.
//!
//! The shares of a report are of bytes, and weights divide device time. Among loads alike the two are proportional, so
//! only these are judged. A server, which counts device time, judges all loads.

use super::tally::Part;
use crate::plan::{self, Plan, RunSpec, SchedulerChoice, ThreadSpec};
use crate::report::model::Groups;
use crate::report::wording::percent;
use blkmq_sched::Shape;

/// The least number of I/Os in flight of a group that is judged: a device may always have one in service and one behind
/// it.
const LEAST: u32 = 3;

/// A line for each group that nearly always had all of its I/Os in flight, and moved less than three quarters of the
/// bytes due to its weight.
pub fn missed(
    plan: &Plan,
    spec: &RunSpec<'_>,
    parts: &[(ThreadSpec, Part)],
    groups: &Groups,
) -> Vec<String> {
    let is_judged = !plan.groups.is_empty() && are_alike(plan) && !has_promises(plan);
    if !is_judged || !by_weight(spec.scheduler) {
        return Vec::new();
    }
    let lines = groups.all.iter().enumerate().filter_map(|(at, group)| {
        let job = |thread: &ThreadSpec| &plan.jobs[thread.job];
        let threads = parts.iter().filter(|(it, _)| job(it).cgroup.as_deref() == Some(&group.name));
        let depth: u32 = threads.clone().map(|(it, _)| job(it).depth.iodepth).sum();
        let held: f64 = threads.map(|(_, part)| in_flight(part)).sum();
        let is_busy = depth >= LEAST && held >= 0.9 * f64::from(depth);
        let (has, due) = (groups.share(at), groups.due(at)?);
        (is_busy && has < 0.75 * due).then(|| {
            format!(
                "{} has {} of the bytes under {} and is due {} by weight, although it had {depth} I/Os in flight \
                 nearly all the time: see Shares in docs/guarantees.md",
                group.name,
                percent(has),
                spec.scheduler.factory.name,
                percent(due)
            )
        })
    });
    lines.collect()
}

/// Returns whether the scheduler shares by group. An instance says so.
fn by_weight(scheduler: &SchedulerChoice) -> bool {
    let shape = Shape { slots: 1, nr_requests: 1, hw_depth: 1, hw_queues: 1, rotational: false };
    (scheduler.factory.build)(&shape, &scheduler.options).facts().shares_by_group
}

/// Returns whether the jobs differ only in their names, groups, places and depths.
fn are_alike(plan: &Plan) -> bool {
    const OTHERS: [&str; 8] =
        ["[", "cgroup", "iodepth", "numjobs", "offset", "size", "filename", "group_reporting"];
    let load = |job| {
        let text = plan::job_file(std::slice::from_ref(job));
        let lines = text.lines().filter(|line| !OTHERS.iter().any(|it| line.starts_with(it)));
        Vec::from_iter(lines.map(str::to_owned))
    };
    plan.jobs.windows(2).all(|pair| load(&pair[0]) == load(&pair[1]))
}

/// Returns whether some group has a promise that precedes weights.
fn has_promises(plan: &Plan) -> bool {
    let mut groups = plan.groups.iter();
    groups.any(|it| it.promise != Default::default() || it.max != Default::default())
}

/// The mean number of a thread's I/Os in flight: the sum of their times, divided by its time. 0 if it was not measured.
fn in_flight(part: &Part) -> f64 {
    let times = part.tally.counts.iter().filter_map(|counts| counts.times.lat.as_ref());
    let time: f64 = times.map(|lat| lat.mean() * lat.count() as f64).sum();
    time / part.tally.runtime().0.max(1) as f64
}
