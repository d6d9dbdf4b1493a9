//! The command `blkmq`: compare I/O schedulers on real, multi-threaded I/O.
//!
//! A library only so that fuzz targets can call its parsers, and the Python package its commands: the program itself
//! only calls [`main`].

#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
mod devices;
mod doc;
mod dry_run;
#[doc(hidden)]
pub mod embedding;
mod error;
mod experiment;
#[doc(hidden)]
pub mod fuzzing;
mod overlap;
mod plan;
mod replay;
mod report;
mod repro;
mod start;
mod tour;
mod trace;

use std::process::ExitCode;

/// Executes the command line, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    blkmq_terminal::program::run("blkmq", commands::run)
}
