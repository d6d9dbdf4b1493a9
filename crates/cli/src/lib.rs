//! The command `blkmq`: compare I/O schedulers on real, multi-threaded I/O, and serve devices.
//!
//! A library only so that fuzz targets reach its parsers: the program calls [`main`] and nothing else. This file turns
//! every error into one line on standard error. Exit codes are 0, 1 for a failure of the work, 2 for a command line
//! that cannot be understood, and 128, as of fio, for a signal that ended the work.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod bounded;
mod commands;
#[cfg(target_os = "linux")]
mod ctl;
mod devices;
mod doc;
mod dry_run;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod limits;
mod nearest;
mod output;
mod overlap;
mod page;
mod plan;
mod replay;
mod report;
mod repro;
#[cfg(target_os = "linux")]
mod serve;
mod start;
mod terminal;
#[cfg(target_os = "linux")]
mod top;
mod tour;
mod units;
#[cfg(all(test, target_os = "linux"))]
mod virtual_figures;

use error::{Failure, UsageError};
use std::process::ExitCode;

/// Does what the command line says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    interrupt::outlive_the_limit_of_files();
    let outcome = arguments().map_err(Failure::from).and_then(|args| commands::run(&args));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(format_args!("{failure}"));
            failure.exit_code()
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
