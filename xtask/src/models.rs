//! `loom` and `shuttle`: the model checkers.
//!
//! Loom tries every interleaving of the protocols in the engine's `sync` modules, up to a number of preemptions. Shuttle tries
//! thousands of random schedules of the whole queue, and of the loops that wait for it, which are too large for loom; a failing
//! schedule is printed by the test and can be replayed.
//!
//! Their builds differ (atomics are the model's), so each has its own target folder. They use the test profile, which
//! optimises and keeps assertions.

use crate::Result;
use crate::shell::{Cmd, FAST_MODELS, target_dir};
use std::path::Path;

/// The most preemptions per execution, unless `LOOM_MAX_PREEMPTIONS` is set. Nearly every known bug of protocols this
/// small needs two; three is a margin and finishes in seconds.
const PREEMPTIONS: &str = "3";

/// `cargo xtask loom [FILTER]`
///
/// # Errors
/// If a model finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn loom(args: &[String]) -> Result<()> {
    let passed = command(args)?.run_tests()?;
    println!("loom: {passed} models");
    Ok(())
}

fn command(args: &[String]) -> Result<Cmd> {
    let filter = match args {
        [] => "loom_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask loom [FILTER]".into()),
    };
    Ok(explored(cargo(&format!("test -p blkmq-engine --lib -- {filter}"))))
}

/// Cargo, for the models.
pub(crate) fn cargo(words: &str) -> Cmd {
    let target = target_dir().join("loom");
    Cmd::new(&format!("cargo {FAST_MODELS} {words}"))
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}

/// The models themselves, as cargo has built them.
pub(crate) fn models(binary: &Path) -> Cmd {
    explored(Cmd::new("").arg(binary.to_string_lossy()))
}

/// Sets the bound of the exploration.
fn explored(cmd: Cmd) -> Cmd {
    let preemptions = std::env::var("LOOM_MAX_PREEMPTIONS").unwrap_or_else(|_| PREEMPTIONS.into());
    cmd.env("LOOM_MAX_PREEMPTIONS", preemptions)
}

/// `cargo xtask shuttle [FILTER]`
///
/// # Errors
/// If a schedule finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn shuttle(args: &[String]) -> Result<()> {
    let filter = match args {
        [] => "shuttle_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask shuttle [FILTER]".into()),
    };
    let target = target_dir().join("shuttle");
    let line =
        format!("cargo {FAST_MODELS} test -p blkmq-engine -p blkmq-runtime --lib -- {filter}");
    let passed = Cmd::new(&line)
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run_tests()?;
    println!("shuttle: {passed} tests");
    Ok(())
}
