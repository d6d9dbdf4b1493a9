//! The observers of a run, and the files that their records go to; and [`Disks`], the kernel's counts for the disks under
//! the files of a plan, from their `stat` files. As in fio's `disk_util`, the counts cover the whole disk, including other
//! programs.

use super::tally::Part;
use crate::Failure;
use crate::devices::{self, path_of};
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::plan::{Plan, Time, TracePlan};
use crate::report::model::{Courses, Disk};
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
