//! The programs of the block server: `blkmqd`, which serves devices over NBD, and `blkmqctl`, which looks at a running
//! server and changes it.
//!
//! The server itself is `blkmq-server`. Here are its command line and its configuration file, its place among the
//! services of a machine, and the client of its socket for control.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod client;
mod ctl;
mod error;
mod promises;
mod serve;
mod top;
#[cfg(test)]
mod virtual_figures;

use blkmq_terminal::program;
use std::process::ExitCode;

/// `blkmqd`: carries out its command line, and returns the exit code.
#[must_use]
pub fn blkmqd() -> ExitCode {
    program::run(serve::args::PROGRAM, serve::program)
}

/// `blkmqctl`: carries out its command line, and returns the exit code.
#[must_use]
pub fn blkmqctl() -> ExitCode {
    program::run(ctl::args::PROGRAM, client::run)
}
