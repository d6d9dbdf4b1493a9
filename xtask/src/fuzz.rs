//! `fuzz`: feeds every parser with libFuzzer's inputs, which are chosen to reach new code.
//!
//! The targets and their first inputs are in `fuzz`, laid out as `cargo fuzz` expects it. Neither that program nor a
//! nightly is needed: the instrumentation is a compiler pass, enabled by flags of every release. AddressSanitizer has
//! its own step, since no parser here has `unsafe`.

use crate::Result;
use crate::shell::{Cmd, is_installed, root, target_dir};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;

/// Naming the target puts its build apart from that of build scripts and macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Counts edges, and records the operands of comparisons.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Seconds for each target in CI, by the clock.
const SECONDS: u32 = 30;
/// An input that takes this many seconds counts as a hang. Inputs take microseconds, but CI's cores are slow and
/// shared.
const HANG: u32 = 100;
/// The number of concurrent targets, more than CI has cores. Of half a minute of wall-clock time a target gets a fifth
/// there: enough to repeat the known inputs. A real search takes hours, and is started by hand.
const AT_ONCE: usize = 10;

struct Run {
    name: String,
    child: Child,
    log: PathBuf,
}

/// `cargo xtask fuzz [--seconds N] [TARGET]...`
///
/// # Errors
/// If a target crashes, hangs or uses too much memory, or is unknown.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (seconds, wanted) = arguments(args)?;
    let targets = targets()?;
    for name in &wanted {
        if !targets.contains(name) {
            return Err(format!("no target {name}; there are {}", targets.join(", ")).into());
        }
    }
    let chosen: Vec<String> = if wanted.is_empty() { targets } else { wanted };
    if !is_installed("c++") {
        println!(
            "fuzz: SKIPPED {} targets ({}): no c++ for libFuzzer",
            chosen.len(),
            chosen.join(", ")
        );
        return Ok(());
    }
    build()?;
    let mut inputs = 0;
    for some in chosen.chunks(AT_ONCE) {
        let runs = some.iter().map(|name| start(name, seconds));
        let runs: Vec<Run> = runs.collect::<Result<_>>()?;
        for outcome in runs.into_iter().map(finish).collect::<Vec<_>>() {
            inputs += outcome?;
        }
    }
    println!("fuzz: {} targets, {seconds} s each, {inputs} inputs, no crash", chosen.len());
    Ok(())
}

fn arguments(args: &[String]) -> Result<(u32, Vec<String>)> {
    let (mut seconds, mut wanted) = (SECONDS, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let number = args.next().and_then(|text| text.parse().ok()).filter(|n| *n > 0);
            seconds = number.ok_or("--seconds needs a number from 1")?;
        } else if arg.starts_with('-') {
            return Err(format!("{arg}? usage: cargo xtask fuzz [--seconds N] [TARGET]...").into());
        } else {
            wanted.push(arg.clone());
        }
    }
    Ok((seconds, wanted))
}

/// One for each file in `fuzz/targets`.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(root().join("fuzz/targets"))? {
        let path = file?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn folder() -> PathBuf {
    target_dir().join("fuzz")
}

fn build() -> Result<()> {
    let line = "cargo build --release --locked --manifest-path fuzz/Cargo.toml --target";
    Cmd::new(line)
        .arg(TARGET)
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", folder().to_string_lossy())
        .run()
}

/// Starts a target; the inputs that it finds stay below the target folder, and the next run begins with them.
fn start(name: &str, seconds: u32) -> Result<Run> {
    let [learnt, findings] = ["corpus", "findings"].map(|part| folder().join(part).join(name));
    for folder in [&learnt, &findings] {
        fs::create_dir_all(folder)?;
    }
    let program = folder().join(TARGET).join("release").join(name);
    let log = folder().join(format!("{name}.log"));
    // libFuzzer checks its time limit between inputs only, and can hang while it reports an input that hangs.
    let cmd = Cmd::new(&format!("timeout --kill-after=10 {}", seconds + 2 * HANG))
        .arg(program.to_string_lossy())
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={HANG}"))
        .arg("-rss_limit_mb=2048")
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(learnt.to_string_lossy())
        .arg(root().join("fuzz/corpus").join(name).to_string_lossy());
    println!("$ {cmd}");
    Ok(Run { name: name.to_owned(), child: cmd.start(File::create(&log)?)?, log })
}

/// Waits for a target. Returns the number of inputs that it tried.
fn finish(mut run: Run) -> Result<u64> {
    let status = run.child.wait()?;
    let log = String::from_utf8_lossy(&fs::read(&run.log)?).into_owned();
    if !status.success() {
        let end: Vec<&str> = log.lines().rev().take(40).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        return Err(format!("target {}: {status}\n{}", run.name, end.join("\n")).into());
    }
    let inputs = executed(&log).filter(|inputs| *inputs > 0);
    let inputs = inputs.ok_or_else(|| format!("target {} tried nothing", run.name))?;
    println!("{}: {inputs} inputs", run.name);
    Ok(inputs)
}

/// `Some(12)` if a line is `stat::number_of_executed_units: 12`.
fn executed(log: &str) -> Option<u64> {
    let find =
        |line: &str| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok();
    log.lines().find_map(find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_counted() {
        let log = "Done 12 runs\nstat::number_of_executed_units: 12\nstat::new_units_added: 3";
        assert_eq!(executed(log), Some(12));
        assert_eq!(executed("Done"), None);
    }

    #[test]
    fn every_target_is_built_and_has_something_to_begin_with() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(targets.len() >= 9, "{targets:?}");
        for name in targets {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            let corpus = root().join("fuzz/corpus").join(&name);
            assert!(fs::read_dir(corpus).is_ok_and(|mut files| files.next().is_some()), "{name}");
        }
    }

    #[test]
    fn an_unknown_target_or_option_is_an_error() {
        assert!(main(&["no-such-target".to_owned()]).is_err());
        assert!(main(&["--seconds".to_owned(), "0".to_owned()]).is_err());
        assert!(main(&["--minutes".to_owned()]).is_err());
    }
}
