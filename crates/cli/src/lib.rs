//! The command `blkmq`: compare I/O schedulers on real, multi-threaded I/O.
//!
//! A library only so that fuzz targets can call its parsers, and the Python package its commands: the program itself
//! only calls [`main`].

#![forbid(unsafe_code)]

mod args;
mod bench;
mod commands;
mod devices;
#[doc(hidden)]
pub mod embedding;
mod experiment;
mod plan;
mod replay;
mod report;
mod repro;
mod tour;
mod trace;

use bench::StartError;
use blkmq_terminal::{OutputError, UsageError, program};
use report::model::Partial;
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

#[doc(hidden)]
pub mod fuzzing {
    //! The parsers of the command line, for `cargo xtask fuzz`. Each function panics if a property of its parser is
    //! violated.

    use crate::args;
    use crate::plan::Time;
    use blkmq_terminal::units::{self, KbBase, TimeUnit};

    /// The words of `bench` and `sim`: no parser panics, and each error message is one line.
    ///
    /// # Panics
    /// If an error message is empty or has more than one line.
    pub fn command_line(words: &[String]) {
        for time in [Time::Real, Time::Virtual { seed: 1 }] {
            if let Err(error) = args::parse(words, time) {
                let message = error.to_string();
                // A line for each fault.
                assert!(
                    !message.is_empty() && message.lines().all(|line| !line.is_empty()),
                    "{message:?}"
                );
            }
        }
    }

    /// fio's units: amounts, times, counts, percentages and decimals. A number without a unit is itself.
    ///
    /// # Panics
    /// If a number is parsed to another value.
    pub fn units(text: &str) {
        for base in [KbBase::Binary, KbBase::Decimal] {
            let bytes = units::bytes(text, base);
            if let Ok(number) = text.parse::<u64>()
                && !text.starts_with('+')
            {
                assert_eq!(bytes, Ok(number));
            }
            let count = units::count(text, 0..=u64::MAX, base);
            assert_eq!(count.is_ok(), bytes.is_ok());
            if let Ok(small) = units::count(text, 1..=1000u16, base) {
                assert!((1..=1000).contains(&small));
            }
        }
        for unit in [TimeUnit::Micros, TimeUnit::Seconds] {
            let _ = units::time(text, unit);
        }
        let _ = units::decimal(text, "a number");
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_right_and_what_is_wrong_passes() {
            for words in [&["--bs=4k"][..], &["--bs=floppy"], &["--no\nsuch"], &[]] {
                command_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
            }
            ["4k", "+5", "", "99999999999999999999", "1.5s"].iter().for_each(|text| units(text));
        }
    }
}
