//! A program of eight lines with `blkmq` and its default features, like a first program of a user: the crates that it
//! compiles, the CPU time of its first build, and its size.

use crate::Result;
use crate::shell::{Cmd, cpu_of_programs, root, target_dir};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
pub(super) fn check(folder: &Path) -> Result<()> {
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
