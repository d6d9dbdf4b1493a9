//! The reasons why a description of a file is refused, with the accepted values.

use blkmq_core::PairError;
use std::fmt;

/// The reason why a description was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParamError {
    /// There is no such parameter, or it has no such value.
    Pair(PairError),
    /// Not of the form `PATH[,KEY=VALUE]...`.
    Syntax {
        /// The word that is not a pair.
        word: String,
    },
    /// No path was given.
    NoPath,
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair(e) => e.fmt(f),
            Self::Syntax { word } => {
                write!(f, "'{word}' is no KEY=VALUE; accepted: PATH[,KEY=VALUE]...")
            }
            Self::NoPath => {
                f.write_str("no path; name a file or block device: PATH[,KEY=VALUE]...")
            }
        }
    }
}

impl std::error::Error for ParamError {}

impl From<PairError> for ParamError {
    fn from(e: PairError) -> Self {
        Self::Pair(e)
    }
}
