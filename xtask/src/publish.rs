//! The crates of the library for packages outside of the workspace: `api` and `semver` compare the public items with
//! the committed text, and with those of an earlier revision; `package` and `msrv` check that each crate can be
//! published and builds with the oldest compiler that its manifest promises; and `outside`, that other packages can use
//! them. Nothing is published.
//!
//! `blkmq` re-exports the other crates, so a change of their items is a change for its users. Rustdoc lists the public
//! items as JSON; `xtask/api` turns them into lines. Both depend on a format that changes with the compiler, so the
//! nightly is pinned, and the target, too: the text is the same on every machine.
//!
//! `semver` checks with cargo-semver-checks whether a change breaks users' code, against the revision in
//! `docs/api/baseline.txt`: that of the previous release, or, before the first one, a recorded revision. It is not a
//! step of CI: the program takes minutes to install, and it documents every crate twice.
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

/// The compiler that writes the format `xtask/api` reads; both change together.
const NIGHTLY: &str = "nightly-2026-05-20";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates that a program using `blkmq` can name, and those that it uses in addition.
const CRATES: &[&str] = &[
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

const API_FOLDER: &str = "docs/api";
const API_TOOL: &str = "--manifest-path xtask/api/Cargo.toml --locked";

/// `cargo xtask api [--bless]`
///
/// # Errors
/// If the public items differ from the committed ones, or a tool does not work.
pub(crate) fn api(args: &[String]) -> Result<()> {
    let bless = match args {
        [] => false,
        [arg] if arg == "--bless" => true,
        [arg, ..] => return Err(format!("{arg}? usage: cargo xtask api [--bless]").into()),
    };
    if let Some(lack) = api_lack()? {
        println!("api: SKIPPED {} crates ({}): {lack}", CRATES.len(), CRATES.join(", "));
        return Ok(());
    }
    document()?;
    let (mut items, mut changes) = (0, 0);
    for name in CRATES {
        let there = api_tool("run --quiet").arg("--").arg(json(name).to_string_lossy()).output()?;
        let path = root().join(API_FOLDER).join(format!("{name}.txt"));
        let committed = fs::read_to_string(&path).unwrap_or_default();
        let differences = differences(&committed, &there);
        if !differences.is_empty() {
            println!("{name}:\n{}", differences.join("\n"));
        }
        if bless {
            fs::create_dir_all(root().join(API_FOLDER))?;
            fs::write(path, &there)?;
        }
        items += there.lines().count();
        changes += differences.len();
    }
    println!("api: {items} public items in {} crates, {changes} lines differ", CRATES.len());
    match (changes, bless) {
        (0, _) => Ok(()),
        (_, true) => {
            println!("written to {API_FOLDER}; what users must change goes into CHANGELOG.md");
            Ok(())
        }
        _ => Err(format!(
            "{changes} lines differ from {API_FOLDER}; if that is meant, `cargo xtask api --bless` writes them, \
             and what users must change goes into CHANGELOG.md"
        )
        .into()),
    }
}

/// Installs missing tools, and names those that cannot be installed.
///
/// # Errors
/// If rustup does not work.
pub(crate) fn api_lack() -> Result<Option<String>> {
    if let Some(lack) = toolchains::lack_of(NIGHTLY, TARGET)? {
        return Ok(Some(lack));
    }
    Ok(api_tool("fetch --quiet").run().err().map(|error| error.to_string()))
}

fn api_tool(verb: &str) -> Cmd {
    Cmd::new(&format!("cargo {verb} {API_TOOL}"))
        .env("CARGO_TARGET_DIR", documented().to_string_lossy())
}

/// A build folder apart from other builds: another compiler, other flags.
fn documented() -> PathBuf {
    target_dir().join("api")
}

fn json(name: &str) -> PathBuf {
    documented().join(TARGET).join("doc").join(name.replace('-', "_")).with_extension("json")
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
        .env("CARGO_TARGET_DIR", documented().to_string_lossy())
        .run()
}

/// The lines that only one of the texts has, grouped by item: `-` for removed ones, `+` for new ones.
fn differences(committed: &str, there: &str) -> Vec<String> {
    let [old, new] = [committed, there].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = old.difference(&new).map(|line| (*line, '-'));
    let came = new.difference(&old).map(|line| (*line, '+'));
    let mut all: Vec<(&str, char)> = gone.chain(came).collect();
    // Sorted by the path, so that the old and the new form of an item are adjacent; the old one comes first.
    all.sort_by_key(|(line, sign)| (path_of(line), *sign == '+'));
    all.into_iter().map(|(line, sign)| format!("  {sign} {line}")).collect()
}

/// The subject of a line: the path of its item, without arguments.
fn path_of(line: &str) -> &str {
    let from = line.find("blkmq").map_or(line, |at| &line[at..]);
    from.split(['(', '<', ' ']).next().unwrap_or(from)
}

/// The version to install if there is none: it reads the format of the current rustdoc.
const SEMVER_CHECKS: &str = "0.51.0";
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
    let program = match semver_checks() {
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
fn semver_checks() -> Result<PathBuf> {
    let folder = target_dir().join("tools").join(format!("cargo-semver-checks-{SEMVER_CHECKS}"));
    let ours = folder.join("bin/cargo-semver-checks");
    if !ours.is_file() {
        install(&folder)?;
    }
    Ok(ours)
}

fn install(folder: &Path) -> Result<()> {
    let install = "cargo install --quiet --locked cargo-semver-checks --version";
    let install =
        Cmd::new(&format!("{install} {SEMVER_CHECKS} --root")).arg(folder.to_string_lossy());
    // Optimising it would take longer than running it.
    install.arg("--debug").run()
}

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
    if let Some(lack) = msrv_lack()? {
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
pub(crate) fn msrv_lack() -> Result<Option<String>> {
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
const RECIPE_VERSION: &str = "version = \"0.1\"";

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
    let manifest = PACKAGE.to_owned() + &dependencies.replace(RECIPE_VERSION, &here);
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
const SLIM_BYTES: u64 = 1_537_000;

/// The crates from outside that it compiles.
const SLIM_CRATES: &[&str] = &[
    "bitflags",
    "cfg_aliases",
    "cfg_if",
    "crossbeam_utils",
    "io_uring",
    "libc",
    "nix",
    "proc_macro2",
    "quote",
    "syn",
    "sync_wrapper",
    "thiserror",
    "thiserror_impl",
    "unicode_ident",
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
    if !found.iter().eq(SLIM_CRATES) {
        return Err(format!("a small program compiles {found:?}, known are {SLIM_CRATES:?}").into());
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
        SLIM_CRATES.len()
    );
    if bytes <= SLIM_BYTES {
        Ok(())
    } else {
        Err(format!("at most {SLIM_BYTES} bytes are accepted").into())
    }
}

/// Returns whether a library is external. The program itself has no library.
fn is_outside(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("blkmq")
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
        assert!(api(&["--bles".to_owned()]).is_err());
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
            let text = fs::read_to_string(root().join(API_FOLDER).join(format!("{name}.txt")));
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
        assert_eq!(block(&page, "toml").unwrap().matches(RECIPE_VERSION).count(), 2);
    }
}
