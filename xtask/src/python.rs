//! `python`: the wheel and the source distribution of the package in `python`, its types, and its tests.
//!
//! The tools and the libraries that read results come from PyPI into a separate environment; without them the step is
//! skipped, with a message. The wheel is also installed into an empty environment, since it must not need other
//! packages.

use crate::Result;
use crate::shell::{Cmd, build_program, root, target_dir};
use std::fs;
use std::path::{Path, PathBuf};

/// The tools, and the libraries that read results.
const PINNED: &str = include_str!("../../python/requirements.txt");
/// The program that an empty environment runs with the wheel.
const FIRST: &str = "import blkmq; print(blkmq.simulate(rw='randread', size='1m', device='flash', scheduler='bfq'))";

/// `cargo xtask python`
///
/// # Errors
/// If the wheel does not build, a type is wrong or a test fails.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("python takes no argument, got {arg}").into());
    }
    let (package, place) = (root().join("python"), target_dir().join("python"));
    let tools = match environment("python/tools", PINNED)? {
        Ok(tools) => tools,
        Err(lack) => {
            println!("python: SKIPPED wheel, types and tests: {lack}");
            return Ok(());
        }
    };
    let dist = place.join("dist");
    let _ = fs::remove_dir_all(&dist);
    let build = within(&tools, "maturin build --release --quiet --locked --manifest-path");
    build
        .arg(package.join("Cargo.toml").to_string_lossy())
        .arg("--out")
        .arg(dist.to_string_lossy())
        .env("CARGO_TARGET_DIR", place.join("build").to_string_lossy())
        .env("VIRTUAL_ENV", place.join("tools").to_string_lossy())
        // A wheel for tests only: whole-program optimisation is a fifth of its time.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .run()?;
    let sdist = within(&tools, "maturin sdist --manifest-path");
    let sdist = sdist.arg(package.join("Cargo.toml").to_string_lossy()).arg("--out");
    sdist.arg(dist.to_string_lossy()).run()?;
    let wheel = wheel_in(&dist)?;
    println!("python: {}, {} kB", wheel.display(), wheel.metadata()?.len() / 1000);
    let _ = fs::remove_dir_all(place.join("empty"));
    Cmd::new("python3 -m venv").arg(place.join("empty").to_string_lossy()).run()?;
    let empty = place.join("empty/bin");
    for (environment, more) in [(&empty, ""), (&tools, "--force-reinstall --no-deps")] {
        let install =
            within(environment, "python3 -m pip install --quiet --disable-pip-version-check");
        let install = more.split_whitespace().fold(install, Cmd::arg);
        install.arg(wheel.to_string_lossy()).run()?;
    }
    within(&empty, "python3 -c").arg(FIRST).run()?;
    within(&empty, "python3 -m pip check").run()?;
    let mypy = within(&tools, "python3 -m mypy --strict --cache-dir");
    mypy.arg(place.join("mypy").to_string_lossy()).arg("-p").arg("blkmq").run()?;
    build_program()?;
    let program = target_dir().join("dist/blkmq");
    within(&tools, "python3 -m pytest -q -p no:cacheprovider -p no:logging -rP --durations=5")
        .arg(package.join("tests").to_string_lossy())
        .env("BLKMQ_PROGRAM", program.to_string_lossy())
        .run()
}

/// The folder with the programs of an environment at `place` below the target folder, with `pinned` packages. It is
/// created if it is missing or has other versions; otherwise returns why it cannot be created here.
///
/// # Errors
/// If the target folder cannot be written to.
pub(crate) fn environment(
    place: &str,
    pinned: &str,
) -> Result<std::result::Result<PathBuf, String>> {
    let folder = target_dir().join(place);
    let (programs, installed) = (folder.join("bin"), folder.join("pinned.txt"));
    if fs::read_to_string(&installed).is_ok_and(|text| text == pinned) {
        return Ok(Ok(programs));
    }
    // One that was interrupted, or has other versions.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let list = folder.join("wanted.txt");
    fs::write(&list, pinned)?;
    let made = Cmd::new("python3 -m venv").arg(folder.to_string_lossy()).output();
    let pip = within(&programs, "python3 -m pip install --quiet --disable-pip-version-check -r");
    match made.and_then(|_| pip.arg(list.to_string_lossy()).output()) {
        Ok(_) => {
            fs::write(installed, pinned)?;
            Ok(Ok(programs))
        }
        Err(lack) => {
            let text = lack.to_string();
            let last = text.trim_end().lines().next_back().unwrap_or_default();
            Ok(Err(format!("the packages for {place} cannot be installed: {last}")))
        }
    }
}

/// A command of an environment, whose programs are in `programs`.
fn within(programs: &Path, line: &str) -> Cmd {
    let mut words = line.split_whitespace();
    let program = programs.join(words.next().unwrap_or_default());
    words.fold(Cmd::new("").arg(program.to_string_lossy()), Cmd::arg)
}

fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let files = files.collect::<Result<Vec<_>>>()?;
    let wheel = files.into_iter().find(|path| path.extension().is_some_and(|it| it == "whl"));
    wheel.ok_or_else(|| format!("no wheel in {}", folder.display()).into())
}
