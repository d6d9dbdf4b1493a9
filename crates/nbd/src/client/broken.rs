//! The ways in which a server can break the protocol, or refuse.

use crate::code::{OptionCode, OptionError};
use crate::request::Cookie;
use std::fmt;

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
