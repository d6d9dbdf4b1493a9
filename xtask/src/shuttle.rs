//! `shuttle`: thousands of random schedules of the whole queue, and of the loops that wait for it, which are too large for
//! loom.
//!
//! A failing schedule is printed by the test and can be replayed. Like loom, the build has its own target folder and
//! uses the test profile.

use crate::Result;
use crate::shell::{Cmd, FAST_MODELS, target_dir};

/// `cargo xtask shuttle [FILTER]`
///
/// # Errors
/// If a schedule finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn main(args: &[String]) -> Result<()> {
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
