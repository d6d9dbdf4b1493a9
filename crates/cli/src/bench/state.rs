//! Files with verification states, under fio's names, in the current folder.

use super::tally::Part;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use blkmq_lab::workload::Verifier;
use blkmq_terminal::UsageError;
use std::path::PathBuf;

/// The file of a thread.
fn path(plan: &Plan, spec: &RunSpec<'_>, thread: ThreadSpec) -> PathBuf {
    let name = plan.file_of(spec, &format!("local-{}", plan.jobs[thread.job].name));
    PathBuf::from(format!("{name}-{}-verify.state", thread.thread))
}

/// Restores the state saved by an earlier run, if the thread's job requests it.
///
/// # Errors
/// If there is no saved state, or it belongs to another job.
pub fn load(
    plan: &Plan,
    spec: &RunSpec<'_>,
    thread: ThreadSpec,
    verifier: &mut Option<Verifier>,
) -> Result<(), UsageError> {
    let Some(verifier) = verifier.as_mut().filter(|verifier| verifier.loads()) else {
        return Ok(());
    };
    let path = path(plan, spec, thread);
    let refuse =
        |why: String| UsageError::new(format!("verify_state_load: {}: {why}", path.display()));
    let state = std::fs::read(&path).map_err(|e| refuse(e.to_string()))?;
    verifier.restore(&state).map_err(|e| refuse(e.to_string()))
}

/// Saves the states of all threads for which it is requested. Returns a message for each that could not be saved.
pub fn save(plan: &Plan, spec: &RunSpec<'_>, parts: &[(ThreadSpec, Part)]) -> Vec<String> {
    let mut failed = Vec::new();
    for (thread, part) in parts {
        let Some(state) = &part.tally.verify_state else { continue };
        let path = path(plan, spec, *thread);
        if let Err(why) = std::fs::write(&path, state) {
            failed.push(format!("verify_state_save: {}: {why}", path.display()));
        }
    }
    failed
}
