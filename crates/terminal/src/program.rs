//! The frame of a program: its arguments, its exit code, and one line on standard error for each error.

use crate::error::UsageError;
use crate::output::OutputError;
use crate::{interrupt, output, refusal};
use clap::{ArgMatches, Command};
use std::fmt::Display;
use std::process::ExitCode;

/// The reason why a program ends early. Its text is one line for each fault.
pub trait Failure: Display + From<UsageError> {
    /// The exit code, from 1: 1 for a failure of the work, 2 for a command line that cannot be understood, and 128, as of
    /// fio, for a signal that ended the work.
    fn exit_code(&self) -> u8;
}

/// Does `work` with the arguments behind the program's name, and returns the exit code. `name` begins each line on
/// standard error, whatever the program's file is called.
#[must_use]
pub fn run<F: Failure>(
    name: &'static str,
    work: impl FnOnce(&[String]) -> Result<(), F>,
) -> ExitCode {
    output::speak_as(name);
    interrupt::outlive_the_limit_of_files();
    match arguments().map_err(F::from).and_then(|words| work(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(format_args!("{failure}"));
            failure.exit_code().into()
        }
    }
}

/// The words behind the program's name, as clap reads them by the `definition` of the whole program. `None` if they ask
/// for help or the version, which is printed.
///
/// # Errors
/// If the words are no command line of the program, or standard output cannot be written.
pub fn understood<F: From<UsageError> + From<OutputError>>(
    definition: &dyn Fn() -> Command,
    words: &[String],
) -> Result<Option<ArgMatches>, F> {
    let program = definition();
    let line = [program.get_name().to_owned()].into_iter().chain(words.iter().cloned());
    match program.try_get_matches_from(line) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.use_stderr() => Err(refusal::of(&e, definition(), words).into()),
        Err(e) => {
            output::print(&e.render().to_string())?;
            Ok(None)
        }
    }
}

/// The arguments behind the program's name.
fn arguments() -> Result<Vec<String>, UsageError> {
    let text = |arg: std::ffi::OsString| {
        let refuse = |arg| UsageError::new(format!("{arg:?}: not UTF-8; accepted is UTF-8 text"));
        arg.into_string().map_err(refuse)
    };
    std::env::args_os().skip(1).map(text).collect()
}
