//! The programs of the block server: `blkmqd`, which serves devices over NBD, and `blkmqctl`, which queries and changes
//! a running server.
//!
//! The server itself is in `blkmq-server`. This crate has its command line, its configuration file, its integration
//! with the service manager, and the client of its control socket.

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

/// `blkmqd`: runs its command line and returns the exit code.
#[must_use]
pub fn blkmqd() -> ExitCode {
    program::run(serve::args::PROGRAM, serve::program)
}

/// `blkmqctl`: runs its command line and returns the exit code.
#[must_use]
pub fn blkmqctl() -> ExitCode {
    program::run(ctl::args::PROGRAM, client::run)
}
