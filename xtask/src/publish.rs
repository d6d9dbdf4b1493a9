//! `package` and `msrv`: each crate can be published, and builds with the oldest compiler that its manifest promises.
//!
//! Neither publishes anything.

use crate::shell::{Cmd, root, target_dir};
use crate::{Result, toolchains};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// `cargo xtask package`: packs each crate of the product, and builds it from its package.
///
/// # Errors
/// If a crate cannot be packed, or its package does not build.
pub(crate) fn package(args: &[String]) -> Result<()> {
    no_arguments("package", args)?;
    // Cargo treats a package of a registry as immutable, so no files of an earlier run may be left.
    forget_unpacked(&cargo_home()?.join("registry/src"))?;
    let packed = packed("")?;
    println!("package: {packed} crates packed and built from their packages");
    Ok(())
}

/// Packs each crate of the product, without building it: three minutes less than [`package`], for CI.
///
/// # Errors
/// If a crate cannot be packed.
pub(crate) fn pack() -> Result<()> {
    println!("package: {} crates packed", packed("--no-verify")?);
    Ok(())
}

/// Packs each crate with one more `option` of cargo, and returns their number.
fn packed(option: &str) -> Result<usize> {
    remove(&target_dir().join("package"))?;
    // The state of the tree is another check's concern.
    let pack = "cargo package --workspace --exclude xtask --allow-dirty --quiet";
    // Only compilation is checked, so no code is optimised.
    Cmd::new(&format!("{pack} {option}"))
        .env("CARGO_TARGET_DIR", folder("package"))
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .run()?;
    Ok(fs::read_dir(target_dir().join("package/package"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".crate"))
        .count())
}

/// `cargo xtask msrv`: checks the libraries and programs with the `rust-version` of the manifest. Their tests run under
/// the newest compiler.
///
/// # Errors
/// If something does not compile.
pub(crate) fn msrv(args: &[String]) -> Result<()> {
    no_arguments("msrv", args)?;
    let version = &oldest()?;
    if let Some(lack) = lack()? {
        println!("msrv: SKIPPED 1 check (Rust {version}): {lack}");
        return Ok(());
    }
    let check = Cmd::new(&format!("rustup run {version} cargo check --workspace --quiet"));
    check.env("CARGO_TARGET_DIR", folder("msrv")).run()?;
    println!("msrv: Rust {version} compiles the workspace");
    Ok(())
}

/// Installs the oldest compiler. If that is impossible, returns what the machine lacks.
///
/// # Errors
/// If rustup does not work, or the manifest names no version.
pub(crate) fn lack() -> Result<Option<String>> {
    toolchains::lack_of(&oldest()?, "x86_64-unknown-linux-gnu")
}

/// The version of that compiler.
fn oldest() -> Result<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let version = rust_version(&manifest).ok_or("the root manifest has no rust-version")?;
    Ok(version.to_owned())
}

/// Removes our crates that an earlier `cargo package` unpacked. Cargo identifies them by the path of its temporary
/// registry and the version, not by the contents: a package would be built against old versions of its siblings.
fn forget_unpacked(sources: &Path) -> Result<()> {
    let Ok(registries) = fs::read_dir(sources) else { return Ok(()) };
    for registry in registries {
        let registry = registry?;
        // A registry in a folder has no host in its name, which therefore begins with the dash of its hash.
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for package in fs::read_dir(registry.path())? {
            let package = package?;
            if package.file_name().to_string_lossy().starts_with("blkmq-") {
                fs::remove_dir_all(package.path())?;
            }
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() { Ok(fs::remove_dir_all(folder)?) } else { Ok(()) }
}

/// Where Cargo keeps unpacked crates.
fn cargo_home() -> Result<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(home).ok_or_else(|| "neither CARGO_HOME nor HOME is set".into())
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
    fn only_our_crates_of_temporary_registries_are_forgotten() {
        let sources = env::temp_dir().join(format!("blkmq-unpacked-{}", std::process::id()));
        let kept = ["index.example-1f/blkmq-core-0.1.0", "-2e/clap-4.0.0"];
        let forgotten = ["-2e/blkmq-core-0.1.0", "-3d/blkmq-0.1.0"];
        for package in kept.iter().chain(&forgotten) {
            fs::create_dir_all(sources.join(package)).unwrap();
        }
        forget_unpacked(&sources).unwrap();
        assert!(kept.iter().all(|package| sources.join(package).is_dir()));
        assert!(!forgotten.iter().any(|package| sources.join(package).exists()));
        fs::remove_dir_all(&sources).unwrap();
        forget_unpacked(&sources).unwrap();
    }

    #[test]
    fn an_argument_is_refused() {
        assert!(package(&["blkmq".to_owned()]).is_err());
        assert!(msrv(&["1.70".to_owned()]).is_err());
    }
}
