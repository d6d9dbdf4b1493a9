//! The report as JSON in the schema of `fio --output-format=json` (fio 3.33), so that programs that read fio's output
//! can read it.
//!
//! Units are fio's: `bw` in KiB/s, `bw_bytes` in bytes/s, `runtime` and `job_runtime` in milliseconds, `elapsed` in
//! whole seconds with the ramp, depths and latency classes in percent. Keys, nesting and order are fio's, too.
//! Additions to the schema are in objects named `blkmq`: one at the top (command, machine, notes, warnings) and one in
//! each job (the queue and its counts; all jobs of a run share a queue, so they repeat the same counts, and `run`
//! identifies them). When runs are compared, `jobs` contains the jobs of every run, run by run: each run has its own
//! groups, and `jobname` is the name of the job, a dot, and the name of the case, as in `fill.mq-deadline`. Files of
//! traces and logs have the same suffix after their prefix, and with several repetitions `.rep` and the number of the
//! repetition from 0; `repetition` is the one from which the figures are taken. `job options` has only the name of the
//! job.
//!
//! Options are listed as written: a job file's globals, and those before the first `--name`, in `global options`,
//! and each job's own in its `job options`. `fio version` begins with the version of the schema. With `group_reporting`,
//! sampled rates are sums over the threads, and `job_runtime` is the sum of their times.
//!
//! As in fio, reads that check contents count as reads, and the flush of `end_fsync` does not count as `sync`: it is
//! `end_fsync_ns`. A flush for `fdatasync` is counted in `sync`, where fio 3.33 only has its times. `clat_ns` is the
//! time from the push, so that it includes the wait in the scheduler.
//!
//! If runs are missing, the object at the top has `partial`: the `runs` that have ended, the number `planned`, and the
//! `signal` that ended the command (null in a status). A run truncated by the signal, or unfinished
//! (`status_interval`), has `partial` true. A document for each status precedes the final one.
//!
//! The object at the top has a list `queues` if there are any figures of queues: for each such `run` its `tokens`, by
//! pool; its `governor`, the exposed state that the scheduler's instances share; with `iostats` its `times`, by
//! operation: completed `requests`, `merged` I/Os, and the sums in nanoseconds of the times that the requests waited
//! for a slot, in the policy and for a tag, and were at the device; and its `groups`, the root first, with `parent`,
//! `weight`, the `ios` and `bytes` of jobs directly in it, the `share` of all bytes of the group and its descendants,
//! and the share that is `due` by weight (null if it does not follow from weights). With `iostats`, `waited_for` has
//! the nanoseconds for which I/Os directly in it waited while requests of a `group` were at the device; `group` is null
//! while the device was idle. `stats` has the scheduler's counts over the whole life of the queue, by the names of
//! cgroup v1: by direction, or a number; times in nanoseconds. `group_stats` is the level of counting. A figure that
//! was not counted has no key.
//!
//! Three figures are computed differently from fio: `latency_ns`, `latency_us` and `latency_ms` are derived from the
//! histogram of completion latencies, with buckets 1/64 wide; a percentile is the upper end of its bucket instead of
//! the middle; `time` is in UTC.
//!
//! Figures of fio's schema that blkmq does not measure have the values that fio prints when they do not apply: `eta` 0,
//! and without a latency target `latency_target` 0, `latency_window` 0 and `latency_percentile` 100. As in fio, there
//! is no `disk_util` if no disk is known or `disk_util=0`, and no `percentile` if no I/O was timed.

mod map;
mod queues;
mod schema;
mod style;
mod transfer;

use super::model::Report;
use schema::Document;

/// The level of detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// fio's `json`.
    Plain,
    /// fio's `json+`: every bucket of the completion latencies as well, as `bins`.
    Bins,
}

/// The report as JSON that ends in a newline.
#[must_use]
pub fn render(report: &Report, detail: Detail) -> String {
    let mut text = style::to_string(&Document::new(report, detail));
    text.push('\n');
    text
}

/// The report as a JSON value.
#[must_use]
pub fn value(report: &Report) -> serde_json::Value {
    serde_json::to_value(Document::new(report, Detail::Plain))
        .expect("keys are texts and numbers, and every figure is one")
}

#[cfg(test)]
mod tests;
