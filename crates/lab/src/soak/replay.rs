//! A run in one line: a scenario, and the bug that is planted in it, if there is one.

use crate::scenario::ScenarioError;
use crate::{Bug, Scenario};
use std::fmt;
use std::str::FromStr;

/// A run that can be repeated.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Its scenario.
    pub scenario: Scenario,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// Why a text describes no run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// No such bug can be planted.
    Bug(String),
    /// The rest is no scenario.
    Scenario(ScenarioError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bug(name) => {
                let all = Vec::from_iter(Bug::ALL.iter().map(|bug| format!("{bug:?}"))).join(", ");
                write!(f, "no bug '{name}'; accepted: {all}")
            }
            Self::Scenario(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

const BUG: &str = "bug=";

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scenario.fmt(f)?;
        if let Some(bug) = self.bug {
            write!(f, " {BUG}{bug:?}")?;
        }
        Ok(())
    }
}

impl FromStr for Replay {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let (bugs, rest): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.starts_with(BUG));
        let mut bug = None;
        for word in bugs {
            let name = &word[BUG.len()..];
            let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
            bug = Some(found.ok_or_else(|| ReplayError::Bug(name.to_owned()))?);
        }
        let scenario = rest.join(" ").parse().map_err(ReplayError::Scenario)?;
        Ok(Self { scenario, bug })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_part_of_the_line() {
        let line = "seed=3 cpus=2 ios=9 bug=LostRequest";
        let replay: Replay = line.parse().expect("right");
        assert_eq!(replay.bug, Some(Bug::LostRequest));
        assert_eq!(replay.to_string(), line);
        let error = "bug=Beetle".parse::<Replay>().expect_err("no such bug").to_string();
        assert!(error.contains("no bug 'Beetle'; accepted: LostWakeUp, "), "{error}");
        assert!("cpus=0".parse::<Replay>().is_err());
    }
}
