//! The server's half: the handshake, requests as they arrive, and the bytes of replies.
//!
//! A server sends [`Handshake::greeting`], feeds a [`Handshake`] with a [`Config`] until it answers [`Next::Go`], and
//! then takes requests with [`Requests::next`], checks each against the [`Terms`] of the [`Negotiated`]
//! and writes replies with [`Replies`].

mod handshake;
mod options;
mod transmission;

pub use handshake::Handshake;
pub use transmission::{Extents, Malformed, Parsed, Pieces, Replies, Requests, Room};

use crate::export::Context;
use crate::request::Terms;
use crate::wire::{HeaderStyle, Limits};
use std::fmt;

/// TLS on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS.
    #[default]
    Off,
    /// TLS must come first: options outside of it are refused.
    Required,
    /// The connection is already inside TLS.
    Established,
}

/// Whether clients may see the names of exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Listing {
    /// LIST is answered.
    #[default]
    Shown,
    /// LIST is refused; a client must know the name.
    Hidden,
}

/// The configuration of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bounds on bytes.
    pub limits: Limits,
    /// TLS at the beginning.
    pub tls: Tls,
    /// Whether LIST is answered.
    pub listing: Listing,
    /// The most capable form of headers that is offered; options for more capable ones count as unknown. For tests of
    /// the fallbacks of clients.
    pub most: HeaderStyle,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            tls: Tls::Off,
            listing: Listing::Shown,
            most: HeaderStyle::Extended,
        }
    }
}

/// The progress of a call to [`feed`](Handshake::feed).
#[derive(Debug)]
pub struct Progress {
    /// Bytes of the input that were consumed. The rest belongs to the next call, or, after [`Next::Go`], to the
    /// transmission phase.
    pub consumed: usize,
    /// The next step, after the answers have been sent.
    pub next: Next,
}

/// The next step of the caller.
#[derive(Debug)]
pub enum Next {
    /// Feed more bytes from the client.
    NeedMore,
    /// Do a TLS handshake, and then continue this handshake with the bytes inside TLS. Plain bytes behind the option
    /// were consumed as well, because an attacker in the middle may have injected them.
    StartTls,
    /// Begin the transmission phase.
    Go(Negotiated),
    /// Close the connection.
    Close(Closing),
}

/// The agreement of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The name that the client used for the export.
    pub export: String,
    /// Size, abilities, block sizes and the form of headers.
    pub terms: Terms,
    /// The metadata contexts that BLOCK_STATUS reports, in the order of their ids.
    pub contexts: Vec<Context>,
    /// Whether the client has asked for block sizes. If not, it may expect any request to be served.
    pub asked_block_sizes: bool,
    /// Whether the options came inside TLS.
    pub tls: bool,
}

/// The reason why a connection ends in its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// The client ended the handshake (ABORT).
    Aborted,
    /// The client's flags include one that was not offered.
    UnknownFlags(u32),
    /// TLS is required, but the client does not handle replies to options.
    NoRepliesForTls,
    /// The given bytes are not the beginning of an option.
    NoOption(u64),
    /// More options than [`Limits::options`](crate::Limits::options).
    TooManyOptions,
    /// An option with more data than [`Limits::option_dropped`](crate::Limits::option_dropped).
    TooMuchData {
        /// The number of the option.
        option: u32,
        /// The length of its data in bytes.
        length: u32,
    },
    /// EXPORT_NAME of an unknown export. The option cannot be answered by an error.
    UnknownExport,
    /// EXPORT_NAME with data that is not a name.
    NoName,
    /// EXPORT_NAME outside of TLS.
    ExportNameWithoutTls,
    /// EXPORT_NAME after extended headers were agreed.
    ExportNameWithExtendedHeaders,
    /// The handshake was already over.
    Over,
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted => f.write_str("the client ended the handshake"),
            Self::UnknownFlags(flags) => write!(f, "client flags {flags:#x} were not offered"),
            Self::NoRepliesForTls => {
                f.write_str("TLS is required of a client without fixed newstyle")
            }
            Self::NoOption(magic) => write!(f, "{magic:#018x} begins no option"),
            Self::TooManyOptions => f.write_str("too many options"),
            Self::TooMuchData { option, length } => {
                write!(f, "option {option} with {length} bytes of data")
            }
            Self::UnknownExport => f.write_str("EXPORT_NAME of an unknown export"),
            Self::NoName => f.write_str("EXPORT_NAME with data that is no name"),
            Self::ExportNameWithoutTls => f.write_str("EXPORT_NAME outside of TLS"),
            Self::ExportNameWithExtendedHeaders => {
                f.write_str("EXPORT_NAME after extended headers were agreed")
            }
            Self::Over => f.write_str("the handshake is over"),
        }
    }
}

impl std::error::Error for Closing {}
