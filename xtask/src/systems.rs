//! `systems`: the library compiles for macOS and Windows.
//!
//! It is compiled only: nothing is linked or run, since no such machine is available.

use crate::Result;
use crate::shell::{Cmd, is_installed, target_dir};

const TARGETS: [&str; 2] = ["x86_64-apple-darwin", "x86_64-pc-windows-gnu"];

/// The library, with the features that exist there.
const WHAT: &str = "-p blkmq -p blkmq-layer --features blkmq/models,blkmq/kyber,blkmq/bfq,blkmq/layers,blkmq/bytes";

/// `cargo xtask systems`
///
/// # Errors
/// If something does not compile.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("systems takes no argument, got {arg}").into());
    }
    if let Some(lack) = lack() {
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
pub(crate) fn lack() -> Option<String> {
    if !is_installed("rustup") {
        return Some("rustup is not installed".into());
    }
    let add = format!("rustup target add {}", TARGETS.join(" "));
    Cmd::new(&add).run().err().map(|error| error.to_string())
}
