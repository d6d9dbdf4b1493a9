//! `package` and `msrv`: each crate can be published, and builds with the oldest compiler that its manifest promises.
//!
//! Neither publishes anything.

use crate::shell::{Cmd, root, target_dir};
use crate::{Result, nightly};
use std::fs;

/// Crates whose tests run under the oldest compiler: policies and the front door. The other crates only build there,
/// since the same tests run under the newest one.
const TESTED: &str = "-p blkmq-core -p blkmq-buf -p blkmq-sched -p blkmq --lib";

/// `cargo xtask package`: packs each crate of the product, and builds it from its package.
///
/// # Errors
/// If a crate cannot be packed, or its package does not build.
pub(crate) fn package(args: &[String]) -> Result<()> {
    no_arguments("package", args)?;
    // The state of the tree is another check's concern.
    let pack = "cargo package --workspace --exclude xtask --allow-dirty --quiet";
    Cmd::new(pack).env("CARGO_TARGET_DIR", folder("package")).run()?;
    let packed = fs::read_dir(target_dir().join("package/package"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".crate"))
        .count();
    println!("package: {packed} crates packed and built from their packages");
    Ok(())
}

/// `cargo xtask msrv`: builds everything with the `rust-version` of the manifest, and runs the tests of [`TESTED`].
///
/// # Errors
/// If something does not build, or a test fails.
pub(crate) fn msrv(args: &[String]) -> Result<()> {
    no_arguments("msrv", args)?;
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let version = rust_version(&manifest).ok_or("the root manifest has no rust-version")?;
    if let Some(lack) = nightly::lack_of(version, "x86_64-unknown-linux-gnu")? {
        println!("msrv: SKIPPED 1 check (Rust {version}): {lack}");
        return Ok(());
    }
    // Checked only, and tests at the lowest level: this is about what compiles.
    let cargo = |line: &str| {
        let cmd = Cmd::new(&format!("rustup run {version} cargo {line}"));
        cmd.env("CARGO_TARGET_DIR", folder("msrv")).env("CARGO_PROFILE_TEST_OPT_LEVEL", "1")
    };
    cargo("check --workspace --all-targets --quiet").run()?;
    let passed = cargo(&format!("test --quiet {TESTED}")).run_tests()?;
    println!("msrv: Rust {version} builds the workspace, {passed} tests passed");
    Ok(())
}

/// A target folder apart from that of other builds, which have another compiler or other sources.
fn folder(name: &str) -> String {
    target_dir().join(name).to_string_lossy().into_owned()
}

fn no_arguments(verb: &str, args: &[String]) -> Result<()> {
    args.first().map_or(Ok(()), |arg| Err(format!("{verb} takes no argument, got {arg}").into()))
}

/// `1.88` of `rust-version = "1.88"`.
fn rust_version(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""))?;
    line.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_compiler_is_read_from_the_manifest() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.88\"\n"), Some("1.88"));
        assert_eq!(rust_version("rust-version.workspace = true"), None);
    }

    #[test]
    fn an_argument_is_refused() {
        assert!(package(&["blkmq".to_owned()]).is_err());
        assert!(msrv(&["1.70".to_owned()]).is_err());
    }
}
