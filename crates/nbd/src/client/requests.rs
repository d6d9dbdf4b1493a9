//! The bytes of a client's requests. Payloads are the caller's: they follow the header.

use crate::code::Command;
use crate::flags::CommandFlags;
use crate::header::Header;
use crate::request::Request;
use crate::style::HeaderStyle;

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

    /// The header of `request`; the payload of a WRITE follows it. `PAYLOAD_LEN` is set where the form wants it.
    /// `None` if the length needs more than the 32 bits of a compact request.
    #[must_use]
    pub fn header(self, request: &Request) -> Option<Header> {
        let has_length =
            self.style == HeaderStyle::Extended && request.command == Ok(Command::Write);
        let flags =
            if has_length { request.flags.with(CommandFlags::PAYLOAD_LEN) } else { request.flags };
        Request { flags, ..*request }.encode(self.style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Cookie, Span};

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
