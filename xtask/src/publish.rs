//! The crates outside of the workspace: `package` and `msrv` check that each crate can be published and builds with the
//! oldest compiler that its manifest promises, and `outside` that other packages can use them. Nothing is published.
//!
//! `outside` checks that a scheduler and a device in a package of their own, written by the recipe of CONTRIBUTING.md,
//! pass their kits; that a crate without features compiles alone and beside it; and that a program of eight lines is
//! small. The manifest and the test are the code blocks of the recipe, and the sources are the examples that it tells
//! the reader to copy. The versions of dependencies are those of the workspace, so that nothing is downloaded. The
//! small program is like a first program of a user: the crates that it compiles, the CPU time of its first build, and
//! its size are checked.

use crate::shell::{Cmd, cpu_of_programs, root, target_dir};
use crate::{Result, toolchains};
use std::collections::BTreeSet;
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

const RECIPE: &str = "\n## A scheduler or a device elsewhere\n";
/// The examples that the recipe tells the reader to copy.
const SPECIMENS: [&str; 2] = ["own_device", "own_scheduler"];
/// The source of `blkmq` in the recipe, once there is a release.
const VERSION: &str = "version = \"0.1\"";

/// The rest of the package's manifest. Built to be checked, not to be fast.
const PACKAGE: &str = "[workspace]\nmembers = ['slim']\n\n[package]\nname = \"mine\"\nedition = \"2024\"\n\n\
                       [profile.test]\nopt-level = 0\ndebug = false\n\n";

/// A crate that names the errors of devices and schedulers that features add.
const SLIM: &str = "\
pub fn missing(text: &str) -> Option<&'static str> {
    match blkmq::open(text) {
        Err(blkmq::OpenError::Description(blkmq::DeviceError::LeftOut { feature, .. })) => Some(feature),
        _ => None,
    }
}

#[test]
fn a_device_that_is_left_out_names_its_feature() {
    let texts = [\"null\", \"faults,late=0.1:disk\", \"nbd+unix:///?socket=/no\", \"rbd:p/i\", \"stripe:[null][null]\"];
    let features = [\"models\", \"models\", \"nbd\", \"rbd\", \"layers\"];
    assert_eq!(texts.map(missing), features.map(Some));
}

#[test]
fn a_scheduler_that_is_left_out_names_its_feature() {
    for name in [\"kyber\", \"bfq\"] {
        let error = blkmq::scheduler(name).expect_err(name).to_string();
        assert!(error.ends_with(&format!(\"the feature '{name}' of blkmq adds it\")), \"{error}\");
    }
}
";
/// Tests in it.
const SLIM_TESTS: u32 = 2;

/// A folder outside of the workspace, removed afterwards.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `cargo xtask outside`
///
/// # Errors
/// If the package does not build or a kit finds a fault.
pub(crate) fn outside(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("outside takes no argument, got {arg}").into());
    }
    let name = format!("blkmq-outside-{}", std::process::id());
    let folder = Folder(env::temp_dir().join(name));
    let page = fs::read_to_string(root().join("CONTRIBUTING.md"))?;
    write(&folder.0, &page)?;
    let cargo = |verb: &str| {
        // Separate from other builds, so that they need not wait; kept, so that the next build is short.
        Cmd::new(&format!("cargo {verb} --offline --quiet --manifest-path"))
            .arg(folder.0.join("Cargo.toml").to_string_lossy())
            .env("CARGO_TARGET_DIR", target_dir().join("outside").to_string_lossy())
    };
    let passed = cargo("test --workspace --tests").run_tests()?;
    cargo("check --package slim").run()?;
    println!("outside: {passed} kits and tests passed");
    let expected = SPECIMENS.len() as u32 + SLIM_TESTS;
    if passed != expected {
        return Err(format!("{expected} kits and tests should have run").into());
    }
    check_small(&folder.0)
}

/// Makes the package that the recipe describes.
fn write(folder: &Path, page: &str) -> Result<()> {
    let (dependencies, test) = (block(page, "toml")?, block(page, "rust")?);
    let here = format!("path = '{}'", root().join("crates/blkmq").display());
    let manifest = PACKAGE.to_owned() + &dependencies.replace(VERSION, &here);
    for name in ["src", "tests", "slim/src"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let slim = format!(
        "[package]\nname = \"slim\"\nedition = \"2024\"\n\n[dependencies]\nblkmq = {{ {here}, default-features = false }}\n"
    );
    fs::write(folder.join("slim/Cargo.toml"), slim)?;
    fs::write(folder.join("slim/src/lib.rs"), SLIM)?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("tests/kit.rs"), test)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let modules = SPECIMENS.map(|name| format!("pub mod {name};\n"));
    fs::write(folder.join("src/lib.rs"), modules.concat())?;
    for name in SPECIMENS.map(|name| format!("{name}.rs")) {
        let example = root().join("crates/blkmq/examples").join(&name);
        fs::copy(example, folder.join("src").join(name))?;
    }
    Ok(())
}

/// The recipe's block in `language`, without its indentation.
fn block(page: &str, language: &str) -> Result<String> {
    let (_, recipe) = page.split_once(RECIPE).ok_or("CONTRIBUTING.md has no such recipe")?;
    let recipe = recipe.split("\n## ").next().unwrap_or(recipe);
    let fence = format!("```{language}");
    let mut lines = recipe.lines().skip_while(|line| line.trim() != fence);
    let first = lines.next().ok_or_else(|| format!("the recipe has no block in {language}"))?;
    let indent = first.len() - first.trim_start().len();
    let inside = lines.take_while(|line| line.trim() != "```");
    Ok(inside.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect())
}

const PROGRAM: &str = "\
use blkmq::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let disk = blkmq::open(\"uring:disk.img,size=16\")?.start(\"mq-deadline\")?;
    let (result, page) = disk.blocking()?.call(Io::read(Bytes(0), AlignedBuf::new(4096)))?;
    println!(\"{result:?} {page:?}\");
    Ok(())
}
";

/// The most bytes of the stripped program: 3 % above its size with rustc 1.95.
const MOST: u64 = 1_537_000;

/// The crates from outside that it compiles.
const CRATES: &[&str] = &[
    "bitflags",
    "cfg_aliases",
    "cfg_if",
    "crossbeam_utils",
    "io_uring",
    "libc",
    "nix",
    "sync_wrapper",
];

/// Builds the program from scratch.
///
/// # Errors
/// If it does not build, is too large, or compiles an unexpected external crate.
fn check_small(folder: &Path) -> Result<()> {
    let folder = folder.join("small");
    fs::create_dir_all(folder.join("src"))?;
    let library = root().join("crates/blkmq");
    let manifest = format!(
        "[workspace]\n\n[package]\nname = \"small\"\nedition = \"2024\"\n\n[dependencies]\nblkmq = {{ path = '{}' }}\n\n\
         [profile.release]\nstrip = true\n",
        library.display()
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/main.rs"), PROGRAM)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let target = target_dir().join("outside/small");
    let cargo = |verb: &str| {
        Cmd::new(&format!("cargo {verb} --offline --manifest-path"))
            .arg(folder.join("Cargo.toml").to_string_lossy())
            .env("CARGO_TARGET_DIR", target.to_string_lossy())
            // Not the flags of this workspace, which align functions for its measurements.
            .env("RUSTFLAGS", "")
    };
    let tree =
        cargo("tree --edges normal,build --prefix none --no-dedupe --format {lib}").output()?;
    let found: BTreeSet<&str> = tree.lines().filter(|name| is_outside(name)).collect();
    if !found.iter().eq(CRATES) {
        return Err(format!("a small program compiles {found:?}, known are {CRATES:?}").into());
    }
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    let before = cpu_of_programs();
    cargo("build --release --quiet").run()?;
    let cpu = cpu_of_programs() - before;
    let bytes = fs::metadata(target.join("release/small"))?.len();
    println!(
        "outside: a small program takes {cpu:.0} s of CPU time to build at first, has {bytes} bytes, and compiles {} crates \
         from outside",
        CRATES.len()
    );
    if bytes <= MOST { Ok(()) } else { Err(format!("at most {MOST} bytes are accepted").into()) }
}

/// Returns whether a library is external. The program itself has no library.
fn is_outside(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("blkmq")
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

    #[test]
    fn blocks_of_the_recipe_are_found_and_no_others() {
        let page = "```toml\nno\n```\n\n## A scheduler or a device elsewhere\n\n1. x:\n\n   ```toml\n   \
                    [a]\n\n     b\n   ```\n\n## C\n\n```rust\nno\n```\n";
        assert_eq!(block(page, "toml").unwrap(), "[a]\n\n  b\n");
        assert!(block(page, "rust").is_err());
        assert!(block("", "toml").is_err());
    }

    #[test]
    fn the_recipe_names_what_is_copied() {
        let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let (_, recipe) = page.split_once(RECIPE).unwrap();
        for name in SPECIMENS {
            assert!(recipe.contains(&format!("`crates/blkmq/examples/{name}.rs`")), "{name}");
        }
        assert_eq!(block(&page, "toml").unwrap().matches(VERSION).count(), 2);
    }
}
