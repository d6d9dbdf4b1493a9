//! The part of a request that a client keeps to judge its reply.

use super::broken::BrokenReply;
use crate::code::Command;
use crate::extent::ExtentCount;
use crate::flags::CommandFlags;
use crate::request::{Cookie, Request, Span};
use std::collections::BTreeMap;

/// A request in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    pub(super) command: Command,
    pub(super) span: Span,
    pub(super) count: ExtentCount,
    pub(super) cookie: Cookie,
    covered: u64,
    has_extents: bool,
    has_failed: bool,
}

/// The requests in flight of a connection, which replies are looked up in.
pub trait InFlight {
    /// The request with this cookie.
    fn find(&mut self, cookie: Cookie) -> Option<&mut Pending>;
}

impl InFlight for BTreeMap<Cookie, Pending> {
    fn find(&mut self, cookie: Cookie) -> Option<&mut Pending> {
        self.get_mut(&cookie)
    }
}

impl Pending {
    /// For a request that is sent; `None` if it gets no reply (DISC), or its command is unknown.
    #[must_use]
    pub fn of(request: &Request) -> Option<Self> {
        let command = request.command.ok().filter(|command| *command != Command::Disconnect)?;
        let is_one = request.flags.contains(CommandFlags::REQ_ONE);
        Some(Self {
            command,
            span: request.span,
            count: if is_one { ExtentCount::One } else { ExtentCount::Many },
            cookie: request.cookie,
            covered: 0,
            has_extents: false,
            has_failed: false,
        })
    }

    /// Notes bytes that a chunk covers.
    pub(super) fn cover(&mut self, chunk: Span) -> Result<(), BrokenReply> {
        if self.command != Command::Read {
            return Err(BrokenReply::WrongContent(self.cookie));
        }
        let left = self.span.length - self.covered;
        if !self.span.holds(chunk) || chunk.length > left {
            return Err(BrokenReply::Outside(self.cookie));
        }
        self.covered += chunk.length;
        Ok(())
    }

    pub(super) fn note_extents(&mut self) -> Result<(), BrokenReply> {
        if self.command != Command::BlockStatus {
            return Err(BrokenReply::WrongContent(self.cookie));
        }
        self.has_extents = true;
        Ok(())
    }

    pub(super) fn note_error(&mut self) {
        self.has_failed = true;
    }

    /// Checks that the reply is complete, if it ends here.
    pub(super) fn end(&self) -> Result<(), BrokenReply> {
        let is_complete = self.has_failed
            || match self.command {
                Command::Read => self.covered == self.span.length,
                Command::BlockStatus => self.has_extents || self.span.length == 0,
                _ => true,
            };
        if is_complete { Ok(()) } else { Err(BrokenReply::Incomplete(self.cookie)) }
    }
}
