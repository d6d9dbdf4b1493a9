//! The default workload and thread counts of a command without arguments, which shows the cost of schedulers on any
//! machine in a few seconds.

use super::Time;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Depth, Job, Latencies, Rw};

/// Repetitions: several where results differ between them, for a median.
pub fn repeat(time: Time) -> u32 {
    match time {
        Time::Real => 3,
        Time::Virtual { .. } => 1,
    }
}

/// The time of all runs together.
const BUDGET: Nanos = Nanos::from_secs(8);
const SHORTEST: Nanos = Nanos::from_millis(50);
const LONGEST: Nanos = Nanos::from_secs(1);

/// One thread, two, and twice the number of cores, since locks cost most when threads wait.
pub fn thread_counts(time: Time) -> Vec<Option<u32>> {
    let cpus = u32::from(time.machine().cpus);
    let mut counts = match time {
        Time::Real => vec![1, 2, 2 * cpus],
        // Every virtual thread has its own CPU.
        Time::Virtual { .. } => vec![1, 2, cpus],
    };
    counts.dedup();
    counts.into_iter().map(Some).collect()
}

/// The job of each of `runs` runs: random writes in portions of eight, by which the kernel's schedulers were found not
/// to scale.
pub fn job(runs: usize, time: Time) -> Job {
    let share = BUDGET.0 / (runs.max(1) as u64);
    let runtime = match time {
        // Whole tens of milliseconds print well.
        Time::Real => share.clamp(SHORTEST.0, LONGEST.0) / 10_000_000 * 10_000_000,
        // Some 100 000 I/Os for each thread; virtual time does not drift, so a short run is enough.
        Time::Virtual { .. } => 10_000_000,
    };
    Job {
        name: "randwrite".into(),
        rw: Rw::RandWrite,
        direct: true,
        norandommap: true,
        depth: Depth {
            iodepth: 32,
            low: 32,
            batch_submit: 8,
            batch_complete_min: 8,
            batch_complete_max: 8,
        },
        runtime: Some(Nanos(runtime)),
        time_based: true,
        group_reporting: true,
        latencies: Latencies::ALL,
        ..Job::default()
    }
}
