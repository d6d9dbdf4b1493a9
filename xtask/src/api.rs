//! `api` and `semver`: the public items of the library's crates, compared with the committed text, and with those of an
//! earlier revision.
//!
//! `blkmq` re-exports the other crates, so a change of their items is a change for its users. Rustdoc lists the public
//! items as JSON; `xtask/api` turns them into lines. Both depend on a format that changes with the compiler, so the
//! nightly is pinned, and the target, too: the text is the same on every machine.
//!
//! `semver` checks with cargo-semver-checks whether a change breaks users' code, against the revision in
//! `docs/api/baseline.txt`: that of the previous release, or, before the first one, a recorded revision. It is not a
//! step of CI: the program takes minutes to install, and it documents every crate twice.

use crate::shell::{Cmd, root, target_dir};
use crate::{Result, toolchains};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The compiler that writes the format `xtask/api` reads; both change together.
const NIGHTLY: &str = "nightly-2026-05-20";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates that a program using `blkmq` can name, and those that it uses in addition.
pub(crate) const CRATES: &[&str] = &[
    "blkmq",
    "blkmq-core",
    "blkmq-buf",
    "blkmq-sched",
    "blkmq-engine",
    "blkmq-device",
    "blkmq-uring",
    "blkmq-rbd",
    "blkmq-layer",
    "blkmq-remote",
    "blkmq-runtime",
    "blkmq-nbd",
    "blkmq-server",
];

/// Non-default features with public items that users name.
const FEATURES: &str = "blkmq/nbd,blkmq/rbd,blkmq/layers,blkmq/models,blkmq/kyber,blkmq/bfq,blkmq/tokio,blkmq-device/testkit";

const FOLDER: &str = "docs/api";
const TOOL: &str = "--manifest-path xtask/api/Cargo.toml --locked";

/// `cargo xtask api [--bless]`
///
/// # Errors
/// If the public items differ from the committed ones, or a tool does not work.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let bless = match args {
        [] => false,
        [arg] if arg == "--bless" => true,
        [arg, ..] => return Err(format!("{arg}? usage: cargo xtask api [--bless]").into()),
    };
    if let Some(lack) = lack()? {
        println!("api: SKIPPED {} crates ({}): {lack}", CRATES.len(), CRATES.join(", "));
        return Ok(());
    }
    document()?;
    let (mut items, mut changes) = (0, 0);
    for name in CRATES {
        let there = tool("run --quiet").arg("--").arg(json(name).to_string_lossy()).output()?;
        let path = root().join(FOLDER).join(format!("{name}.txt"));
        let committed = fs::read_to_string(&path).unwrap_or_default();
        let differences = differences(&committed, &there);
        if !differences.is_empty() {
            println!("{name}:\n{}", differences.join("\n"));
        }
        if bless {
            fs::create_dir_all(root().join(FOLDER))?;
            fs::write(path, &there)?;
        }
        items += there.lines().count();
        changes += differences.len();
    }
    println!("api: {items} public items in {} crates, {changes} lines differ", CRATES.len());
    match (changes, bless) {
        (0, _) => Ok(()),
        (_, true) => {
            println!("written to {FOLDER}; what users must change goes into CHANGELOG.md");
            Ok(())
        }
        _ => Err(format!(
            "{changes} lines differ from {FOLDER}; if that is meant, `cargo xtask api --bless` writes them, \
             and what users must change goes into CHANGELOG.md"
        )
        .into()),
    }
}

/// Installs missing tools, and names those that cannot be installed.
///
/// # Errors
/// If rustup does not work.
pub(crate) fn lack() -> Result<Option<String>> {
    if let Some(lack) = toolchains::lack_of(NIGHTLY, TARGET)? {
        return Ok(Some(lack));
    }
    Ok(tool("fetch --quiet").run().err().map(|error| error.to_string()))
}

fn tool(verb: &str) -> Cmd {
    Cmd::new(&format!("cargo {verb} {TOOL}")).env("CARGO_TARGET_DIR", built().to_string_lossy())
}

/// A build folder apart from other builds: another compiler, other flags.
fn built() -> PathBuf {
    target_dir().join("api")
}

fn json(name: &str) -> PathBuf {
    built().join(TARGET).join("doc").join(name.replace('-', "_")).with_extension("json")
}

/// Runs rustdoc to list the public items.
fn document() -> Result<()> {
    let packages: String = CRATES.iter().map(|name| format!(" -p {name}")).collect();
    // Warnings are for the steps that compile with the stable compiler.
    let flags = "-Zunstable-options --output-format json --cap-lints allow";
    Cmd::new(&format!("rustup run {NIGHTLY} cargo doc --quiet --no-deps --lib --locked{packages}"))
        .arg("--features")
        .arg(FEATURES)
        .arg("--target")
        .arg(TARGET)
        .env("RUSTDOCFLAGS", flags)
        .env("RUSTFLAGS", "--cap-lints allow")
        .env("CARGO_TARGET_DIR", built().to_string_lossy())
        .run()
}

/// The lines that only one of the texts has, grouped by item: `-` for removed ones, `+` for new ones.
fn differences(committed: &str, there: &str) -> Vec<String> {
    let [old, new] = [committed, there].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = old.difference(&new).map(|line| (*line, '-'));
    let came = new.difference(&old).map(|line| (*line, '+'));
    let mut all: Vec<(&str, char)> = gone.chain(came).collect();
    // Sorted by the path, so that the old and the new form of an item are adjacent; the old one comes first.
    all.sort_by_key(|(line, sign)| (path(line), *sign == '+'));
    all.into_iter().map(|(line, sign)| format!("  {sign} {line}")).collect()
}

/// The subject of a line: the path of its item, without arguments.
fn path(line: &str) -> &str {
    let from = line.find("blkmq").map_or(line, |at| &line[at..]);
    from.split(['(', '<', ' ']).next().unwrap_or(from)
}

/// The version to install if there is none: it reads the format of the current rustdoc.
const VERSION: &str = "0.51.0";
const BASELINE: &str = "docs/api/baseline.txt";

/// `cargo xtask semver [REVISION]`
///
/// # Errors
/// If the items of a crate differ from those of the revision in a way that breaks code.
pub(crate) fn semver(args: &[String]) -> Result<()> {
    let written = fs::read_to_string(root().join(BASELINE))?;
    let revision = match args {
        [] => revision(&written).ok_or_else(|| format!("{BASELINE} names no revision"))?,
        [revision] => revision,
        [_, arg, ..] => return Err(format!("{arg}? usage: cargo xtask semver [REVISION]").into()),
    };
    let program = match program() {
        Ok(program) => program,
        Err(lack) => {
            println!("semver: SKIPPED {} crates: {lack}", CRATES.len());
            return Ok(());
        }
    };
    let packages: String = CRATES.iter().map(|name| format!(" -p {name}")).collect();
    // A break is allowed where the version says so. While both sides have the same version, the next one is assumed to
    // be compatible.
    let check = format!("semver-checks check-release --baseline-rev {revision}{packages}");
    check
        .split_whitespace()
        .fold(Cmd::new("").arg(program.to_string_lossy()), Cmd::arg)
        .env("CARGO_TARGET_DIR", target_dir().join("semver").to_string_lossy())
        .run()?;
    println!("semver: {} crates break nothing since {revision}", CRATES.len());
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

    /// Crates that a program uses in addition to `blkmq`, which does not re-export them.
    const BESIDE: &[&str] = &["blkmq-nbd", "blkmq-server"];

    #[test]
    fn equal_texts_differ_in_nothing() {
        let text = "pub mod blkmq\npub fn blkmq::open(&str)\n";
        assert!(differences(text, text).is_empty());
    }

    #[test]
    fn a_change_is_shown_beside_what_it_was() {
        let old = "pub fn blkmq::a(u32)\npub fn blkmq::b()\npub struct blkmq::C\n";
        let new = "pub const fn blkmq::a(u64)\npub fn blkmq::b()\npub fn blkmq::d()\n";
        let expected = [
            "  - pub struct blkmq::C",
            "  - pub fn blkmq::a(u32)",
            "  + pub const fn blkmq::a(u64)",
            "  + pub fn blkmq::d()",
        ];
        assert_eq!(differences(old, new), expected);
    }

    #[test]
    fn an_unknown_argument_is_an_error() {
        assert!(main(&["--bles".to_owned()]).is_err());
    }

    /// A crate that `blkmq` re-exports and that is not compared would change unseen.
    #[test]
    fn what_blkmq_re_exports_is_compared() {
        let facade = fs::read_to_string(root().join("crates/blkmq/src/lib.rs")).unwrap();
        let names = facade.split("pub use ").skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            rest.starts_with("blkmq_").then(|| rest[..end].replace('_', "-"))
        });
        let names: BTreeSet<String> = names.collect();
        assert_eq!(names.len(), CRATES.len() - 1 - BESIDE.len(), "{names:?}");
        assert!(BESIDE.iter().all(|name| CRATES.contains(name) && !names.contains(*name)));
        assert!(names.iter().all(|name| CRATES.contains(&name.as_str())), "{names:?}");
    }

    #[test]
    fn what_is_committed_is_there() {
        for name in CRATES {
            let text = fs::read_to_string(root().join(FOLDER).join(format!("{name}.txt")));
            let first = text.unwrap_or_default().lines().next().map(str::to_owned);
            assert_eq!(first, Some(format!("pub mod {}", name.replace('-', "_"))));
        }
    }

    #[test]
    fn a_revision_is_written_down() {
        let written = fs::read_to_string(root().join(BASELINE)).unwrap();
        let revision = revision(&written).unwrap();
        assert!(revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(super::revision("# a\n\n b \n"), Some("b"));
        assert_eq!(super::revision("# a\n"), None);
    }
}
