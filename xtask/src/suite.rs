//! Tests under a tool: their selection, the number that ran, and those that were excluded, with the reasons; and the
//! program in `planted`, whose bugs a tool must find, since otherwise its silence about our code means nothing.

use crate::Result;
use crate::shell::{Cmd, timed};
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
