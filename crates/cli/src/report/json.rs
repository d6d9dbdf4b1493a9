//! The report as JSON in the schema of `fio --output-format=json` (fio 3.33), so that programs which read fio's
//! output read this one.
//!
//! Units are fio's: `bw` in KiB/s, `bw_bytes` in bytes/s, `runtime` and `job_runtime` in milliseconds, `elapsed` in
//! whole seconds with the ramp, depths and latency classes in percent. Keys, nesting and order are fio's too.
//! Additions to the schema are in objects named `blkmq`: one at the top (command, machine, notes, warnings) and one
//! in each job (the queue and its counts; all jobs of a run share a queue, so they repeat the same counts, and `run`
//! says which belong together). When runs are compared, the jobs of every run stand in `jobs`, run by run: each run has
//! groups of its own, and `jobname` is the name of the job, a dot, and the name of the case, as in `fill.mq-deadline`. Files
//! of traces and logs have the same behind their prefix, and with several repetitions `.rep` and the number of the
//! repetition from 0; `repetition` says which one the figures are of. `job options` has the name alone.
//!
//! Options stand as they were written: those of a job file's globals, and those in front of the first `--name`, in
//! `global options`, the others in `job options` of their jobs. `fio version` begins with the version whose schema this is.
//! With `group_reporting`, rates sampled are sums over the threads, and `job_runtime` is the sum of their times.
//!
//! As in fio, reads that check contents count as reads, and the flush of `end_fsync` not as `sync`: it is
//! `end_fsync_ns`. A flush for `fdatasync` is counted in `sync`, where fio 3.33 has its times alone. `clat_ns` is the
//! time from the push, so that it has the wait in the scheduler in it.
//!
//! Where runs are missing, the object at the top has `partial`: the `runs` that have ended, of those `planned`, and the
//! `signal` that ended the command (null in a status). A run that the signal cut short, or that has not ended
//! (`status_interval`), has `partial` true. A document for each status precedes that of the end.
//!
//! The object at the top has a list `queues` if there are any figures of queues as such: for each such `run` its
//! `tokens`, by pool; its `governor`, the state that the scheduler's instances share and show; with `iostats` its
//! `times`, by operation: completed `requests`, I/Os `merged` into others, and the sums in nanoseconds of the times that
//! the requests waited for a slot, in the policy and for a tag, and were at the device; and its `groups`, the root first, with `parent`, `weight`, the `ios` and `bytes` of jobs in it alone, the `share` of all bytes that it
//! and those below it had, and the share that is `due` by weight (null where that does not follow from weights).
//! With `iostats`, `waited_for` has the nanoseconds for which I/Os in it alone waited while requests of a `group` were at
//! the device; `group` is null while none were.
//! `stats` has the scheduler's counts, over the whole life of the queue, by the names of cgroup v1: by direction, or
//! a number; times in nanoseconds. `group_stats` is the level of counting. A figure that was not counted has no key.
//!
//! Three figures are computed otherwise than fio's: `latency_ns`, `latency_us` and `latency_ms` are read off the
//! histogram of completion latencies, with buckets 1/64 wide; a percentile is the upper end of its bucket and
//! not the middle; `time` is in UTC.
//!
//! fio's schema has figures that blkmq does not measure. They have the values that fio prints when they do not apply:
//! `eta` 0, and without a latency target `latency_target` 0, `latency_window` 0 and `latency_percentile` 100. There is
//! no `disk_util` where no disk is known, or with `disk_util=0`, and no `percentile` where no I/O was timed, again as in fio.

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

/// The report as a JSON text that ends in a newline.
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
