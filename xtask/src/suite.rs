//! Tests under a tool: their selection, the number that ran, and the excluded ones with the reasons; and `loom` and
//! `shuttle`, the model checkers. A tool must find the bugs of the program in `planted`, since otherwise its silence
//! about our code means nothing.
//!
//! Loom tries every interleaving of the protocols in the engine's `sync` modules, up to a number of preemptions.
//! Shuttle tries thousands of random schedules of the whole queue, and of the loops that wait for it, which are too
//! large for loom; a failing schedule is printed by the test and can be replayed. Their builds differ (atomics are the
//! model's), so each has its own target folder. They use the test profile, which optimises and keeps assertions.
//!
//! CI must end in time even on a slow machine. Optional work is skipped there, and named.

use crate::Result;
use crate::shell::{Cmd, FAST_MODELS, target_dir, timed};
use std::path::Path;
use std::time::Duration;

/// Suites that run at a time in [`run_in_pairs`]; CI has two cores.
const AT_ONCE: usize = 2;

/// A part of the tests of one package.
pub(crate) struct Suite {
    /// The name in the output.
    pub name: &'static str,
    /// The arguments of `cargo test`: the package and the targets.
    pub package: &'static str,
    /// The arguments after `--`: parts of test names, any of which selects a test; empty for all.
    pub filter: &'static str,
    /// Parts of the names of excluded tests, each with its reason.
    pub left_out: &'static [(&'static str, &'static str)],
}

impl Suite {
    /// Appends the words of this suite to `command`, which ends with a `test`.
    fn behind(&self, command: Cmd) -> Cmd {
        let words = self.package.split_whitespace().chain(["--"]);
        let skips = self.left_out.iter().flat_map(|(name, _)| ["--skip", name]);
        words.chain(self.filter.split_whitespace()).chain(skips).fold(command, Cmd::arg)
    }
}

/// Runs each suite with the command that `command` makes. Returns a sentence with the number of passed tests and the
/// excluded tests.
///
/// # Errors
/// At the first suite that fails or in which no test runs.
pub(crate) fn run(suites: &[&Suite], command: impl Fn(&Suite) -> Cmd) -> Result<String> {
    let mut passed = 0;
    for suite in suites {
        let (tests, time) = timed(|| suite.behind(command(suite)).run_tests());
        passed += finished(suite, tests, time)?;
    }
    Ok(sentence(passed, suites))
}

/// As [`run`], for tools that use one core: [`AT_ONCE`] suites at a time, the output of each printed when it ends.
///
/// # Errors
/// As [`run`], once concurrent suites have ended.
pub(crate) fn run_in_pairs(suites: &[&Suite], command: impl Fn(&Suite) -> Cmd) -> Result<String> {
    let mut passed = 0;
    for pair in suites.chunks(AT_ONCE) {
        let (outcomes, time) = timed(|| {
            let started = pair.iter().map(|suite| suite.behind(command(suite)).start_tests());
            let started: Vec<_> = started.collect();
            started.into_iter().map(|tests| tests?.finish()).collect::<Vec<_>>()
        });
        for (suite, tests) in pair.iter().zip(outcomes) {
            passed += finished(suite, tests, time)?;
        }
    }
    Ok(sentence(passed, suites))
}

/// Prints how many tests of `suite` passed.
fn finished(suite: &Suite, tests: Result<u32>, time: Duration) -> Result<u32> {
    let tests = tests?;
    println!("{}: {tests} tests passed in {time:.1?}", suite.name);
    Ok(tests)
}

fn sentence(passed: u32, suites: &[&Suite]) -> String {
    format!("{passed} tests passed in {} suites{}", suites.len(), left_out(suites))
}

fn left_out(suites: &[&Suite]) -> String {
    let all = suites.iter().flat_map(|suite| suite.left_out);
    let all: Vec<String> = all.map(|(name, why)| format!("{name} ({why})")).collect();
    match all.len() {
        0 => String::new(),
        count => format!("; {count} left out: {}", all.join(", ")),
    }
}

/// Prints, if the machine lacks `what`, how many and which suites did not run.
pub(crate) fn skipped(step: &str, suites: &[&Suite], what: &str) {
    let names: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
    println!("{step}: SKIPPED {} suites ({}): {what}", suites.len(), names.join(", "));
}

/// A bug, and a tool's report of it.
pub(crate) struct Planted {
    /// The name in the program.
    pub bug: &'static str,
    /// A part of the report.
    pub report: &'static str,
}

/// Runs the program with each bug, and once without. Returns a sentence with the number of bugs found.
///
/// # Errors
/// If a bug is not reported, or an error is reported where there is no bug.
pub(crate) fn check_planted(bugs: &[Planted], command: impl Fn(&str) -> Cmd) -> Result<String> {
    command("none").run()?;
    for Planted { bug, report } in bugs {
        let command = command(bug);
        println!("$ {command}");
        let Err(error) = command.output() else {
            return Err(format!("the planted {bug} is not found by {command}").into());
        };
        if !error.to_string().contains(report) {
            return Err(format!("the planted {bug} is not found: no '{report}' in {error}").into());
        }
        println!("planted {bug}: found");
    }
    let names: Vec<&str> = bugs.iter().map(|planted| planted.bug).collect();
    Ok(format!("{} planted bugs found ({})", bugs.len(), names.join(", ")))
}

/// The most preemptions per execution, unless `LOOM_MAX_PREEMPTIONS` is set. Nearly every known bug of protocols this
/// small needs two; three is a margin and finishes in seconds.
const PREEMPTIONS: &str = "3";

/// `cargo xtask loom [FILTER]`
///
/// # Errors
/// If a model finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn loom(args: &[String]) -> Result<()> {
    let passed = command(args)?.run_tests()?;
    println!("loom: {passed} models");
    Ok(())
}

fn command(args: &[String]) -> Result<Cmd> {
    let filter = match args {
        [] => "loom_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask loom [FILTER]".into()),
    };
    Ok(explored(loom_cargo(&format!("test -p blkmq-engine --lib -- {filter}"))))
}

/// Cargo, for the models.
pub(crate) fn loom_cargo(words: &str) -> Cmd {
    let target = target_dir().join("loom");
    Cmd::new(&format!("cargo {FAST_MODELS} {words}"))
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}

/// The models themselves, as cargo has built them.
pub(crate) fn models(binary: &Path) -> Cmd {
    explored(Cmd::new("").arg(binary.to_string_lossy()))
}

/// Sets the bound of the exploration.
fn explored(cmd: Cmd) -> Cmd {
    let preemptions = std::env::var("LOOM_MAX_PREEMPTIONS").unwrap_or_else(|_| PREEMPTIONS.into());
    cmd.env("LOOM_MAX_PREEMPTIONS", preemptions)
}

/// `cargo xtask shuttle [FILTER]`
///
/// # Errors
/// If a schedule finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn shuttle(args: &[String]) -> Result<()> {
    let filter = match args {
        [] => "shuttle_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask shuttle [FILTER]".into()),
    };
    let target = target_dir().join("shuttle");
    let line =
        format!("cargo {FAST_MODELS} test -p blkmq-engine -p blkmq-runtime --lib -- {filter}");
    let passed = Cmd::new(&line)
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run_tests()?;
    println!("shuttle: {passed} tests");
    Ok(())
}

/// The variable with the second at which the run should end, as in `date +%s`. Without it there is no end.
const ENDS: &str = "BLKMQ_CI_ENDS";

/// Runs `work` if at least this many `minutes` are left; otherwise prints that `name` is skipped.
///
/// # Errors
/// If the work fails, or the variable is no number.
pub(crate) fn within(minutes: u64, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if has(minutes)? {
        return work();
    }
    println!("{name}: SKIPPED, fewer than {minutes} minutes before {ENDS}");
    Ok(())
}

/// Returns whether this many minutes are left.
///
/// # Errors
/// If the variable is no number.
pub(crate) fn has(minutes: u64) -> Result<bool> {
    let Ok(ends) = std::env::var(ENDS) else { return Ok(true) };
    let ends: u64 = ends.parse().map_err(|_| format!("{ENDS}={ends} is no number"))?;
    let now: u64 = Cmd::new("date +%s").output()?.trim().parse()?;
    Ok(now + 60 * minutes <= ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: Suite = Suite {
        name: "echo",
        package: "-p x --lib",
        filter: "one two",
        left_out: &[("slow", "it is slow")],
    };

    #[test]
    fn a_suite_is_a_command_that_can_be_typed() {
        let line = SUITE.behind(Cmd::new("cargo test")).to_string();
        assert_eq!(line, "cargo test -p x --lib -- one two --skip slow");
    }

    #[test]
    fn what_ran_is_counted_and_what_did_not_is_named() {
        let echo = |_: &Suite| Cmd::new("echo test result: ok. 3 passed; 0 failed");
        let text = run(&[&SUITE, &SUITE], echo).unwrap();
        assert!(text.starts_with("6 tests passed in 2 suites; 2 left out: slow (it is slow)"));
        let pairs = run_in_pairs(&[&SUITE, &SUITE, &SUITE], echo).unwrap();
        assert!(pairs.starts_with("9 tests passed in 3 suites"), "{pairs}");
    }

    #[test]
    fn a_suite_that_fails_or_runs_nothing_is_an_error() {
        assert!(run(&[&SUITE], |_| Cmd::new("false")).is_err());
        assert!(run(&[&SUITE], |_| Cmd::new("true")).is_err());
        assert!(run_in_pairs(&[&SUITE, &SUITE], |_| Cmd::new("false")).is_err());
        assert!(run_in_pairs(&[&SUITE], |_| Cmd::new("true")).is_err());
    }

    const RACE: &[Planted] = &[Planted { bug: "race", report: "'race'" }];

    /// A tool that finds the planted bug; its output contains the name of the bug.
    fn finds(bug: &str) -> Cmd {
        Cmd::new(if bug == "none" { "true" } else { "ls" }).arg(format!("'{bug}'"))
    }

    #[test]
    fn a_bug_that_is_reported_is_found() {
        assert_eq!(check_planted(RACE, finds).unwrap(), "1 planted bugs found (race)");
    }

    #[test]
    fn a_tool_that_is_silent_or_always_speaks_finds_nothing() {
        assert!(check_planted(RACE, |_| Cmd::new("true")).is_err());
        assert!(check_planted(RACE, |_| Cmd::new("false")).is_err());
        let other: &[Planted] = &[Planted { bug: "race", report: "another report" }];
        assert!(check_planted(other, finds).is_err());
    }
}
