//! The client's half: the handshake, the bytes of requests, and replies as they arrive.
//!
//! A client asks for the settings of a [`Plan`], and feeds a [`Handshake`] with the bytes of the server until it
//! answers [`Next::Go`]. It then writes requests with [`Requests`], keeps a [`Pending`] for each, and takes replies
//! with [`Replies::next`]. A server can break the protocol, or refuse, in the ways of [`BrokenHandshake`] and
//! [`BrokenReply`].

mod handshake;
mod transmission;

pub use handshake::Handshake;
pub use transmission::{Content, Extents, InFlight, Parsed, Pending, Replies, Reply, Requests};

use crate::code::{OptionCode, OptionError, TransmissionFlags};
use crate::export::{BlockSizes, Context, Listed};
use crate::request::{Cookie, Terms};
use crate::wire::{HeaderStyle, Limits};
use std::fmt;

/// The purpose of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Goal {
    /// To use the export of this name; the empty name is the default export.
    Go(String),
    /// To learn about the export of this name.
    Info(String),
    /// To learn the names of the exports.
    List,
}

/// Whether a client requires TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS.
    #[default]
    Off,
    /// TLS comes first; the client gives up if the server does not have it.
    Required,
}

/// The settings that a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The purpose of the connection.
    pub goal: Goal,
    /// Whether TLS is required.
    pub tls: Tls,
    /// The most capable form of headers to ask for; a server may support less.
    pub most: HeaderStyle,
    /// The metadata contexts to choose, if the server has them. Each name has at most 4096 bytes.
    pub contexts: Vec<String>,
    /// Bounds on the bytes of the server.
    pub limits: Limits,
}

impl Plan {
    /// A plan with this goal: no TLS, the most able headers, no contexts.
    #[must_use]
    pub fn new(goal: Goal) -> Self {
        Self {
            goal,
            tls: Tls::Off,
            most: HeaderStyle::Extended,
            contexts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// The progress of a call to [`feed`](Handshake::feed).
#[derive(Debug)]
pub struct Progress {
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// The next step, after the bytes for the server have been sent.
    pub next: Next,
}

/// The next step of the caller.
#[derive(Debug)]
pub enum Next {
    /// Feed more bytes from the server.
    NeedMore,
    /// Do a TLS handshake, and then call [`Handshake::secured`](Handshake::secured).
    StartTls,
    /// Begin the transmission phase.
    Go(Agreed),
    /// The exports of a [`Goal::List`]; the connection can be closed once ABORT is sent.
    Listed(Vec<Listed>),
    /// The facts of a [`Goal::Info`]; the connection can be closed once ABORT is sent.
    Described(Details),
    /// Close the connection. If the server refused, send ABORT first, which is in the output.
    Close(BrokenHandshake),
}

/// The facts about an export that a server has sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// Its size in bytes.
    pub size: u64,
    /// Its abilities.
    pub flags: TransmissionFlags,
    /// Its block sizes; `None` if the server did not send them.
    pub blocks: Option<BlockSizes>,
    /// Its canonical name; `None` if the server did not send it.
    pub name: Option<String>,
    /// A text for users; `None` if the server did not send one.
    pub description: Option<String>,
}

/// The agreement of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The facts about the export.
    pub details: Details,
    /// The form of headers.
    pub style: HeaderStyle,
    /// The contexts among the requested ones that the server has, with the ids that it assigned.
    pub contexts: Vec<Context>,
}

impl Agreed {
    /// The terms of the transmission phase.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            size: self.details.size,
            flags: self.details.flags,
            blocks: self.details.blocks.unwrap_or_default(),
            style: self.style,
            has_contexts: !self.contexts.is_empty(),
        }
    }
}

/// The refusal of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The option.
    pub option: OptionCode,
    /// The error, or the number of an unknown one.
    pub error: Result<OptionError, u32>,
    /// The server's text for users; it may be empty.
    pub text: String,
}

/// The reason why a client gives up in the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BrokenHandshake {
    /// The first bytes are not those of an NBD server.
    NotNbd(u64),
    /// The server speaks the old handshake, which has no options.
    Oldstyle,
    /// The server has no replies to options, which the goal or TLS needs.
    NotFixedNewstyle,
    /// The given bytes are not the beginning of a reply to an option.
    Magic(u64),
    /// A reply to another option than the one sent.
    WrongOption(u32),
    /// A reply with this many bytes of data, more than [`Limits::option_data`](crate::Limits::option_data).
    TooLong(u32),
    /// More exports than [`Limits::listed`](crate::Limits::listed).
    TooMany,
    /// A reply that does not belong to its option, or whose data is malformed.
    Malformed(OptionCode),
    /// The server began the transmission phase without the size of the export.
    NoSize,
    /// The option that the goal needs was refused.
    Refused(Refused),
    /// Plain bytes behind the agreement on TLS, which an attacker in the middle may have injected.
    BytesBeforeTls,
    /// The handshake was already over.
    Over,
}

impl fmt::Display for BrokenHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNbd(magic) => write!(f, "{magic:#018x} is not the beginning of an NBD server"),
            Self::Oldstyle => f.write_str("the server speaks the old handshake only"),
            Self::NotFixedNewstyle => f.write_str("the server has no replies to options"),
            Self::Magic(magic) => write!(f, "{magic:#018x} begins no reply to an option"),
            Self::WrongOption(option) => {
                write!(f, "a reply to option {option}, which was not sent")
            }
            Self::TooLong(length) => write!(f, "a reply to an option with {length} bytes"),
            Self::TooMany => f.write_str("the server lists too many exports"),
            Self::Malformed(option) => write!(f, "a malformed reply to {option:?}"),
            Self::NoSize => f.write_str("the server did not tell the size of the export"),
            Self::Refused(Refused { option, error, text }) => match error {
                Ok(error) => write!(f, "the server refused {option:?}: {error:?}, {text:?}"),
                Err(number) => write!(f, "the server refused {option:?}: {number:#x}, {text:?}"),
            },
            Self::BytesBeforeTls => f.write_str("plain bytes behind the agreement on TLS"),
            Self::Over => f.write_str("the handshake is over"),
        }
    }
}

impl std::error::Error for BrokenHandshake {}

/// The reason why a stream of replies cannot be parsed further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenReply {
    /// These bytes do not begin a reply of the agreed form.
    Magic(u32),
    /// No request in flight has this cookie.
    UnknownCookie(Cookie),
    /// A chunk of this unknown type.
    UnknownChunk(u16),
    /// A chunk that does not belong to its request, or comes in the wrong form.
    WrongContent(Cookie),
    /// An extended reply that does not repeat the offset of its request.
    WrongOffset(Cookie),
    /// A chunk of this many bytes, more than the bound.
    TooLong(u64),
    /// A chunk whose length does not match its type.
    WrongLength(Cookie),
    /// A hole of length zero.
    EmptyHole(Cookie),
    /// A chunk, or an extent that is not the last one, reaches beyond its request.
    Outside(Cookie),
    /// A reply that ended before it had covered its request.
    Incomplete(Cookie),
    /// An extent of length zero, or several where one was requested.
    WrongExtents(Cookie),
}

impl fmt::Display for BrokenReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(f, "{magic:#010x} begins no reply"),
            Self::UnknownCookie(Cookie(cookie)) => {
                write!(f, "a reply to request {cookie:#x}, which is not in flight")
            }
            Self::UnknownChunk(kind) => write!(f, "a chunk of the unknown type {kind}"),
            Self::WrongContent(Cookie(cookie)) => {
                write!(f, "a chunk that does not belong to request {cookie:#x}")
            }
            Self::WrongOffset(Cookie(cookie)) => {
                write!(f, "a reply with another offset than request {cookie:#x}")
            }
            Self::TooLong(length) => write!(f, "a chunk of {length} bytes"),
            Self::WrongLength(Cookie(cookie)) => {
                write!(f, "a chunk of a wrong length for request {cookie:#x}")
            }
            Self::EmptyHole(Cookie(cookie)) => write!(f, "an empty hole for request {cookie:#x}"),
            Self::Outside(Cookie(cookie)) => {
                write!(f, "a chunk outside of the range of request {cookie:#x}")
            }
            Self::Incomplete(Cookie(cookie)) => {
                write!(f, "the reply to request {cookie:#x} ended too early")
            }
            Self::WrongExtents(Cookie(cookie)) => {
                write!(f, "extents that do not go with request {cookie:#x}")
            }
        }
    }
}

impl std::error::Error for BrokenReply {}
