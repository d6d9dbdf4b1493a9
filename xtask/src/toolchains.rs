//! Toolchains besides the stable one for this machine, by rustup. Miri and the sanitizers get the installed nightly, or
//! else the current one, programs that read a format of the compiler a pinned nightly, and `systems` the standard
//! libraries of macOS and Windows.
//!
//! The library is only compiled for those systems: nothing is linked or run, since no such machine is available.

use crate::Result;
use crate::shell::{Cmd, is_installed, target_dir};

/// The components of the nightly besides the compiler: Miri, and the source of the standard library.
const COMPONENTS: [&str; 2] = ["miri", "rust-src"];

/// Installs the missing parts. If that is impossible, returns what the machine lacks: rustup, or a network.
///
/// # Errors
/// If rustup does not work.
pub(crate) fn lack() -> Result<Option<String>> {
    if !is_installed("rustup") {
        return Ok(Some("rustup is not installed".into()));
    }
    let toolchains = Cmd::new("rustup toolchain list").output()?;
    if !toolchains.lines().any(is_rolling) {
        let components = COMPONENTS.map(|name| format!("-c {name}")).join(" ");
        let install = "rustup toolchain install nightly --no-self-update --profile minimal";
        if let Err(error) = Cmd::new(&format!("{install} {components}")).run() {
            return Ok(Some(error.to_string()));
        }
    }
    let list = Cmd::new("rustup component list --toolchain nightly --installed").output()?;
    for component in COMPONENTS {
        if !list.lines().any(|line| line.starts_with(component)) {
            let add = format!("rustup component add --toolchain nightly {component}");
            if let Err(error) = Cmd::new(&add).run() {
                return Ok(Some(error.to_string()));
            }
        }
    }
    Ok(None)
}

/// Returns whether `line` is a nightly that is not pinned to a date, as `rustup toolchain list` writes it:
/// `nightly-x86_64-...`.
fn is_rolling(line: &str) -> bool {
    line.strip_prefix("nightly-")
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Installs the nightly called `name`, with the standard library of `target`, if it is missing. If that is impossible,
/// returns what the machine lacks.
///
/// # Errors
/// If rustup does not work.
pub(crate) fn lack_of(name: &str, target: &str) -> Result<Option<String>> {
    if !is_installed("rustup") {
        return Ok(Some("rustup is not installed".into()));
    }
    let toolchains = Cmd::new("rustup toolchain list").output()?;
    if toolchains.lines().any(|line| line.starts_with(name)) {
        let targets = Cmd::new(&format!("rustup target list --installed --toolchain {name}"));
        if targets.output()?.lines().any(|line| line == target) {
            return Ok(None);
        }
    }
    let install = "rustup toolchain install --no-self-update --profile minimal";
    let installed = Cmd::new(&format!("{install} {name} --target {target}")).run();
    Ok(installed.err().map(|error| error.to_string()))
}

/// `cargo LINE` of the toolchain of [`lack`].
pub(crate) fn cargo(line: &str) -> Cmd {
    Cmd::new(&format!("rustup run nightly cargo {line}"))
}

/// The systems that the library compiles for.
const TARGETS: [&str; 2] = ["x86_64-apple-darwin", "x86_64-pc-windows-gnu"];

/// The library, with the features that exist there.
const WHAT: &str = "-p blkmq -p blkmq-layer --features blkmq/models,blkmq/kyber,blkmq/bfq,blkmq/layers,blkmq/bytes";

/// `cargo xtask systems`
///
/// # Errors
/// If something does not compile.
pub(crate) fn systems(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("systems takes no argument, got {arg}").into());
    }
    if let Some(lack) = systems_lack() {
        let names = TARGETS.join(", ");
        println!("systems: SKIPPED {} checks ({names}): {lack}", TARGETS.len());
        return Ok(());
    }
    for target in TARGETS {
        // Warnings are errors here: only they reveal code that is unused on one system.
        Cmd::new(&format!("cargo check --quiet --locked --target {target} {WHAT}"))
            .env("CARGO_TARGET_DIR", target_dir().join("systems").to_string_lossy())
            .env("RUSTFLAGS", "-Dwarnings")
            .run()?;
    }
    println!("systems: the library compiles for {}", TARGETS.join(" and "));
    Ok(())
}

/// Installs the standard libraries of these systems. If that is impossible, returns the lack of the machine.
pub(crate) fn systems_lack() -> Option<String> {
    if !is_installed("rustup") {
        return Some("rustup is not installed".into());
    }
    let add = format!("rustup target add {}", TARGETS.join(" "));
    Cmd::new(&add).run().err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pinned nightly is not the one that `cargo +nightly` runs.
    #[test]
    fn the_rolling_nightly_is_told_from_one_of_a_day() {
        assert!(is_rolling("nightly-x86_64-unknown-linux-gnu"));
        assert!(is_rolling("nightly-aarch64-apple-darwin (active)"));
        assert!(!is_rolling("nightly-2026-05-20-x86_64-unknown-linux-gnu"));
        assert!(!is_rolling("stable-x86_64-unknown-linux-gnu"));
    }
}
