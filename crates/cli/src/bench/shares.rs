//! Shares by weight that were missed, in the notes on a run.
//!
//! The shares of a report are of bytes, and weights divide device time. Among loads alike the two are proportional, so
//! only these are judged. A server, which counts device time, judges all loads.

use crate::plan::{self, Plan, SchedulerChoice};
use crate::report::job::{Direction, JobResult};
use crate::report::model::Run;
use crate::report::wording::percent;
use blkmq_sched::Shape;

/// The least number of I/Os in flight of a group that is judged: a device may always have one in service and one behind
/// it.
const LEAST: f64 = 3.0;

/// A line for each group that nearly always had all of its I/Os in flight, and moved less than three quarters of the
/// bytes due to its weight.
pub fn missed(plan: &Plan, scheduler: &SchedulerChoice, run: &Run) -> Vec<String> {
    if plan.groups.is_empty() || !by_weight(scheduler) || !are_alike(plan) || has_promises(plan) {
        return Vec::new();
    }
    let groups = &run.groups;
    let lines = groups.all.iter().enumerate().filter_map(|(at, group)| {
        let jobs = || run.jobs.iter().filter(|job| job.cgroup.as_deref() == Some(&group.name));
        let depth: f64 = jobs().map(|job| f64::from(job.iodepth * job.members)).sum();
        let is_busy = depth >= LEAST && jobs().map(in_flight).sum::<f64>() >= 0.9 * depth;
        let (has, due) = (groups.share(at), groups.due(at)?);
        (is_busy && has < 0.75 * due).then(|| {
            format!(
                "{} has {} of the bytes under {} and is due {} by weight, although it always had {depth} I/Os in \
                 flight: see Shares in docs/guarantees.md",
                group.name,
                percent(has),
                run.scheduler,
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

/// The mean number of the job's I/Os in flight: the sum of their times, divided by the time. 0 if it was not measured.
fn in_flight(job: &JobResult) -> f64 {
    let time =
        |it: &Direction| it.lat.as_ref().map_or(0.0, |lat| lat.0.mean() * lat.0.count() as f64);
    let times = [&job.read, &job.write, &job.trim].map(time);
    times.iter().sum::<f64>() * f64::from(job.members) / job.total_runtime_ns.max(1) as f64
}
