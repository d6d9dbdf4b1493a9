//! [`Window`]: the times at which a thread runs and counts.

use crate::workload::Job;
use blkmq_core::Instant;

/// The times at which a thread runs and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The thread issues I/Os from this time on,
    pub start: Instant,
    /// counts from this time on,
    pub measure: Instant,
    /// and issues no more I/Os from this time on.
    pub end: Instant,
}

impl Window {
    /// The window of a thread of `job` in a phase that begins at `now`.
    #[must_use]
    pub fn of(job: &Job, now: Instant) -> Self {
        let start = now + job.startdelay;
        let measure = start + job.ramp_time;
        Self { start, measure, end: job.runtime.map_or(Instant::MAX, |runtime| measure + runtime) }
    }
}
