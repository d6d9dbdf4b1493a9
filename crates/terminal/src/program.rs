//! The frame of a program: its arguments, its exit code, and one line on standard error for each error.

use crate::error::UsageError;
use crate::{interrupt, output};
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

/// The arguments behind the program's name.
fn arguments() -> Result<Vec<String>, UsageError> {
    let text = |arg: std::ffi::OsString| {
        let refuse = |arg| UsageError::new(format!("{arg:?}: not UTF-8; accepted is UTF-8 text"));
        arg.into_string().map_err(refuse)
    };
    std::env::args_os().skip(1).map(text).collect()
}
