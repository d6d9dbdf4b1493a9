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
#[doc(hidden)]
pub mod embedding;
mod experiment;
#[doc(hidden)]
pub mod fuzzing;
mod plan;
mod replay;
mod report;
mod repro;
mod start;
mod tour;
mod trace;

use blkmq_terminal::{OutputError, UsageError, program};
use report::model::Partial;
use start::StartError;
use std::process::ExitCode;

/// Executes the command line, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    program::run("blkmq", commands::run)
}

/// The reason why the command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line cannot be understood.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A simulation stood still.
    #[error("{0}")]
    Simulation(String),
    /// The answers of a replayed log differ, or the log cannot be replayed.
    #[error("{0}")]
    Replay(String),
    /// Threads did not do their work.
    #[error("{0}")]
    Threads(StartError),
    /// I/Os failed, or did not end in time; which and where.
    #[error("{0}")]
    Io(String),
    /// Files of results could not be written; the message names them and says where the results are.
    #[error("{0}")]
    Results(String),
    /// A signal ended the work: its number, and the work done until then.
    #[error("ended by signal {0}; {1}")]
    Interrupted(i32, String),
    /// A block did not hold the data written to it, or could not be verified; which and where.
    #[error("{0}")]
    Verify(String),
}

impl Failure {
    /// An error if a signal ended the runs of a report; `partial` is that of the report.
    fn of_partial(partial: Option<Partial>) -> Result<(), Self> {
        match partial {
            Some(Partial { done, planned, signal: Some(signal) }) => {
                Err(Self::Interrupted(signal, format!("{done} of {planned} runs are whole")))
            }
            _ => Ok(()),
        }
    }
}

impl program::Failure for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(..) => program::EXIT,
            Self::Output(_) | Self::Simulation(_) | Self::Replay(_) | Self::Verify(_) => 1,
            Self::Threads(_) | Self::Io(_) | Self::Results(_) => 1,
        }
    }
}
