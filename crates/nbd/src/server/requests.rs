//! Parses requests from a stream of bytes. A payload is not part of a request: the server reads it straight to its
//! destination.

use crate::code::Command;
use crate::flags::CommandFlags;
use crate::limits::Limits;
use crate::magic::{EXTENDED_REQUEST, REQUEST};
use crate::request::{Cookie, Request, Span};
use crate::wire::{Fields, HeaderStyle};
use std::fmt;

/// The parser of requests in the form that the handshake agreed on. It has no state and allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    style: HeaderStyle,
    payload_dropped: u32,
}

/// The result of parsing the beginning of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A request. Its payload, which may be empty, follows its header.
    Request {
        /// The request, not yet checked.
        request: Request,
        /// Bytes of its header.
        header_len: usize,
        /// Bytes of payload behind the header. They must be read even if the request fails.
        payload_len: u32,
    },
    /// Less than a header.
    NeedMore,
    /// Not a request: the position in the stream is lost, so the connection must end.
    Malformed(Malformed),
}

/// The reason why the position in a stream of requests is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// These bytes do not begin a request of the agreed form.
    Magic(u32),
    /// A payload of this many bytes exceeds [`Limits::payload_dropped`].
    Payload(u64),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(f, "{magic:#010x} begins no request"),
            Self::Payload(length) => write!(f, "a request with {length} bytes of payload"),
        }
    }
}

impl std::error::Error for Malformed {}

impl Requests {
    /// A parser of requests in this form.
    #[must_use]
    pub fn new(style: HeaderStyle, limits: &Limits) -> Self {
        Self { style, payload_dropped: limits.payload_dropped }
    }

    /// The request at the beginning of `input`.
    #[must_use]
    pub fn next(&self, input: &[u8]) -> Parsed {
        let is_extended = self.style == HeaderStyle::Extended;
        let expected = if is_extended { EXTENDED_REQUEST } else { REQUEST };
        let mut fields = Fields::new(input);
        let Some(magic) = fields.u32() else { return Parsed::NeedMore };
        if magic != expected {
            return Parsed::Malformed(Malformed::Magic(magic));
        }
        let Some(request) = read(fields, is_extended) else { return Parsed::NeedMore };
        let payload_len = request.payload_len(self.style);
        match u32::try_from(payload_len) {
            Ok(payload_len) if payload_len <= self.payload_dropped => {
                Parsed::Request { request, header_len: self.style.request_len(), payload_len }
            }
            _ => Parsed::Malformed(Malformed::Payload(payload_len)),
        }
    }
}

fn read(mut fields: Fields<'_>, is_extended: bool) -> Option<Request> {
    let flags = CommandFlags::from_wire(fields.u16()?);
    let number = fields.u16()?;
    let cookie = Cookie(fields.u64()?);
    let offset = fields.u64()?;
    let length = if is_extended { fields.u64()? } else { fields.u32()?.into() };
    let command = Command::from_wire(number).ok_or(number);
    Some(Request { command, flags, cookie, span: Span { offset, length } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLES: [HeaderStyle; 3] =
        [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

    fn request(command: Result<Command, u16>, length: u64) -> Request {
        Request {
            command,
            flags: CommandFlags::from_wire(0x8021),
            cookie: Cookie(u64::MAX - 1),
            span: Span { offset: u64::MAX, length },
        }
    }

    fn parsed(request: &Request, style: HeaderStyle) -> Parsed {
        let bytes = request.encode(style).unwrap();
        Requests::new(style, &Limits::default()).next(&bytes)
    }

    #[test]
    fn a_request_is_read_as_it_was_written_once_its_header_is_whole() {
        for style in STYLES {
            for number in [0, 1, 2, 3, 4, 5, 6, 7, 8, u16::MAX] {
                let command = Command::from_wire(number).ok_or(number);
                let request = request(command, 512);
                let bytes = request.encode(style).unwrap();
                let requests = Requests::new(style, &Limits::default());
                for end in 0..bytes.len() {
                    assert_eq!(requests.next(&bytes[..end]), Parsed::NeedMore);
                }
                let payload_len = request.payload_len(style) as u32;
                let expected = Parsed::Request { request, header_len: bytes.len(), payload_len };
                assert_eq!(requests.next(&bytes), expected);
                let more = [&bytes[..], &[0; 9]].concat();
                assert_eq!(requests.next(&more), expected, "bytes behind it do not matter");
            }
        }
    }

    #[test]
    fn the_magic_of_another_form_ends_the_connection() {
        for (sent, agreed) in [
            (HeaderStyle::Extended, HeaderStyle::Structured),
            (HeaderStyle::Simple, HeaderStyle::Extended),
        ] {
            let bytes = request(Ok(Command::Read), 1).encode(sent).unwrap();
            let parsed = Requests::new(agreed, &Limits::default()).next(&bytes[..4]);
            assert!(matches!(parsed, Parsed::Malformed(Malformed::Magic(_))), "{parsed:?}");
        }
    }

    #[test]
    fn a_payload_beyond_the_bound_ends_the_connection() {
        let write = |length| request(Ok(Command::Write), length);
        for style in STYLES {
            assert!(matches!(parsed(&write(64 << 20), style), Parsed::Request { .. }));
            let length = (64 << 20) + 1;
            let expected = Parsed::Malformed(Malformed::Payload(length));
            assert_eq!(parsed(&write(length), style), expected);
        }
        let length = u64::MAX;
        let expected = Parsed::Malformed(Malformed::Payload(length));
        assert_eq!(parsed(&write(length), HeaderStyle::Extended), expected);
        let zeroes =
            Request { flags: CommandFlags::NONE, ..request(Ok(Command::WriteZeroes), length) };
        assert!(matches!(parsed(&zeroes, HeaderStyle::Extended), Parsed::Request { .. }));
    }
}
