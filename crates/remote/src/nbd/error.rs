//! [`OpenError`]: the reasons why an export cannot be opened.

use super::uri::UriError;
use blkmq_core::PairError;
use blkmq_nbd::client::BrokenHandshake;
use std::{fmt, io};

/// The reason why an export cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The description has no URI.
    NoUri,
    /// A word of the description is not a pair.
    Syntax(String),
    /// A parameter is unknown, or has an impossible value.
    Parameter(PairError),
    /// The URI is not understood.
    Uri(UriError),
    /// The server cannot be reached, or closed the connection during the handshake.
    Server(io::Error),
    /// The server did not answer in time.
    Silent,
    /// The handshake failed.
    Handshake(BrokenHandshake),
    /// The certificates cannot be used.
    Tls(String),
    /// The scheme `nbds:` in a build without the feature `tls`.
    NoTls,
    /// The export cannot be a device, for the reason given.
    Unfit(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUri => f.write_str("no uri; accepted: nbd:URI[,KEY=VALUE]..."),
            Self::Syntax(word) => {
                write!(f, "'{word}' is no KEY=VALUE; accepted: nbd:URI[,KEY=VALUE]...")
            }
            Self::Parameter(error) => error.fmt(f),
            Self::Uri(error) => error.fmt(f),
            Self::Server(error) => write!(f, "the NBD server cannot be reached: {error}"),
            Self::Silent => f.write_str("the NBD server does not answer"),
            Self::Handshake(error) => error.fmt(f),
            Self::Tls(text) => f.write_str(text),
            Self::NoTls => f.write_str("nbds: this program is built without TLS; accepted: nbd:, or a build with --features=tls"),
            Self::Unfit(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Parameter(error) => Some(error),
            Self::Uri(error) => Some(error),
            Self::Server(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::NoUri
            | Self::Syntax(_)
            | Self::Silent
            | Self::Tls(_)
            | Self::NoTls
            | Self::Unfit(_) => None,
        }
    }
}

impl From<PairError> for OpenError {
    fn from(error: PairError) -> Self {
        Self::Parameter(error)
    }
}

impl From<UriError> for OpenError {
    fn from(error: UriError) -> Self {
        Self::Uri(error)
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Server(error)
    }
}
