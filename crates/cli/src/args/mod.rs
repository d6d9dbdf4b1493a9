//! Parses the words of a command line, and job files, into a [`Plan`].
//!
//! [`options`] is the single table of accepted options; parsing, error messages and the [`definition`](mod@definition)
//! for clap's help are generated from it. [`command_line`] and [`job_file`] only determine which option was given with
//! which value and where, [`sections`] determines to which job it belongs, and [`drafts`] collects the values until
//! they can be checked as a whole.

mod cmdprio_draft;
mod command_line;
mod definition;
mod drafts;
mod engine;
mod file_draft;
mod iolog_draft;
mod job_draft;
mod job_file;
pub mod options;
mod places;
mod quote;
mod roster;
mod run_draft;
mod section;
mod sections;
mod setting;
mod show_command;
mod target;
mod tenants;
mod value;
mod verify_draft;
mod zone_draft;

use crate::plan::{Plan, Time};
use crate::report::as_fio;
use blkmq_terminal::UsageError;
pub use definition::definition;
pub use quote::quote;

/// A parsed command line of `blkmq bench` or `blkmq sim`.
#[derive(Debug)]
pub enum Request {
    /// Print the help.
    Help,
    /// Run this plan, or show it.
    Plan(Box<Plan>),
    /// Print this text: the job file as a command line, or the version.
    Command(String),
}

/// Parses the arguments of `blkmq bench` or, for virtual time, `blkmq sim`.
///
/// # Errors
/// For the first argument that cannot be accepted.
pub fn parse(args: &[String], time: Time) -> Result<Request, UsageError> {
    let words = command_line::read(args)?;
    if words.help {
        return Ok(Request::Help);
    }
    if words.version {
        return Ok(Request::Command(format!("{}\n", as_fio(env!("CARGO_PKG_VERSION")))));
    }
    let sections = sections::collect(words)?;
    let plan = drafts::plan(&sections, args, time)?;
    Ok(match show_command::of(&sections, time)? {
        Some(text) => Request::Command(text),
        None => Request::Plan(Box::new(plan)),
    })
}

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod tests;
