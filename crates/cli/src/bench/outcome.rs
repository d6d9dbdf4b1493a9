//! The outcome of a run: the counts of its threads and its queue, in the form of the report.

use super::groups;
use super::state;
use super::tally::{self, Part};
use super::trouble::{self, Trouble};
use super::watch;
use crate::devices;
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::plan::{self, Plan, SchedulerChoice};
use crate::report::group::Groups;
use crate::report::job::JobResult;
use crate::report::model::{self, Counters, Kicks, Locks, Merges, OpTimes, Run, Shared};
use blkmq::Device;
use blkmq_core::{Instant, Nanos, Payload};
use blkmq_engine::{Queue, QueueStats};
use blkmq_lab::observe::Observation;
use blkmq_lab::workload::Job;
use blkmq_sched::Scope;

/// The outcome of a run.
pub struct Outcome {
    pub run: Run,
    /// Notes of the device about its parameters, and of the queue about its configuration.
    pub notes: Vec<String>,
    /// The failures of the run.
    pub troubles: Vec<Trouble>,
}

/// The counts of a run, in addition to those of its threads, before they are combined.
pub struct Counted<'a> {
    /// Notes on goals and floors.
    pub notes: Vec<String>,
    pub stats: QueueStats,
    pub groups: Groups,
    pub shared: Shared,
    pub times: Vec<OpTimes>,
    /// From the first I/O to the last.
    pub elapsed: Nanos,
    /// The end of the run.
    pub end: Instant,
    /// CPU time of the whole process, or `None` if unknown.
    pub cpu_ns: Option<u64>,
    /// The observers of the run.
    pub observed: &'a Observation,
    /// Logs that could not be written to their end.
    pub incomplete: Vec<String>,
}

impl<'a> Counted<'a> {
    /// The counts of `parts` and of `queue`, without times.
    pub fn of<P: Payload>(
        plan: &Plan,
        parts: &[(ThreadSpec, Part)],
        queue: &Queue<P>,
        observed: &'a Observation,
    ) -> Self {
        Self {
            notes: groups::goals(plan, queue)
                .into_iter()
                .chain(groups::floors(plan, queue))
                .collect(),
            stats: queue.stats(),
            groups: groups::results(plan, parts, queue),
            shared: groups::shared(queue),
            times: groups::times(plan, queue),
            elapsed: Nanos::ZERO,
            end: Instant::ZERO,
            cpu_ns: None,
            observed,
            incomplete: Vec::new(),
        }
    }
}

/// Combines the outcome of `spec`, with `notes` on features not supported by the queue's configuration.
pub fn outcome(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
    notes: Vec<String>,
    (parts, counted): (&[(ThreadSpec, Part)], Counted<'_>),
) -> Outcome {
    let run = run_of(plan, spec, device, parts, &counted);
    let Counted { notes: of_groups, incomplete, .. } = counted;
    let notes = device.notes().iter().cloned().chain(notes).chain(of_groups);
    let notes = notes.chain(device.take_findings().iter().map(ToString::to_string)).collect();
    let mut troubles = trouble::all(plan, parts);
    let unsaved = state::save(plan, spec, parts);
    troubles.extend(incomplete.into_iter().chain(unsaved).map(Trouble::Log));
    Outcome { run, notes, troubles }
}

/// The figures of `spec`, at its end or before.
pub fn run_of(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
    parts: &[(ThreadSpec, Part)],
    counted: &Counted<'_>,
) -> Run {
    let ramp = plan
        .jobs
        .iter()
        .map(|job| job.startdelay.0.saturating_add(job.ramp_time.0))
        .max()
        .unwrap_or(0);
    let verifies = parts.iter().any(|(_, part)| part.tally.verify.is_some());
    let longest = parts.iter().map(|(_, part)| part.tally.longest_call).max().unwrap_or_default();
    let (name, options) = name_and_options(spec.scheduler);
    Run {
        scheduler: name,
        scheduler_options: options,
        device: model::Device { kind: devices::kind(device), text: spec.device.text.clone() },
        access: spec.access.text.clone(),
        scope: match spec.scope {
            Scope::Queue => "queue".into(),
            Scope::HwQueue => "hwqueue".into(),
        },
        threads: spec.threads.len() as u32,
        is_partial: false,
        jobs: results(plan, spec, parts),
        elapsed_ns: counted.elapsed.0.saturating_sub(ramp),
        ramp_ns: ramp,
        case: plan.case_name(spec),
        repetition: spec.repetition as usize,
        repetitions: Vec::new(),
        // With a ramp or verification, the CPU time of the process covers more than the measurement; then the jobs' own
        // times are used.
        cpu_ns: counted.cpu_ns.filter(|_| ramp == 0 && !verifies),
        counters: counters(&counted.stats, longest),
        groups: counted.groups.clone(),
        shared: counted.shared.clone(),
        times: counted.times.clone(),
        inversions_per_1000: watch::inversions_per_1000(counted.observed),
        courses: watch::courses(plan, parts, device, counted.observed, counted.end),
    }
}

/// The name of the policy, even if it was chosen automatically, and its options as given.
fn name_and_options(scheduler: &SchedulerChoice) -> (String, String) {
    let options = scheduler.text.split_once(':').map_or("", |(_, options)| options);
    (scheduler.factory.name.into(), options.into())
}

/// One result per thread, or per group if the plan asks for group reporting, as fio reports.
fn results(plan: &Plan, spec: &RunSpec<'_>, parts: &[(ThreadSpec, Part)]) -> Vec<JobResult> {
    let mut results = Vec::new();
    let mut at = 0;
    let mut parts: Vec<(ThreadSpec, Option<&Part>)> =
        parts.iter().map(|(thread, part)| (*thread, Some(part))).collect();
    while at < parts.len() {
        let thread = parts[at].0;
        let job = &plan.jobs[thread.job];
        let together = |other: &ThreadSpec| {
            *other == thread
                || job.group_reporting
                    && other.group == thread.group
                    && plan.jobs[other.job].group_reporting
        };
        let mine: Vec<(ThreadSpec, &Part)> = parts
            .iter_mut()
            .filter(|(other, _)| together(other))
            .filter_map(|(other, part)| Some((*other, part.take()?)))
            .collect();
        if !mine.is_empty() {
            let cgroup = cgroup(plan, &mine);
            let mine = Vec::from_iter(mine.into_iter().map(|(_, part)| part));
            let result = tally::result(job, thread.group, options(plan, spec, job), &mine);
            results.push(JobResult { cgroup, ..result });
        }
        at += 1;
    }
    results
}

/// The group that all of `mine` are in, unless it is the root.
fn cgroup(plan: &Plan, mine: &[(ThreadSpec, &Part)]) -> Option<String> {
    let of = |thread: &ThreadSpec| plan.jobs[thread.job].cgroup.as_deref();
    let first = of(&mine.first()?.0)?;
    mine.iter().all(|(thread, _)| of(thread) == Some(first)).then(|| first.to_owned())
}

/// The job's options as written by the user. For a job without options, returns those of a job file with the name and
/// the engine, which readers of fio's results expect.
fn options(plan: &Plan, spec: &RunSpec<'_>, job: &Job) -> Vec<(String, String)> {
    if let Some(written) = plan.written.jobs.get(job.index as usize) {
        return written.clone();
    }
    let mut options = vec![
        ("name".to_owned(), job.name.clone()),
        ("ioengine".to_owned(), engine(plan, spec).to_owned()),
    ];
    let text = plan::job_file(std::slice::from_ref(job));
    let pair = |line: &str| match line.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (line.to_owned(), "1".to_owned()),
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('['));
    options.extend(lines.map(pair));
    options
}

/// The engine named on the command line, or else that of the device; `blkmq` for a model.
fn engine<'a>(plan: &'a Plan, spec: &RunSpec<'_>) -> &'a str {
    let named = plan.annotations.iter().rfind(|(name, _)| *name == "ioengine");
    match (named, spec.device.name.as_str()) {
        (Some((_, engine)), _) => engine,
        (None, "uring") => "io_uring",
        (None, "null") => "null",
        (None, _) => "blkmq",
    }
}

fn counters(stats: &QueueStats, longest: Nanos) -> Counters {
    let merges = stats.merges;
    Counters {
        submitted: stats.submitted,
        completed: stats.completed,
        splits: stats.splits,
        merges: Merges {
            plug: merges.plug,
            back: merges.back,
            front: merges.front,
            request: merges.request,
            discard: merges.discard,
        },
        cancelled: stats.cancelled.total(),
        flush_surplus: stats.flushes.surplus(),
        dispatches: stats.dispatched,
        requests_completed: stats.completed_requests,
        batch_mean: stats.batch_mean(),
        kicks: Kicks { sent: stats.kicks_sent, coalesced: stats.kicks_coalesced },
        locks: Locks {
            taken: stats.locks.taken,
            contended: stats.locks.contended,
            waited_ns: stats.locks.waited.0,
            merges_skipped: stats.locks.merges_skipped,
            parked: stats.locks.parked,
            left: stats.locks.left,
        },
        requeues: stats.requeues,
        timeouts: stats.timeouts,
        retries: stats.retries,
        longest_run_passes: stats.longest_run,
        longest_run_ns: longest.0,
    }
}
