//! The results of a benchmark: plain data, filled by the runner and read by every output format.
//!
//! A figure derived from other figures is a method and not a field, so that figures cannot disagree. This file does not
//! measure, print or judge; [`warnings`](super::warnings) judges.

use super::group::Groups;
use super::job::{Direction, JobResult, Latency, ratio};
use super::machine::Machine;
use blkmq_device::Span;
use blkmq_lab::workload::{self, Series};
use std::fmt;

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

/// A disk under the files of a run, with fio's names: the counts of the kernel's block layer for all programs during the
/// runs.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partial {
    /// Runs that have ended as planned.
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
/// rate.
#[derive(Clone, Debug, Default)]
pub struct Run {
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
    /// The run was cut short by a signal, or has not ended.
    pub is_partial: bool,
    /// The figures of each job (or group of jobs).
    pub jobs: Vec<JobResult>,
    /// Measured wall time in nanoseconds, without the ramp.
    pub elapsed_ns: u64,
    /// Wall time before measuring began, in nanoseconds; excluded from every figure of the jobs.
    pub ramp_ns: u64,
    /// The name that distinguishes the run within the report, valid in file names; empty if there is only one.
    pub case: String,
    /// The repetition that the figures are of, from 0.
    pub repetition: usize,
    /// I/Os per second over all jobs, one value for each repetition.
    pub repetitions: Vec<f64>,
    /// CPU time of the whole process while measuring, in nanoseconds, including threads without a job (pumps). `None`
    /// if it was not read; then the jobs' own times are used.
    pub cpu_ns: Option<u64>,
    /// The counters of the queue.
    pub counters: Counters,
    /// The figures of the groups; empty without groups.
    pub groups: Groups,
    /// The state shared by the instances of a scheduler.
    pub shared: Shared,
    /// The stages of each operation's time, including the ramp; empty if it was not counted.
    pub times: Vec<OpTimes>,
    /// Requests in a thousand that reached the device before one picked earlier, if they were counted.
    pub inversions_per_1000: Option<f64>,
    /// The courses over time, if they were recorded: they are, for pages with plots.
    pub courses: Option<Courses>,
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
#[derive(Clone, Debug, Default)]
pub struct Device {
    /// Decides which conclusions the figures allow.
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

/// The counters of a run's queue over its whole life, including the ramp, after it was drained: only then do they
/// balance.
#[derive(Clone, Debug, Default)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kicks {
    /// Delivered.
    pub sent: u64,
    /// Avoided because a wake-up was already pending.
    pub coalesced: u64,
}

/// The locks of elevators, and the time that threads waited for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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

/// Counters that contradict each other: an I/O was lost, doubled or miscounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Imbalance {
    /// Bios submitted and completed differ.
    Bios {
        /// Submitted bios.
        submitted: u64,
        /// Completed bios.
        completed: u64,
    },
    /// Bios less merges, with flushes and cancellations accounted for, are not the dispatches less requeues.
    Dispatches {
        /// Bios less merges.
        expected: i128,
        /// Dispatches less requeues.
        dispatched: i128,
    },
    /// Requests dispatched and completed differ.
    Requests {
        /// Dispatches less requeues.
        dispatched: i128,
        /// Requests that the device completed.
        completed: u64,
    },
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
    /// The first contradiction, or None if every bio is accounted for.
    #[must_use]
    pub fn imbalance(&self) -> Option<Imbalance> {
        let bios = i128::from(self.submitted) - i128::from(self.cancelled);
        let expected = bios - i128::from(self.merges.total()) + i128::from(self.flush_surplus);
        let dispatched = i128::from(self.dispatches) - i128::from(self.requeues);
        if self.submitted != self.completed {
            Some(Imbalance::Bios { submitted: self.submitted, completed: self.completed })
        } else if expected != dispatched {
            Some(Imbalance::Dispatches { expected, dispatched })
        } else if dispatched != i128::from(self.requests_completed) {
            Some(Imbalance::Requests { dispatched, completed: self.requests_completed })
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
        merged(self.directions())
    }

    /// Like [`latency`](Self::latency), but for the I/Os of one kind.
    #[must_use]
    pub fn latency_of(&self, direction: workload::Direction) -> Option<Latency> {
        merged(self.jobs.iter().map(|job| job.directions()[direction as usize].1))
    }

    /// The latencies of the I/Os of one kind, or of all.
    #[must_use]
    pub fn latency_of_kind(&self, kind: Option<workload::Direction>) -> Option<Latency> {
        kind.map_or_else(|| self.latency(), |kind| self.latency_of(kind))
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
        self.directions().any(|direction| direction.clat.is_some())
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
        let low = self.repetitions.iter().copied().reduce(f64::min)?;
        let high = self.repetitions.iter().copied().reduce(f64::max)?;
        Some((low, high))
    }

    /// The range of the repetitions relative to their median. `None` with fewer than two.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        if self.repetitions.len() < 2 {
            return None;
        }
        let mut sorted = self.repetitions.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[(sorted.len() - 1) / 2];
        Some(ratio(sorted[sorted.len() - 1] - sorted[0], median))
    }

    fn directions(&self) -> impl Iterator<Item = &Direction> {
        self.jobs.iter().flat_map(|j| [&j.read, &j.write, &j.trim])
    }
}

/// Merges the latencies of several kinds of I/O; `None` if none was measured.
fn merged<'a>(directions: impl Iterator<Item = &'a Direction>) -> Option<Latency> {
    directions.filter_map(|d| d.clat.as_ref().or(d.lat.as_ref())).fold(None, |all, l| {
        let mut all: Latency = all.unwrap_or_default();
        all.0.merge(&l.0);
        Some(all)
    })
}

#[cfg(test)]
mod tests {

    use super::*;

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
        assert_eq!(lost.imbalance(), Some(Imbalance::Bios { submitted: 100, completed: 99 }));
        let extra = Counters { dispatches: 89, ..balanced() };
        assert_eq!(extra.imbalance(), Some(Imbalance::Dispatches { expected: 85, dispatched: 86 }));
        let needless = Counters { submitted: 104, completed: 104, flush_surplus: -4, ..balanced() };
        assert_eq!(needless.imbalance(), None);
        let given_up = Counters { submitted: 101, completed: 101, cancelled: 1, ..balanced() };
        assert_eq!(given_up.imbalance(), None);
        let stuck = Counters { requests_completed: 84, ..balanced() };
        assert_eq!(stuck.imbalance(), Some(Imbalance::Requests { dispatched: 85, completed: 84 }));
    }

    #[test]
    fn the_spread_is_relative_to_the_median() {
        let run = Run { repetitions: vec![110.0, 90.0, 100.0], ..Run::default() };
        assert_eq!(run.range(), Some((90.0, 110.0)));
        assert!((run.spread().expect("three repetitions") - 0.2).abs() < 1e-12);
        assert_eq!(Run { repetitions: vec![5.0], ..Run::default() }.spread(), None);
        assert_eq!(Run::default().range(), None);
    }
}
