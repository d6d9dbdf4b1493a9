//! The one table of what `blkmq bench` and `blkmq sim` accept. Help, parsing and error messages are made from it.
//!
//! An option of fio is either real here (its meaning is a function), or it can mean nothing here and is
//! accepted with the reason noted once, or it would mean something that is not built and is refused.

mod foreign;
mod load;
mod pattern;
mod run;
mod verify;

use super::job_draft::JobDraft;
use super::nearest::nearest;
use super::run_draft::RunDraft;
use super::value::Value;
use crate::error::UsageError;

/// One option.
pub struct Opt {
    /// As fio spells it, or as blkmq does where fio has none.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// The heading of the help under which it stands.
    pub group: Group,
    /// Does it need a value?
    pub kind: Kind,
    /// What the value looks like.
    pub accepts: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

/// Headings of the help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// How jobs are told apart.
    Jobs,
    /// Which I/Os.
    Pattern,
    /// How many, how fast, how long.
    Load,
    /// Whether contents are right.
    Verify,
    /// What is compared.
    Compare,
    /// What only a simulation has.
    Virtual,
    /// What is printed.
    Output,
    /// Accepted without effect, and refused.
    Foreign,
}

/// Does an option need a value?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A boolean: bare, `=1` or `=0`.
    Flag,
    /// Always.
    Value,
}

/// A step of understanding a job.
pub type ApplyJob = fn(&mut JobDraft, Value<'_>) -> Result<(), UsageError>;
/// A step of understanding what is compared.
pub type ApplyRun = fn(&mut RunDraft, Value<'_>) -> Result<(), UsageError>;

/// What an option means.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Where a job begins; handled before meanings are looked at.
    Structure,
    /// Something about a job.
    Job(ApplyJob),
    /// Something about the whole bench, wherever it stands.
    Run(ApplyRun),
    /// Describes the run in reports.
    Annotate,
    /// Nothing here, for this reason.
    NoOp(&'static str),
    /// Something that is not built, and what stands in its way.
    Unsupported(&'static str),
}

impl Opt {
    const fn job(
        group: Group,
        name: &'static str,
        accepts: &'static str,
        help: &'static str,
        apply: ApplyJob,
    ) -> Self {
        let (aliases, kind, meaning): (&[&str], _, _) = (&[], Kind::Value, Meaning::Job(apply));
        Self { name, aliases, group, kind, accepts, help, meaning }
    }

    const fn run(
        group: Group,
        name: &'static str,
        accepts: &'static str,
        help: &'static str,
        apply: ApplyRun,
    ) -> Self {
        let (aliases, kind, meaning): (&[&str], _, _) = (&[], Kind::Value, Meaning::Run(apply));
        Self { name, aliases, group, kind, accepts, help, meaning }
    }

    const fn flag(self) -> Self {
        Self { kind: Kind::Flag, accepts: "0, 1, or nothing for 1", ..self }
    }

    const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// Every option, in the order of the help.
pub fn all() -> impl Iterator<Item = &'static Opt> + Clone {
    let tables = [run::JOBS, pattern::OPTIONS, load::OPTIONS, verify::OPTIONS];
    tables.into_iter().chain([run::OPTIONS, foreign::OPTIONS]).flatten()
}

/// The option called `name`. Dashes and underscores within it are alike.
pub fn find(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    all().find(|option| option.name == name || option.aliases.contains(&name.as_str()))
}

/// What to say of a name that is no option.
pub fn unknown(name: &str) -> UsageError {
    let usable = all().filter(|option| !matches!(option.meaning, Meaning::Unsupported(_)));
    let names =
        usable.clone().flat_map(|option| std::iter::once(&option.name).chain(option.aliases));
    let near = nearest(&name.replace('-', "_"), names.copied());
    // With a good guess the whole list would only hide it.
    let what = if near.is_empty() {
        format!("accepted: {}", Vec::from_iter(usable.map(|option| option.name)).join(", "))
    } else {
        format!("nearest: {}", near.join(", "))
    };
    UsageError::new(format!("unknown option; {what}; see --help"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        let mut seen = BTreeSet::new();
        for option in all() {
            for name in std::iter::once(&option.name).chain(option.aliases) {
                assert!(seen.insert(*name), "{name} stands twice in the table");
                assert!(!name.contains('-'), "{name} would never be found");
            }
        }
    }

    #[test]
    fn every_option_says_what_it_does_and_takes() {
        for option in all() {
            let foreign = option.group == Group::Foreign;
            assert!(
                foreign || !(option.help.is_empty() || option.accepts.is_empty()),
                "{}",
                option.name
            );
        }
    }

    #[test]
    fn dashes_and_underscores_are_alike() {
        assert_eq!(find("output-format").map(|option| option.name), Some("output_format"));
        assert_eq!(find("readwrite").map(|option| option.name), Some("rw"));
        assert!(find("").is_none());
    }
}
