//! The depths that jobs with `latency_target` have found, for the notes of the report.

use crate::plan::time;
use crate::report::model::Run;
use blkmq_lab::workload::LatencyTarget;

/// A sentence for each job of `run` that has found a depth. `label` names the run.
pub fn depths(label: &str, run: &Run) -> Vec<String> {
    let searched = run.jobs.iter().filter(|job| job.error == 0);
    let note = |name: &str, depth: u32, wanted: LatencyTarget| {
        let LatencyTarget { target, percentile, .. } = wanted;
        let target = time(target);
        format!(
            "{label}: job '{name}' does {percentile} % of its I/Os within {target} at a depth of {depth}"
        )
    };
    searched.filter_map(|job| Some(note(&job.name, job.iodepth, job.latency_target?))).collect()
}
