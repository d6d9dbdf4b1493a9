//! The single table of the options of `blkmq bench` and `blkmq sim`, from which help, parsing and error messages are
//! generated.
//!
//! Each option of fio is of one of three kinds: implemented here (by a function), without effect here and accepted with
//! a note of the reason, or not supported and refused.

pub mod files;
mod foreign;
mod load;
mod pattern;
mod run;

#[cfg(test)]
pub use foreign::defaults;
pub use foreign::is_default;

use super::job_draft::JobDraft;
use super::run_draft::RunDraft;
use super::value::Value;
use blkmq_terminal::UsageError;
use blkmq_terminal::table::nearest;

/// One option.
pub struct Opt {
    /// fio's name of the option, or blkmq's own if fio has no such option.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// The heading of the help that lists the option.
    pub group: Group,
    /// Whether the option needs a value.
    pub kind: Kind,
    /// The form of the value.
    pub accepts: &'static str,
    /// The effect, in a line.
    pub help: &'static str,
    /// The function that implements the option, or the reason why it has no effect or is refused.
    pub meaning: Meaning,
}

/// Headings of the help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// The beginning and end of jobs.
    Jobs,
    /// The target of the I/O.
    Files,
    /// Which I/Os a job issues.
    Pattern,
    /// The amount, rate and duration of I/O.
    Load,
    /// Whether contents are right.
    Verify,
    /// Logs of single I/Os.
    Logs,
    /// The schedulers, devices and modes that are compared.
    Compare,
    /// Options of simulations only.
    Virtual,
    /// The format and destination of the output.
    Output,
    /// Accepted without effect, and refused.
    Foreign,
}

/// Whether an option needs a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A boolean: bare, `=1` or `=0`.
    Flag,
    /// Always.
    Value,
    /// The option takes an optional value.
    Optional,
}

impl Group {
    /// The heading in the help.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Jobs => "Jobs",
            Self::Files => "Engine and file",
            Self::Pattern => "Pattern",
            Self::Load => "Load and time",
            Self::Verify => "Verification",
            Self::Logs => "Logs",
            Self::Compare => "What is compared",
            Self::Virtual => "Virtual time",
            Self::Output => "Output",
            Self::Foreign => "Options of fio without effect",
        }
    }
}

/// A function that applies an option to a job.
pub type ApplyJob = fn(&mut JobDraft, Value<'_>) -> Result<(), UsageError>;
/// A function that applies an option to the whole command.
pub type ApplyRun = fn(&mut RunDraft, Value<'_>) -> Result<(), UsageError>;

/// The meaning of an option.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Begins a job; handled before meanings are applied.
    Structure,
    /// An option of a job.
    Job(ApplyJob),
    /// An option of the whole command, wherever it is written.
    Run(ApplyRun),
    /// Describes the run in reports.
    Annotate,
    /// An option of a job that also describes the run in reports.
    Described(ApplyJob),
    /// No effect here, for this reason.
    NoOp(&'static str),
    /// An effect that is not built, with the reason.
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
    let tables = [run::JOBS, files::OPTIONS, pattern::OPTIONS, load::OPTIONS, load::STEERING];
    let others = [pattern::CONTENTS, pattern::VERIFY, files::LOGS, run::OPTIONS];
    let without = [foreign::OPTIONS, foreign::REFUSED];
    tables.into_iter().chain(others).chain(without).flatten()
}

/// The option called `name`. Dashes and underscores within names are equivalent.
pub fn find(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    all().find(|option| option.name == name || option.aliases.contains(&name.as_str()))
}

/// The option whose name begins with `name`, if there is exactly one: as in fio, names on a command line may be
/// abbreviated.
pub fn find_beginning(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    let begins = |option: &&Opt| {
        option.name.starts_with(&name) || option.aliases.iter().any(|it| it.starts_with(&name))
    };
    let mut found = all().filter(begins);
    found.next().filter(|_| !name.is_empty() && found.next().is_none())
}

/// The error for an unknown option.
pub fn unknown(name: &str) -> UsageError {
    let usable = all().filter(|option| !matches!(option.meaning, Meaning::Unsupported(_)));
    let names =
        usable.clone().flat_map(|option| std::iter::once(&option.name).chain(option.aliases));
    let name = name.replace('-', "_");
    if foreign::is_of_an_engine(&name) {
        let text = "an option of an engine of fio's that has no meaning here; accepted: see --help";
        return UsageError::new(text);
    }
    // A list of all names would hide the error.
    match nearest(&name, names.copied()).first() {
        Some(near) => UsageError::new(format!("unknown option; nearest: {near}; see --help")),
        None => UsageError::new("unknown option, and none has a similar name; see --help"),
    }
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

    #[test]
    fn the_beginning_of_one_name_is_enough() {
        assert_eq!(find_beginning("numjob").map(|option| option.name), Some("numjobs"));
        assert_eq!(find_beginning("rwmixr").map(|option| option.name), Some("rwmixread"));
        assert!(find_beginning("rwmix").is_none() && find_beginning("").is_none());
    }
}
