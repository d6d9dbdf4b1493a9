//! The observers of a run, and the files that their records go to.

use super::tally::Part;
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::plan::{Plan, Time, TracePlan};
use crate::report::model::Courses;
use crate::{Failure, devices};
use blkmq::Device;
use blkmq_core::Instant;
use blkmq_device::OccupancyLog;
use blkmq_lab::elevator_log::ElevatorLog;
use blkmq_lab::observe::{Depths, Inversions, Observation};
use blkmq_lab::trace::Tracer;
use blkmq_lab::workload::Series;
use blkmq_terminal::UsageError;
use std::path::{Path, PathBuf};

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
pub fn courses(
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
pub fn inversions_per_1000(observed: &Observation) -> Option<f64> {
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
pub fn write(
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
