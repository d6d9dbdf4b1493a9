//! `loom`: every interleaving of the protocols in the engine's `sync` modules, up to a number of
//! preemptions.
//!
//! The build differs (atomics are the model's), so it has its own target folder. It uses the test profile, which
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
pub(crate) fn main(args: &[String]) -> Result<()> {
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
