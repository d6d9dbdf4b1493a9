//! The settings that a client asks a server for, and those it gets.

use super::broken::BrokenHandshake;
use crate::block_sizes::BlockSizes;
use crate::export::{Context, Listed};
use crate::flags::TransmissionFlags;
use crate::limits::Limits;
use crate::terms::Terms;
use crate::wire::HeaderStyle;

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

/// The progress of a call to [`feed`](super::Handshake::feed).
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
    /// Do a TLS handshake, and then call [`Handshake::secured`](super::Handshake::secured).
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
