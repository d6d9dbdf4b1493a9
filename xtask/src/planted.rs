//! The program in `planted`: a tool must find its bugs, otherwise the tool's silence about our code means nothing.

use crate::Result;
use crate::shell::Cmd;

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
pub(crate) fn check(bugs: &[Planted], command: impl Fn(&str) -> Cmd) -> Result<String> {
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

    const RACE: &[Planted] = &[Planted { bug: "race", report: "'race'" }];

    /// A tool that finds the planted bug; its output contains the name of the bug.
    fn finds(bug: &str) -> Cmd {
        Cmd::new(if bug == "none" { "true" } else { "ls" }).arg(format!("'{bug}'"))
    }

    #[test]
    fn a_bug_that_is_reported_is_found() {
        assert_eq!(check(RACE, finds).unwrap(), "1 planted bugs found (race)");
    }

    #[test]
    fn a_tool_that_is_silent_or_always_speaks_finds_nothing() {
        assert!(check(RACE, |_| Cmd::new("true")).is_err());
        assert!(check(RACE, |_| Cmd::new("false")).is_err());
        let other: &[Planted] = &[Planted { bug: "race", report: "another report" }];
        assert!(check(other, finds).is_err());
    }
}
