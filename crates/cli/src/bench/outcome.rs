//! The outcome of a run: the counts of its threads, its groups and its queue, in the form of the report; the observers
//! of the run, and the files that their records go to.
//!
//! [`Disks`] are the kernel's counts for the disks under the files of a plan, from their `stat` files. As in fio's
//! `disk_util`, the counts cover the whole disk, including other programs.

use super::tally::{self, Part, Trouble};
use super::{setup, shares};
use crate::Failure;
use crate::devices::{self, path_of};
use crate::plan::{
    self, Choice, Plan, RunSpec, SchedulerChoice, StatsChoice, ThreadSpec, Time, TracePlan,
};
use crate::report::job::JobResult;
use crate::report::model::{
    self, Counters, Courses, Disk, GroupResult, Groups, Kicks, Locks, Merges, OpTimes, Run, Shared,
    Waited,
};
use blkmq::Device;
use blkmq_core::{GroupId, GroupIndex, Instant, Nanos, Payload};
use blkmq_device::OccupancyLog;
use blkmq_engine::{GroupTree, Queue, QueueStats, QueueTimes, Wait};
use blkmq_lab::elevator_log::ElevatorLog;
use blkmq_lab::observe::{Depths, Inversions, Observation};
use blkmq_lab::trace::Tracer;
use blkmq_lab::workload::{Job, Series};
use blkmq_sched::{FloorCause, FloorReport, GroupStats, Reading};
use blkmq_terminal::UsageError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
            notes: goals(plan, queue).into_iter().chain(floors(plan, queue)).collect(),
            stats: queue.stats(),
            groups: group_results(plan, parts, queue),
            shared: shared(queue),
            times: times(plan, queue),
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
    let missed = shares::missed(plan, spec, parts, &run.groups);
    let notes = device.notes().iter().cloned().chain(notes).chain(of_groups).chain(missed);
    let notes = notes.chain(device.take_findings().iter().map(ToString::to_string)).collect();
    let mut troubles = tally::all(plan, parts);
    let unsaved = setup::save_state(plan, spec, parts);
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
        scope: spec.scope.word().into(),
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
        inversions_per_1000: inversions_per_1000(counted.observed),
        courses: courses(plan, parts, device, counted.observed, counted.end),
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

/// The counters of the level `basic`; each also has a variant that includes all groups below.
const BASIC: [&str; 6] =
    ["io_service_bytes", "io_serviced", "io_service_time", "io_wait_time", "io_merged", "sectors"];

/// The results of `plan`'s groups after a run of `parts` on `queue`; none if there is only the root and nothing is
/// counted.
fn group_results<P: Send + 'static>(
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
    Groups { level: plan.group_stats.word().into(), all }
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
fn floors<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<String> {
    plan.groups.missed_floors(&queue.times().floors)
}

/// How the latency goals of groups stood at the end of a run, a line for each.
fn goals<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<String> {
    let lines = queue.goals().map(|goals| goals.lines(&plan.groups)).unwrap_or_default();
    lines.into_iter().map(|line| format!("latency goal: {line}")).collect()
}

/// The operations, in the order of the counts.
const OPS: [&str; 4] = ["read", "write", "discard", "flush"];

/// Returns the stages of each operation's time, if `plan` requests these counts.
fn times<P: Send + 'static>(plan: &Plan, queue: &Queue<P>) -> Vec<OpTimes> {
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
fn shared<P: Send + 'static>(queue: &Queue<P>) -> Shared {
    let mut governor = Vec::new();
    queue.inspect_governor(&mut |name, value| governor.push((name, value)));
    let tokens = queue.tokens().into_iter().map(|(_, tokens)| tokens).collect();
    Shared { tokens, governor }
}

/// The maximum size of an elevator log in bytes: some ten million calls.
const LOG_BYTES: usize = 256 << 20;
/// The slots of every elevator whose inversions are counted, and to spare.
const REQUESTS: usize = 1 << 16;

/// The observers that `plan` requests for each of its runs.
pub fn observation(plan: &Plan, spec: &RunSpec<'_>) -> Observation {
    let cpus = u16::try_from(spec.threads.len()).unwrap_or(u16::MAX);
    let tracer = plan.trace.as_ref().map(|trace| Tracer::new(cpus, trace.events));
    let inversions = plan.inversions.then(|| Inversions::new(REQUESTS));
    let log = plan.elevator_log.as_ref().map(|_| ElevatorLog::new(LOG_BYTES));
    // In real time, observing every request slows the run down, so depths are recorded only if requests are observed
    // for another reason.
    let watched = plan.time != Time::Real || tracer.is_some() || log.is_some();
    let depths = (plan.draws() && watched).then(Depths::default);
    Observation { tracer, depths, log, inversions }
}

/// The courses over time of a run of `parts` that ended at `end`.
fn courses(
    plan: &Plan,
    parts: &[(ThreadSpec, Part)],
    device: &Device,
    observed: &Observation,
    end: Instant,
) -> Option<Courses> {
    if !plan.draws() {
        return None;
    }
    let mut completions: Option<Series> = None;
    for course in parts.iter().filter_map(|(_, part)| part.tally.course.as_ref()) {
        completions.get_or_insert_with(Series::new).merge(course);
    }
    let occupancy = devices::occupancy(device);
    Some(Courses {
        completions,
        elevator: observed.depths.as_ref().map(|depths| depths.elevator(end)),
        device: observed.depths.as_ref().map(|depths| depths.device(end)),
        spans: occupancy.map(OccupancyLog::spans).unwrap_or_default(),
        spans_missed: occupancy.map_or(0, OccupancyLog::missed),
    })
}

/// Requests in a thousand that overtook one picked before them, if they were counted.
fn inversions_per_1000(observed: &Observation) -> Option<f64> {
    let (arrived, inverted) = observed.inversions.as_ref()?.counts();
    Some(inverted as f64 * 1_000.0 / arrived.max(1) as f64)
}

/// The process number of thread `number` of a run; 0 means no thread.
pub fn pid(number: usize) -> u32 {
    number as u32 + 1
}

/// Writes the records of a run, and returns the notes about them.
///
/// # Errors
/// If a file cannot be written.
pub fn write_records(
    plan: &Plan,
    spec: &RunSpec<'_>,
    observed: &Observation,
) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    if let (Some(trace), Some(tracer)) = (&plan.trace, &observed.tracer) {
        notes.extend(write_trace(plan, spec, trace, tracer)?);
    }
    if let (Some(file), Some(log)) = (&plan.elevator_log, &observed.log) {
        let path = PathBuf::from(plan.file_of(spec, file));
        put(&path, &log.bytes(&plan.command))?;
        let missed = log.missed();
        notes.extend((missed > 0).then(|| {
            format!("{missed} calls are missing at the end of elevator log {}.", path.display())
        }));
    }
    Ok(notes)
}

fn write_trace(
    plan: &Plan,
    spec: &RunSpec<'_>,
    trace: &TracePlan,
    tracer: &Tracer,
) -> Result<Option<String>, Failure> {
    let names = spec.threads.iter().enumerate();
    let names = names.map(|(at, thread)| (pid(at), plan.jobs[thread.job].name.as_str()));
    let missed = tracer.missed();
    let prefix = plan.file_of(spec, &trace.prefix);
    let file = |cpu: u32| PathBuf::from(format!("{prefix}.blktrace.{cpu}"));
    let mut cpus = 0;
    for buffer in tracer.buffers(&names.collect::<Vec<_>>()) {
        let path = file(buffer.cpu);
        put(&path, &buffer.bytes)?;
        cpus = cpus.max(buffer.cpu + 1);
    }
    // Files of an earlier trace with the same name and more CPUs would be read as part of this trace.
    while file(cpus).exists() {
        std::fs::remove_file(file(cpus)).map_err(|e| unwritable(&file(cpus), &e))?;
        cpus += 1;
    }
    Ok((missed > 0).then(|| {
        format!(
            "{missed} events are missing at the end of trace {prefix}; a shorter run or a larger trace_events keeps \
             them."
        )
    }))
}

/// Writes a file completely, or removes it.
fn put(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|e| {
        // Half a record would be read as a whole one.
        let is_file = path.metadata().is_ok_and(|it| it.is_file());
        let removed = is_file && std::fs::remove_file(path).is_ok();
        let left = if removed { "; the file is removed" } else { "" };
        Failure::Results(format!("{}: {e}{left}", path.display()))
    })
}

fn unwritable(path: &Path, e: &std::io::Error) -> Failure {
    UsageError::new(format!("{}: {e}", path.display())).into()
}

/// The disks, and their initial counts.
pub struct Disks {
    began_ms: u64,
    all: Vec<(PathBuf, Counts)>,
}

/// The numbers of a `stat` file, in the order of the kernel.
type Counts = [u64; 11];

impl Disks {
    /// Finds the disks under the files of `plan`. There are none without files, in virtual time, and where the kernel
    /// shows no disk.
    pub fn of(plan: &Plan) -> Self {
        let mut all: Vec<(PathBuf, Counts)> = Vec::new();
        let choices = plan.devices.iter().filter(|_| plan.time == Time::Real && plan.disk_util);
        let texts = choices.flat_map(|choice| {
            let files = choice.files.iter().map(|file| &file.text);
            files.chain(choice.files.is_empty().then_some(&choice.text))
        });
        for text in texts {
            let Some(path) = path_of(text).map(Path::new) else { continue };
            if let Some(folder) =
                disk_of(path).filter(|folder| all.iter().all(|(it, _)| it != folder))
            {
                all.extend(counts(&folder).map(|counts| (folder, counts)));
            }
        }
        Self { began_ms: blkmq_runtime::wall_clock_millis(), all }
    }

    /// The counts since the beginning.
    pub fn used(&self) -> Vec<Disk> {
        let elapsed = blkmq_runtime::wall_clock_millis().saturating_sub(self.began_ms);
        let one = |(folder, before): &(PathBuf, Counts)| {
            let name = folder.file_name()?.to_string_lossy().into_owned();
            Some(used(name, before, &counts(folder)?, elapsed))
        };
        self.all.iter().filter_map(one).collect()
    }
}

fn used(name: String, before: &Counts, after: &Counts, elapsed_ms: u64) -> Disk {
    let [
        read_ios,
        read_merges,
        _,
        read_ticks,
        write_ios,
        write_merges,
        _,
        write_ticks,
        _,
        busy,
        in_queue,
    ] = std::array::from_fn(|at| after[at].saturating_sub(before[at]));
    let util = (100.0 * busy as f64 / elapsed_ms.max(1) as f64).min(100.0);
    Disk {
        name,
        read_ios,
        write_ios,
        read_merges,
        write_merges,
        read_ticks,
        write_ticks,
        in_queue,
        util,
    }
}

fn counts(folder: &Path) -> Option<Counts> {
    parse_counts(&std::fs::read_to_string(folder.join("stat")).ok()?)
}

fn parse_counts(text: &str) -> Option<Counts> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let mut counts = [0; 11];
    for count in &mut counts {
        *count = numbers.next()??;
    }
    Some(counts)
}

/// Returns the sysfs folder of the disk under the file or block device at `path`; for a partition, that of the whole
/// disk. If the file does not exist yet, its folder decides.
#[cfg(target_os = "linux")]
fn disk_of(path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let found = std::fs::metadata(path);
    let found = found.or_else(|_| std::fs::metadata(folder.unwrap_or(Path::new(".")))).ok()?;
    let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let disk = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(if disk.join("partition").exists() { disk.parent()?.to_owned() } else { disk })
}

#[cfg(not(target_os = "linux"))]
fn disk_of(_: &Path) -> Option<PathBuf> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of the kernel's Documentation/block/stat.
    #[test]
    fn counts_are_differences_in_fios_order() {
        let before =
            parse_counts("  10 1 80 5 20 2 160 7 0 100 12 0 0 0 0 3 4\n").expect("eleven numbers");
        let after = parse_counts("110 3 880 55 220 12 1760 77 2 600 132").expect("eleven numbers");
        let disk = used("vda".into(), &before, &after, 1_000);
        assert_eq!(
            (disk.read_ios, disk.write_ios, disk.read_merges, disk.write_merges),
            (100, 200, 2, 10)
        );
        assert_eq!((disk.read_ticks, disk.write_ticks, disk.in_queue), (50, 70, 120));
        assert!((disk.util - 50.0).abs() < 1e-9);
        assert_eq!(used("vda".into(), &before, &after, 0).util, 100.0);
        assert!(parse_counts("1 2 3").is_none() && parse_counts("a b c d e f g h i j k").is_none());
    }
}
