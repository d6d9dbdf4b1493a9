//! The command `blkmq`: compare I/O schedulers on real, multi-threaded I/O.
//!
//! This file finds the subcommand and turns every error into one line on standard error. Exit codes are 0, 1 for a
//! failure of the work, and 2 for a command line that cannot be understood.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod bounded;
mod commands;
mod devices;
mod doc;
mod dry_run;
mod error;
mod plan;
mod replay;
mod report;
mod repro;
mod units;

use error::{Failure, UsageError};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = arguments().map_err(Failure::from).and_then(|args| commands::run(&args));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("blkmq: {failure}");
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
