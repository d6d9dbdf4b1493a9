//! The errors of the programs. Each is printed as one line.

use blkmq_terminal::{OutputError, UsageError, program};

/// The reason why a program ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
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
