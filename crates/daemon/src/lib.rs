//! The programs of the block server: `blkmqd`, which serves devices over NBD, and `blkmqctl`, which queries and changes
//! a running server.
//!
//! The server itself is in `blkmq-server`. This crate has its command line, its configuration file, its integration
//! with the service manager, and the client of its control socket.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod ctl;
mod serve;
mod top;

use blkmq_terminal::{OutputError, UsageError, program};
use clap::{Arg, ArgAction};
use std::process::ExitCode;

/// `blkmqd`: runs its command line and returns the exit code.
#[must_use]
pub fn blkmqd() -> ExitCode {
    program::run(serve::args::PROGRAM, serve::program)
}

/// `blkmqctl`: runs its command line and returns the exit code.
#[must_use]
pub fn blkmqctl() -> ExitCode {
    program::run(ctl::args::PROGRAM, ctl::run)
}

/// The option `--name=VALUE`.
pub(crate) fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// The option `--name`.
pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// The reason why a program ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line cannot be understood.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The server could not start, one of its threads failed, or it refused a request.
    #[error("{0}")]
    Server(String),
    /// A recording could not be written; the message has the place and the reason.
    #[error("{0}")]
    Recording(String),
}

impl program::Failure for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Output(_) | Self::Server(_) | Self::Recording(_) => 1,
        }
    }
}
