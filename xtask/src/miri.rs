//! `miri`: the tests of what is unsafe or concurrent, and of what that stands on, in an interpreter that knows the
//! rules of the language: aliasing, initialisation, bounds, data races.
//!
//! It takes a hundred times as long as the tests do, so what is slow under it is left out by name. Schedules and the
//! values that relaxed loads may see are random; the concurrent parts run with several seeds.

use crate::planted::{self, Planted};
use crate::shell::{Cmd, target_dir};
use crate::suite::{self, Suite};
use crate::{Result, nightly};

/// Run once: they have one thread, or are too long for more.
const ONCE: &[&Suite] =
    &[&Suite { name: "core", package: "-p blkmq-core --lib", filter: "", left_out: &[] }];

/// Run with several seeds.
const SEEDED: &[&Suite] = &[];

/// Beside what every run needs: the clock and the file system of this machine.
const FLAGS: &str = "-Zmiri-disable-isolation";
/// So many schedules of each concurrent test.
const SEEDS: &str = "-Zmiri-many-seeds=0..4";

/// What Miri says about each.
const BUGS: &[Planted] = &[
    Planted { bug: "race", report: "Data race detected" },
    Planted { bug: "use-after-free", report: "has been freed" },
    Planted { bug: "uninitialised", report: "uninitialized" },
    Planted { bug: "aliasing", report: "borrow stack" },
];

/// `cargo xtask miri`
///
/// # Errors
/// If Miri finds something, or does not find what is planted.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("miri takes no argument, got {arg}").into());
    }
    if !nightly::is_ready()? {
        suite::skipped("miri", &[ONCE, SEEDED].concat(), "rustup is not installed");
        return Ok(());
    }
    let found = planted::check(BUGS, |bug| {
        let run = "miri run --quiet --manifest-path planted/Cargo.toml --";
        miri(run, "").arg(bug)
    })?;
    let once = suite::run(ONCE, |_| miri("miri test", ""))?;
    let seeded = suite::run(SEEDED, |_| miri("miri test", SEEDS))?;
    println!("miri: {found}; {once}; with 4 seeds each, {seeded}");
    Ok(())
}

fn miri(line: &str, more: &str) -> Cmd {
    let target = target_dir().join("miri");
    nightly::cargo(line)
        .env("MIRIFLAGS", format!("{FLAGS} {more}").trim())
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}
