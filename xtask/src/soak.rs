//! `soak`: many seeds through the laboratory's oracles, in virtual time, and a million races against timeouts.
//!
//! The tests named `soak` of the lab crate read the number of seeds from `BLKMQ_SOAK_SEEDS`; every
//! parameter of a run is drawn from its seed, and a failure prints the seed that repeats it.

use crate::Result;
use crate::shell::Cmd;

/// Seeds of a run that nobody asked more of: some seconds.
const SEEDS: u64 = 50_000;

/// Seeds of the interleavings of completions and timeouts: half a minute.
const RACES: u64 = 1_000_000;

/// `cargo xtask soak [SEEDS]`
///
/// # Errors
/// If a seed fails, or no test is named `soak`.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let seeds = match args {
        [] => SEEDS,
        [seeds] => seeds.parse().map_err(|_| format!("{seeds} is not a number of seeds"))?,
        _ => return Err("usage: cargo xtask soak [SEEDS]".into()),
    };
    if seeds == 0 {
        return Err("0 seeds show nothing".into());
    }
    // The test profile: as fast as is needed, and every assertion of the engine is on.
    let cmd = Cmd::new("cargo test -p blkmq-lab -- soak");
    let passed = cmd.env("BLKMQ_SOAK_SEEDS", seeds.to_string()).run_tests()?;
    println!("soak: {passed} tests, {seeds} seeds each");
    let cmd = Cmd::new("cargo test -p blkmq-engine --test interleavings -- --nocapture");
    cmd.env("BLKMQ_RACE_SEEDS", RACES.to_string()).run_tests()?;
    Ok(())
}
