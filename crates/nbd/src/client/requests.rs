//! A client's requests: their bytes, and the part of a request that a client keeps to check its reply. The caller sends
//! payloads behind the header.

use super::broken::BrokenReply;
use crate::code::Command;
use crate::export::ExtentCount;
use crate::flags::CommandFlags;
use crate::request::{Cookie, Request, Span};
use crate::wire::{Header, HeaderStyle};
use std::collections::BTreeMap;

/// The writer of requests in the form that the handshake agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    style: HeaderStyle,
}

impl Requests {
    /// A writer of requests in this form.
    #[must_use]
    pub const fn new(style: HeaderStyle) -> Self {
        Self { style }
    }

    /// The header of `request`; the payload of a WRITE follows it. Sets `PAYLOAD_LEN` in the form that needs it. `None`
    /// if the length exceeds the 32 bits of a compact request.
    #[must_use]
    pub fn header(self, request: &Request) -> Option<Header> {
        let has_length =
            self.style == HeaderStyle::Extended && request.command == Ok(Command::Write);
        let flags =
            if has_length { request.flags.with(CommandFlags::PAYLOAD_LEN) } else { request.flags };
        Request { flags, ..*request }.encode(self.style)
    }
}

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

/// The requests in flight of a connection, by cookie.
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
    /// The entry for a request that is sent; `None` if the request gets no reply (DISC), or its command is unknown.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_under_extended_headers_says_that_it_has_a_payload() {
        for (style, command, expected) in [
            (HeaderStyle::Extended, Command::Write, 0x21),
            (HeaderStyle::Extended, Command::Read, 1),
            (HeaderStyle::Structured, Command::Write, 1),
        ] {
            let request = Request {
                command: Ok(command),
                flags: CommandFlags::FUA,
                cookie: Cookie(1),
                span: Span { offset: 0, length: 512 },
            };
            let header = Requests::new(style).header(&request).unwrap();
            assert_eq!(header[4..6], [0, expected]);
        }
    }
}
