//! [`OpenError`]: the reasons why a file cannot be opened as a device.

use blkmq_core::PairError;
use std::path::PathBuf;
use std::{fmt, io};

/// Why a file could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The parameter does not exist, or does not accept the value.
    Parameter(PairError),
    /// The given word is not of the form `PATH[,KEY=VALUE]...`. The word is empty if the path is missing.
    Syntax(String),
    /// The system refused an operation on the file.
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The path does not name a regular file.
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than one sector.
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(e) => e.fmt(f),
            Self::Syntax(word) => {
                write!(f, "'{word}' is not understood; accepted: PATH[,KEY=VALUE]...")
            }
            Self::File { path, why } => write!(f, "cannot open {}: {why}", path.display()),
            Self::NotAFile { path } => write!(f, "{} is no regular file", path.display()),
            Self::Empty { path } => {
                write!(f, "{} has not room for 512 bytes; size=16m makes it larger", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Parameter(e) => Some(e),
            Self::File { why, .. } => Some(why),
            Self::Syntax(_) | Self::NotAFile { .. } | Self::Empty { .. } => None,
        }
    }
}

impl From<PairError> for OpenError {
    fn from(e: PairError) -> Self {
        Self::Parameter(e)
    }
}
