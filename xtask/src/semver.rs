//! `semver`: checks with cargo-semver-checks whether a change of public items breaks users' code, against the revision
//! in `docs/api/baseline.txt`: that of the previous release, or, before the first one, a recorded revision.
//!
//! It is not a step of CI: the program takes minutes to install, and it documents every crate twice. CI compares the
//! texts of `docs/api`.

use crate::shell::{Cmd, root, target_dir};
use crate::{Result, api};
use std::fs;
use std::path::{Path, PathBuf};

/// The version to install if there is none: it reads the format of the current rustdoc.
const VERSION: &str = "0.51.0";
const BASELINE: &str = "docs/api/baseline.txt";

/// `cargo xtask semver [REVISION]`
///
/// # Errors
/// If the items of a crate differ from those of the revision in a way that breaks code.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let written = fs::read_to_string(root().join(BASELINE))?;
    let revision = match args {
        [] => revision(&written).ok_or_else(|| format!("{BASELINE} names no revision"))?,
        [revision] => revision,
        [_, arg, ..] => return Err(format!("{arg}? usage: cargo xtask semver [REVISION]").into()),
    };
    let program = match program() {
        Ok(program) => program,
        Err(lack) => {
            println!("semver: SKIPPED {} crates: {lack}", api::CRATES.len());
            return Ok(());
        }
    };
    let packages: String = api::CRATES.iter().map(|name| format!(" -p {name}")).collect();
    // A break is allowed where the version says so. While both sides have the same version, the next one is assumed to
    // be compatible.
    let check = format!("semver-checks check-release --baseline-rev {revision}{packages}");
    check
        .split_whitespace()
        .fold(Cmd::new("").arg(program.to_string_lossy()), Cmd::arg)
        .env("CARGO_TARGET_DIR", target_dir().join("semver").to_string_lossy())
        .run()?;
    println!("semver: {} crates break nothing since {revision}", api::CRATES.len());
    Ok(())
}

/// The first line that is not a comment.
fn revision(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The program, installed if it is missing.
fn program() -> Result<PathBuf> {
    let folder = target_dir().join("tools").join(format!("cargo-semver-checks-{VERSION}"));
    let ours = folder.join("bin/cargo-semver-checks");
    if !ours.is_file() {
        install(&folder)?;
    }
    Ok(ours)
}

fn install(folder: &Path) -> Result<()> {
    let install = "cargo install --quiet --locked cargo-semver-checks --version";
    let install = Cmd::new(&format!("{install} {VERSION} --root")).arg(folder.to_string_lossy());
    // Optimising it would take longer than running it.
    install.arg("--debug").run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_written_down() {
        let written = fs::read_to_string(root().join(BASELINE)).unwrap();
        let revision = revision(&written).unwrap();
        assert!(revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(super::revision("# a\n\n b \n"), Some("b"));
        assert_eq!(super::revision("# a\n"), None);
    }
}
