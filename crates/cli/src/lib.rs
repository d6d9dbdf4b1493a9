//! The command `blkmq`: compare I/O schedulers on real, multi-threaded I/O, and serve devices.
//!
//! A library only so that fuzz targets reach its parsers: the program calls [`main`] and nothing else.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
#[cfg(target_os = "linux")]
mod ctl;
mod devices;
mod doc;
mod dry_run;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod overlap;
mod plan;
mod replay;
mod report;
mod repro;
#[cfg(target_os = "linux")]
mod serve;
mod start;
#[cfg(target_os = "linux")]
mod top;
mod tour;
#[cfg(all(test, target_os = "linux"))]
mod virtual_figures;

use std::process::ExitCode;

/// Does what the command line says, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    blkmq_terminal::program::run("blkmq", commands::run)
}
