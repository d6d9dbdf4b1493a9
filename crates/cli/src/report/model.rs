//! The results of a benchmark: plain data, filled by the runner and read by every output format; the counts of a run's
//! queue and the I/O of its groups; and the machine on which they were measured, as described by Linux in `/proc` and
//! `/sys`.
//!
//! A figure derived from other figures is a method and not a field, so that figures cannot disagree. This file does not
//! print or judge; [`judgement`](super::judgement) judges. A property of the machine that cannot be read is left empty:
//! a report must neither fail nor guess because a container hides a file.
//!
//! Shares of groups are of the bytes that jobs transferred while measuring, so they are meaningful under every
//! scheduler, and most so if all groups had I/O throughout. The scheduler's counts cover the whole life of the queue,
//! including the ramp, and count requests, in which I/Os may be merged.

use super::job::{JobResult, Latency, ratio};
use blkmq_device::Span;
use blkmq_lab::workload::{self, Series};
use blkmq_sched::Reading;
use std::path::Path;
use std::{fmt, fs};

/// The results of one `blkmq bench` or `blkmq sim`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The command line as typed, which repeats the measurement.
    pub command: String,
    /// The version of blkmq, `0.1.0`.
    pub version: String,
    /// The seed of the runs, if they are simulated; times are virtual then.
    pub seed: Option<u64>,
    /// The time of its creation: milliseconds since the epoch, UTC; 0 in virtual time.
    pub time_ms: u64,
    /// The machine of the runs.
    pub machine: Machine,
    /// Options that hold for every job, as fio's `global options`.
    pub global_options: Vec<(String, String)>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
    /// The runs in the order of display; they are compared with the first.
    pub runs: Vec<Run>,
    /// The disks below the files of the runs, all of which they cover.
    pub disks: Vec<Disk>,
    /// The missing runs, if there are any.
    pub partial: Option<Partial>,
}

impl Report {
    /// A report of these runs on the same machine.
    #[must_use]
    pub fn of_runs(&self, runs: Vec<Run>) -> Self {
        Self { runs, machine: self.machine.clone(), seed: self.seed, ..Self::default() }
    }

    /// The kinds of I/O whose latencies are shown apart, since those of reads and writes differ by orders of magnitude;
    /// only `None`, for all I/Os, if the runs do just one kind.
    #[must_use]
    pub fn kinds(&self) -> Vec<Option<workload::Direction>> {
        let is_used = |kind: &workload::Direction| self.runs.iter().any(|run| run.does(*kind));
        let used = workload::Direction::ALL.into_iter().filter(is_used).map(Some);
        let used = Vec::from_iter(used);
        if used.len() < 2 { vec![None] } else { used }
    }
}

/// A disk under the files of a run, with fio's names: the counts of the kernel's block layer for all programs during
/// the runs.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct Disk {
    /// The name of the disk in sysfs.
    pub name: String,
    /// Reads completed.
    pub read_ios: u64,
    /// Writes completed.
    pub write_ios: u64,
    /// Reads merged into others.
    pub read_merges: u64,
    /// Writes merged into others.
    pub write_merges: u64,
    /// Milliseconds that reads took, all together.
    pub read_ticks: u64,
    /// Milliseconds that writes took.
    pub write_ticks: u64,
    /// Milliseconds that requests were in the queue, all together.
    pub in_queue: u64,
    /// The percentage of time in which the disk was busy.
    pub util: f64,
}

/// A report before all runs have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Partial {
    /// Runs that have ended as planned.
    #[serde(rename = "runs")]
    pub done: usize,
    /// Runs that were planned.
    pub planned: usize,
    /// The signal that ended the command; `None` while it runs.
    pub signal: Option<i32>,
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, planned, signal } = self;
        match signal {
            Some(signal) => {
                write!(f, "Partial: ended by signal {signal} after {done} of {planned} runs.")
            }
            None => write!(f, "Partial: {done} of {planned} runs so far."),
        }
    }
}

/// One workload on one queue. If it was repeated, everything but `repetitions` is from the repetition with the median
/// rate. Serialized it is the queue of a job in fio's JSON, so the order of the fields is that of the keys.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Run {
    /// The repetition that the figures are of, from 0.
    pub repetition: usize,
    /// The run was cut short by a signal, or has not ended.
    #[serde(rename = "partial", skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    /// The scheduler's name, `mq-deadline`.
    pub scheduler: String,
    /// The attributes that were set, `read_expire=100,fifo_batch=8`; empty with defaults.
    pub scheduler_options: String,
    /// The device of the I/O.
    pub device: Device,
    /// How threads share the elevator, in the spelling of the option `access`.
    pub access: String,
    /// The scope of an elevator, in the spelling of the option `scope`.
    pub scope: String,
    /// Threads that submitted.
    pub threads: u32,
    /// Measured wall time in nanoseconds, without the ramp.
    pub elapsed_ns: u64,
    /// Wall time before measuring began, in nanoseconds; excluded from every figure of the jobs.
    pub ramp_ns: u64,
    /// CPU time of the whole process while measuring, in nanoseconds, including threads without a job (pumps). `None`
    /// if it was not read; then the jobs' own times are used.
    pub cpu_ns: Option<u64>,
    /// I/Os per second over all jobs, one value for each repetition.
    #[serde(rename = "repetitions_iops")]
    pub repetitions: Vec<f64>,
    /// The counters of the queue.
    #[serde(flatten)]
    pub counters: Counters,
    /// The name that distinguishes the run within the report, valid in file names; empty if there is only one.
    #[serde(skip)]
    pub case: String,
    /// The figures of each job (or group of jobs).
    #[serde(skip)]
    pub jobs: Vec<JobResult>,
    /// The figures of the groups; empty without groups.
    #[serde(skip)]
    pub groups: Groups,
    /// The state shared by the instances of a scheduler.
    #[serde(skip)]
    pub shared: Shared,
    /// The stages of each operation's time, including the ramp; empty if it was not counted.
    #[serde(skip)]
    pub times: Vec<OpTimes>,
    /// Requests in a thousand that reached the device before one picked earlier, if they were counted.
    #[serde(skip)]
    pub inversions_per_1000: Option<f64>,
    /// The courses over time, if they were recorded: they are, for pages with plots.
    #[serde(skip)]
    pub courses: Option<Courses>,
}

/// The courses of a run over time.
#[derive(Clone, Debug, Default)]
pub struct Courses {
    /// Completions with their latencies in nanoseconds.
    pub completions: Option<Series>,
    /// Requests held by schedulers.
    pub elevator: Option<Series>,
    /// Requests at the device.
    pub device: Option<Series>,
    /// The activities of the parts of a modelled device, in the order in which they were decided.
    pub spans: Vec<Span>,
    /// Spans that are missing, because the log was full.
    pub spans_missed: u64,
}

/// The device of a run.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(transparent)]
pub struct Device {
    /// Decides which conclusions the figures allow.
    #[serde(skip)]
    pub kind: DeviceKind,
    /// Name and parameters, `null(irqmode=0,submit_queues=2)`.
    pub text: String,
}

/// The bottleneck of a device: the source of its latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceKind {
    /// Nothing: the cost of the block layer alone.
    #[default]
    Null,
    /// Copying memory.
    Memory,
    /// A model of a disk or an SSD.
    Model,
    /// A file or block device of this machine.
    File,
}

impl DeviceKind {
    /// Whether the processor is the bottleneck, so that time per I/O is CPU time.
    #[must_use]
    pub fn is_cpu_bound(self) -> bool {
        matches!(self, Self::Null | Self::Memory)
    }
}

impl Run {
    /// I/Os of the workload that the jobs completed while measuring, without reads that only check.
    #[must_use]
    pub fn total_ios(&self) -> u64 {
        self.jobs.iter().map(JobResult::total_ios).sum()
    }

    /// I/Os per second, all jobs and directions together.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.jobs.iter().map(JobResult::iops).sum()
    }

    /// Bytes per second, all jobs and directions together.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.jobs.iter().map(JobResult::bytes_per_second).sum()
    }

    /// Returns the completion latency of all I/Os, from the push (if that was not measured, from the decision to
    /// issue). `None` if nothing was measured, as under `gtod_reduce`.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        self.latency_of_kind(None)
    }

    /// Like [`latency`](Self::latency), but for the I/Os of one kind, if there is one.
    #[must_use]
    pub fn latency_of_kind(&self, kind: Option<workload::Direction>) -> Option<Latency> {
        let directions = self.jobs.iter().flat_map(JobResult::directions);
        let wanted = directions.filter(|(name, _)| kind.is_none_or(|kind| *name == kind.name()));
        Latency::sum(wanted.filter_map(|(_, it)| it.clat.as_ref().or(it.lat.as_ref())))
    }

    /// Returns whether the workload does I/Os of this kind, not counting reads that only check contents.
    #[must_use]
    pub fn does(&self, direction: workload::Direction) -> bool {
        let does = |job: &JobResult| match direction {
            workload::Direction::Read => job.reads(),
            workload::Direction::Write => job.write.total_ios > 0,
            workload::Direction::Trim => job.trim.total_ios > 0,
        };
        self.jobs.iter().any(does)
    }

    /// Returns whether the time from the push to the completion was measured.
    #[must_use]
    pub fn has_clat(&self) -> bool {
        self.jobs.iter().flat_map(JobResult::directions).any(|(_, it)| it.clat.is_some())
    }

    /// Returns CPU time per I/O in nanoseconds, or `None` if no I/O was done.
    #[must_use]
    pub fn cpu_ns_per_io(&self) -> Option<f64> {
        let by_jobs = || self.jobs.iter().map(JobResult::cpu_ns).sum();
        let cpu = self.cpu_ns.map_or_else(by_jobs, |ns| ns as f64);
        (self.total_ios() > 0).then(|| cpu / self.total_ios() as f64)
    }

    /// The share of all threads' time spent waiting for the lock of an elevator, 0 to 1; `None` without locks.
    #[must_use]
    pub fn waited_share(&self) -> Option<f64> {
        let time = f64::from(self.threads) * (self.elapsed_ns + self.ramp_ns) as f64;
        let locks = &self.counters.locks;
        (locks.taken > 0).then(|| ratio(locks.waited_ns as f64, time))
    }

    /// The minimum and maximum rate of the repetitions, in I/Os per second; `None` without repetitions.
    #[must_use]
    pub fn range(&self) -> Option<(f64, f64)> {
        let rates = self.repetitions.iter().copied();
        Some((rates.clone().reduce(f64::min)?, rates.reduce(f64::max)?))
    }

    /// The range of the repetitions relative to their median. `None` with fewer than two.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        let mut sorted = self.repetitions.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = self.range().filter(|_| sorted.len() > 1)?;
        Some(ratio(high - low, sorted[(sorted.len() - 1) / 2]))
    }
}

/// The properties of a machine that matter for comparing its figures with those of another.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Machine {
    /// The processor, `AMD EPYC 7763 64-Core Processor`.
    pub cpu_model: String,
    /// Processors that this process may use.
    pub cores: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// The distribution, `Debian GNU/Linux 12 (bookworm)`.
    pub os: String,
    /// The kernel's release, `6.1.0-18-amd64`.
    pub kernel: String,
    /// Runnable tasks averaged over the minute before the first run.
    pub load_average: Option<f64>,
    /// The hypervisor, if the machine is virtual.
    pub hypervisor: Option<String>,
    /// How the processor's frequency is chosen, `performance`.
    pub governor: Option<String>,
}

impl Machine {
    /// Describes this machine as it is now; call it before the first run, because of the load.
    #[must_use]
    pub fn detect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self::read(Path::new("/"), cores)
    }

    /// The machine of a simulation, with a CPU for each of `threads` threads.
    #[must_use]
    pub fn simulated(threads: u32) -> Self {
        Self { cpu_model: "virtual CPUs".into(), cores: threads, ..Self::default() }
    }

    /// Describes the machine with its `proc`, `sys` and `etc` under `root`.
    #[must_use]
    pub fn read(root: &Path, cores: u32) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let line = |path: &str| Some(text(path).trim().to_owned()).filter(|t| !t.is_empty());
        let cpuinfo = text("proc/cpuinfo");
        let is_guest = field(&cpuinfo, "flags", ':')
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        let kib = field(&text("proc/meminfo"), "MemTotal", ':')
            .and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok());
        Self {
            cpu_model: field(&cpuinfo, "model name", ':')
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores,
            memory_bytes: kib.unwrap_or(0) * 1024,
            os: field(&text("etc/os-release"), "PRETTY_NAME", '=')
                .map_or_else(String::new, |name| name.trim_matches('"').to_owned()),
            kernel: line("proc/sys/kernel/osrelease").unwrap_or_default(),
            load_average: text("proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|v| v.parse().ok()),
            hypervisor: is_guest
                .then(|| line("sys/class/dmi/id/sys_vendor").unwrap_or_else(|| "unknown".into())),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }
}

/// The value in the first line `name<separator>value`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// The state that the instances of a scheduler share, at the end of a run; empty for most.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Tokens of each pool, in the order of the scheduler's page: the number of requests that may be at the device.
    pub tokens: Vec<u32>,
    /// The figures exposed by its governor, by name.
    pub governor: Vec<(&'static str, u64)>,
}

/// The stages of the time of one operation's requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpTimes {
    /// `read`, `write`, `discard` or `flush`.
    pub op: &'static str,
    /// Completed requests.
    pub requests: u64,
    /// I/Os that were merged into another.
    pub merged: u64,
    /// Sums in nanoseconds, in the order of [`STAGES`].
    pub stages: [u64; 4],
}

/// The stages of a request's time: before it has a slot, in the scheduler, there while a tag or room is missing, and at
/// the device.
pub const STAGES: [&str; 4] = ["slot", "policy", "tag", "device"];

/// The counters of a run's queue over its whole life, including the ramp, after it was drained: only then do they
/// balance.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Counters {
    /// Bios passed to the queue: I/Os, or parts of I/Os that the device does not accept whole.
    pub submitted: u64,
    /// Bios completed, with an error or without.
    pub completed: u64,
    /// Splits that produced those parts: the number of bios in excess of I/Os.
    pub splits: u64,
    /// Bios and requests that became part of another request.
    pub merges: Merges,
    /// Bios cancelled by their submitters.
    pub cancelled: u64,
    /// Requests at the device in excess of the submitters' because of flushes; negative if a device without a cache has
    /// nothing to flush.
    pub flush_surplus: i64,
    /// Requests issued by the elevator to the device; a requeued request counts again.
    pub dispatches: u64,
    /// Requests that the device completed.
    pub requests_completed: u64,
    /// The mean number of requests in an issued batch.
    pub batch_mean: f64,
    /// Wake-ups of the side that pumps.
    pub kicks: Kicks,
    /// The locks of elevators; zero with access combining.
    pub locks: Locks,
    /// Requests requeued: the device wanted them later, or they were retried.
    pub requeues: u64,
    /// The number of times that the device was asked about a request that it had held for too long.
    pub timeouts: u64,
    /// Requests tried again after an error.
    pub retries: u64,
    /// The maximum number of passes by a thread over an elevator in one run.
    pub longest_run_passes: u64,
    /// The maximum time that one submission held its thread in the queue, in nanoseconds: an upper bound of the longest
    /// run. Under `gtod_reduce` one submission in 64 is timed.
    pub longest_run_ns: u64,
}

/// How bios (or, with `request`, requests) were merged. Each merge is one request less for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Merges {
    /// Into a request in the submitter's own plug.
    pub plug: u64,
    /// At the end of a queued request.
    pub back: u64,
    /// At the front of a queued request.
    pub front: u64,
    /// Two queued requests fused.
    pub request: u64,
    /// Into a discard of several ranges.
    pub discard: u64,
}

/// Wake-ups, sent and saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Kicks {
    /// Delivered.
    pub sent: u64,
    /// Avoided because a wake-up was already pending.
    pub coalesced: u64,
}

/// The locks of elevators, and the time that threads waited for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Locks {
    /// Times that a lock was taken.
    pub taken: u64,
    /// Of those, acquisitions while another thread held it.
    pub contended: u64,
    /// Thread time spent waiting for the lock, in nanoseconds, from a sample of such waits.
    pub waited_ns: u64,
    /// Merge attempts skipped because the lock was taken.
    pub merges_skipped: u64,
    /// Requests parked in insertion lists because the lock was taken.
    pub parked: u64,
    /// Dispatches left to a thread that was already dispatching.
    pub left: u64,
}

impl Merges {
    /// Names and counts, in the order of a request's life.
    #[must_use]
    pub fn each(&self) -> [(&'static str, u64); 5] {
        [
            ("plug", self.plug),
            ("back", self.back),
            ("front", self.front),
            ("request", self.request),
            ("discard", self.discard),
        ]
    }

    /// The number of requests that merging saved.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.each().iter().map(|(_, n)| n).sum()
    }
}

impl Counters {
    /// The first contradiction, a sentence, or None if every bio is accounted for: an I/O was lost, doubled or
    /// miscounted.
    #[must_use]
    pub fn imbalance(&self) -> Option<String> {
        let Self { submitted, completed, requests_completed, .. } = *self;
        let bios = i128::from(submitted) - i128::from(self.cancelled);
        let expected = bios - i128::from(self.merges.total()) + i128::from(self.flush_surplus);
        let dispatched = i128::from(self.dispatches) - i128::from(self.requeues);
        if submitted != completed {
            Some(format!("{submitted} bios were submitted and {completed} completed."))
        } else if expected != dispatched {
            let made = format!("bios less merges make {expected} requests");
            Some(format!("{made}, and {dispatched} were dispatched."))
        } else if dispatched != i128::from(requests_completed) {
            Some(format!(
                "{dispatched} requests were dispatched and {requests_completed} completed."
            ))
        } else {
            None
        }
    }

    /// The share of bios that needed no separate request, 0 to 1.
    #[must_use]
    pub fn merged_share(&self) -> f64 {
        ratio(self.merges.total() as f64, self.submitted as f64)
    }
}

/// The groups of a run, if there are any or the root has counts.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// The level of counting, in the spelling of the option `group_stats`.
    pub level: String,
    /// The root first; each group follows its parent.
    pub all: Vec<GroupResult>,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupResult {
    /// The name; `/` is the root.
    pub name: String,
    /// The index of the parent in [`Groups::all`]; `None` for the root.
    pub parent: Option<usize>,
    /// The weight among its siblings, 1 to 1000; `None` for the root.
    pub weight: Option<u32>,
    /// I/Os completed while measuring by jobs in this group, excluding groups below.
    pub ios: u64,
    /// Bytes of those I/Os.
    pub bytes: u64,
    /// The counts, by their names in cgroup v1 without the prefix, `io_wait_time_recursive`; times are in
    /// nanoseconds. Empty if the scheduler counts nothing.
    pub stats: Vec<(String, Reading)>,
    /// How long I/Os in this group, excluding groups below, waited, including the ramp; empty if that was not counted,
    /// or none waited.
    pub waited: Vec<Waited>,
}

/// The time for which I/Os of a group waited behind I/Os of another group, or of the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    /// The index in [`Groups::all`] of the group with requests at the device; `None` if the device was idle.
    pub behind: Option<usize>,
    /// Nanoseconds.
    pub ns: u64,
}

impl Groups {
    /// The index of the group called `name`.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|group| group.name == name)
    }

    /// Groups above it: 0 for the root.
    #[must_use]
    pub fn depth(&self, at: usize) -> usize {
        self.all[at].parent.map_or(0, |parent| self.depth(parent) + 1)
    }

    /// I/Os of a group and all below it.
    #[must_use]
    pub fn ios(&self, at: usize) -> u64 {
        self.sum(at, |group| group.ios)
    }

    /// Bytes of a group and all below it.
    #[must_use]
    pub fn bytes(&self, at: usize) -> u64 {
        self.sum(at, |group| group.bytes)
    }

    fn sum(&self, top: usize, of: fn(&GroupResult) -> u64) -> u64 {
        let below = (top..self.all.len()).filter(|at| self.is_below(*at, top));
        below.map(|at| of(&self.all[at])).sum()
    }

    fn is_below(&self, at: usize, top: usize) -> bool {
        at == top || self.all[at].parent.is_some_and(|parent| self.is_below(parent, top))
    }

    /// The share of all bytes of a group and its descendants, 0 to 1.
    #[must_use]
    pub fn share(&self, at: usize) -> f64 {
        ratio(self.bytes(at) as f64, self.bytes(0) as f64)
    }

    /// The share due to a group by weight, among the groups that did any I/O. `None` if it did none, or if jobs ran
    /// beside groups on a level above, because jobs compete with groups by their own weights.
    #[must_use]
    pub fn due(&self, at: usize) -> Option<f64> {
        let Some(parent) = self.all[at].parent else { return Some(1.0) };
        if self.bytes(at) == 0 || self.all[parent].bytes > 0 {
            return None;
        }
        let siblings = (0..self.all.len())
            .filter(|other| self.all[*other].parent == Some(parent) && self.bytes(*other) > 0);
        let all: u32 = siblings.filter_map(|sibling| self.all[sibling].weight).sum();
        let own = self.all[at].weight?;
        Some(self.due(parent)? * f64::from(own) / f64::from(all))
    }

    /// The mean time per request, in nanoseconds, whose sum is `name` (`io_wait_time` or `io_service_time`), for a
    /// group and its descendants. `None` if it was not counted.
    #[must_use]
    pub fn mean(&self, at: usize, name: &str) -> Option<f64> {
        let total = |name: &str| {
            let name = format!("{name}_recursive");
            let found = self.all[at].stats.iter().find(|(known, _)| *known == name);
            match found?.1 {
                Reading::Flow(flow) => Some(flow.total()),
                Reading::Number(number) => Some(number),
            }
        };
        let (sum, requests) = (total(name)?, total("io_serviced")?);
        (requests > 0).then(|| sum as f64 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_spread_is_relative_to_the_median() {
        let run = Run { repetitions: vec![110.0, 90.0, 100.0], ..Run::default() };
        assert_eq!(run.range(), Some((90.0, 110.0)));
        assert!((run.spread().expect("three repetitions") - 0.2).abs() < 1e-12);
        assert_eq!(Run { repetitions: vec![5.0], ..Run::default() }.spread(), None);
        assert_eq!(Run::default().range(), None);
    }

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().expect("a file is in a folder")).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_guest_is_described() {
        let root = std::env::temp_dir().join(format!("blkmq-machine-{}", std::process::id()));
        let cpuinfo =
            "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu hypervisor\n";
        write(&root, "proc/cpuinfo", cpuinfo);
        write(&root, "proc/meminfo", "MemTotal:        8000 kB\nMemFree: 1 kB\n");
        write(&root, "proc/loadavg", "1.50 0.70 0.30 1/100 4242\n");
        write(&root, "proc/sys/kernel/osrelease", "6.1.0\n");
        write(&root, "etc/os-release", "ID=x\nPRETTY_NAME=\"Some OS 12\"\n");
        write(&root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        let machine = Machine::read(&root, 2);
        fs::remove_dir_all(&root).unwrap();
        let expected = Machine {
            cpu_model: "Some CPU @ 2.0GHz".into(),
            cores: 2,
            memory_bytes: 8_192_000,
            os: "Some OS 12".into(),
            kernel: "6.1.0".into(),
            load_average: Some(1.5),
            hypervisor: Some("unknown".into()),
            governor: Some("powersave".into()),
        };
        assert_eq!(machine, expected);
    }

    #[test]
    fn nothing_readable_is_nothing_claimed() {
        let machine = Machine::read(Path::new("/nonexistent"), 3);
        assert_eq!(
            (machine.memory_bytes, machine.load_average, machine.hypervisor),
            (0, None, None)
        );
        assert_eq!(machine.cpu_model, std::env::consts::ARCH);
    }

    fn balanced() -> Counters {
        Counters {
            submitted: 100,
            completed: 100,
            merges: Merges { plug: 1, back: 2, front: 3, request: 4, discard: 5 },
            dispatches: 88,
            requeues: 3,
            requests_completed: 85,
            ..Counters::default()
        }
    }

    #[test]
    fn every_bio_is_accounted_for() {
        assert_eq!(balanced().imbalance(), None);
        assert!((balanced().merged_share() - 0.15).abs() < 1e-12);
        let lost = Counters { completed: 99, ..balanced() };
        let says = |counters: &Counters| counters.imbalance().unwrap_or_default();
        assert_eq!(says(&lost), "100 bios were submitted and 99 completed.");
        let extra = Counters { dispatches: 89, ..balanced() };
        let text = "bios less merges make 85 requests, and 86 were dispatched.";
        assert_eq!(says(&extra), text);
        let needless = Counters { submitted: 104, completed: 104, flush_surplus: -4, ..balanced() };
        assert_eq!(needless.imbalance(), None);
        let given_up = Counters { submitted: 101, completed: 101, cancelled: 1, ..balanced() };
        assert_eq!(given_up.imbalance(), None);
        let stuck = Counters { requests_completed: 84, ..balanced() };
        assert_eq!(says(&stuck), "85 requests were dispatched and 84 completed.");
    }

    fn at(groups: &Groups, name: &str) -> usize {
        groups.find(name).expect("it is in the sample")
    }

    #[test]
    fn a_group_has_what_is_below_it() {
        let groups = sample::groups();
        let figures = |name| {
            let at = at(&groups, name);
            (groups.depth(at), groups.ios(at), groups.bytes(at), groups.share(at))
        };
        assert_eq!(figures("/"), (0, 1_000, 1_000 << 12, 1.0));
        assert_eq!(figures("web"), (1, 800, 800 << 12, 0.8));
        assert_eq!(figures("shop"), (2, 600, 600 << 12, 0.6));
        assert_eq!(figures("idle"), (1, 0, 0, 0.0));
    }

    #[test]
    fn what_is_due_goes_by_weight_among_those_that_did_something() {
        let mut groups = sample::groups();
        let due = |groups: &Groups, name| groups.due(at(groups, name));
        assert_eq!(due(&groups, "web"), Some(0.75));
        assert_eq!(due(&groups, "backup"), Some(0.25));
        assert_eq!(due(&groups, "idle"), None);
        assert_eq!(due(&groups, "shop"), Some(0.5), "two thirds of three quarters");
        let web = at(&groups, "web");
        groups.all[web].bytes = 1;
        assert_eq!(due(&groups, "shop"), None, "a job of web competes with it");
        assert_eq!(due(&groups, "web"), Some(0.75));
    }

    #[test]
    fn means_are_per_request_and_only_of_what_was_counted() {
        let mut groups = sample::groups();
        let shop = at(&groups, "shop");
        assert_eq!(groups.mean(shop, "io_wait_time"), Some(2_000_000.0));
        assert_eq!(groups.mean(shop, "io_service_time"), Some(100_000.0));
        assert_eq!(groups.mean(at(&groups, "idle"), "io_wait_time"), None);
        groups.all[shop].stats.clear();
        assert_eq!(groups.mean(shop, "io_wait_time"), None);
        assert!(Groups::default().all.is_empty());
    }
}
