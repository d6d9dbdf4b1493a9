//! The end of a run of CI.
//!
//! CI must also end in time on a machine that is slow that day. Optional work is then skipped, and named.

use crate::Result;
use crate::shell::Cmd;

/// The variable with the second at which the run should end, as in `date +%s`. Without it there is no end.
const ENDS: &str = "BLKMQ_CI_ENDS";

/// Runs `work` if at least this many `minutes` are left; otherwise prints that `name` is skipped.
///
/// # Errors
/// If the work fails, or the variable is no number.
pub(crate) fn within(minutes: u64, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if has(minutes)? {
        return work();
    }
    println!("{name}: SKIPPED, fewer than {minutes} minutes before {ENDS}");
    Ok(())
}

/// Returns whether this many minutes are left.
///
/// # Errors
/// If the variable is no number.
pub(crate) fn has(minutes: u64) -> Result<bool> {
    let Ok(ends) = std::env::var(ENDS) else { return Ok(true) };
    let ends: u64 = ends.parse().map_err(|_| format!("{ENDS}={ends} is no number"))?;
    let now: u64 = Cmd::new("date +%s").output()?.trim().parse()?;
    Ok(now + 60 * minutes <= ends)
}
