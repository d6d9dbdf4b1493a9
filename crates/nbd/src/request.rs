//! A request as it is on the wire, valid or not, and its bytes (`docs/spec/nbd.md`, section 2).

use crate::code::Command;
use crate::flags::CommandFlags;
use crate::magic::{EXTENDED_REQUEST, REQUEST};
use crate::wire::{Header, HeaderStyle, Put};

/// The number by which a client recognises the reply to its request. A server only repeats it, and accepts two requests
/// in flight with the same cookie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cookie(pub u64);

/// A range of bytes of an export.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

impl Span {
    /// The offset behind the last byte; `None` if it exceeds 64 bits.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// Returns whether the span contains all of `inner`.
    #[must_use]
    pub fn holds(self, inner: Self) -> bool {
        match (self.end(), inner.end()) {
            (Some(end), Some(inner_end)) => self.offset <= inner.offset && inner_end <= end,
            _ => false,
        }
    }
}

/// A request as on the wire, without its payload. Nothing in it has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The command, or the number of an unknown one.
    pub command: Result<Command, u16>,
    /// The flags, including unknown ones.
    pub flags: CommandFlags,
    /// The number that the reply repeats.
    pub cookie: Cookie,
    /// The range of the request. With [`CommandFlags::PAYLOAD_LEN`], the length is that of the payload.
    pub span: Span,
}

impl Request {
    /// The header in this form; `None` if the length exceeds the 32 bits of a compact request.
    #[must_use]
    pub fn encode(&self, style: HeaderStyle) -> Option<Header> {
        let is_extended = style == HeaderStyle::Extended;
        let mut header = Header::new();
        header.put_u32(if is_extended { EXTENDED_REQUEST } else { REQUEST });
        header.put_u16(self.flags.to_wire());
        header.put_u16(match self.command {
            Ok(command) => command.to_wire(),
            Err(number) => number,
        });
        header.put_u64(self.cookie.0);
        header.put_u64(self.span.offset);
        if is_extended {
            header.put_u64(self.span.length);
        } else {
            header.put_u32(u32::try_from(self.span.length).ok()?);
        }
        Some(header)
    }

    /// Bytes of payload that follow the header in this form. A WRITE has its payload with or without `PAYLOAD_LEN`:
    /// QEMU's clients omit the flag (`docs/spec/nbd.md`, section 5).
    #[must_use]
    pub fn payload_len(&self, style: HeaderStyle) -> u64 {
        let flagged =
            style == HeaderStyle::Extended && self.flags.contains(CommandFlags::PAYLOAD_LEN);
        if flagged || self.command == Ok(Command::Write) { self.span.length } else { 0 }
    }

    /// The fields that its reply has to repeat.
    #[must_use]
    pub fn reply_to(&self) -> ReplyTo {
        let has_content = matches!(self.command, Ok(Command::Read | Command::BlockStatus));
        ReplyTo { cookie: self.cookie, offset: self.span.offset, has_content }
    }
}

/// The part of a request that its reply repeats: 24 bytes to keep while the request is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReplyTo {
    /// The cookie of the request.
    pub(crate) cookie: Cookie,
    /// The offset of the request.
    pub(crate) offset: u64,
    /// Whether the request is a READ or BLOCK_STATUS, whose reply must have chunks even if it has no content.
    pub(crate) has_content: bool,
}

impl ReplyTo {
    /// The request's cookie.
    #[must_use]
    pub const fn cookie(self) -> Cookie {
        self.cookie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request {
        command: Ok(Command::Write),
        flags: CommandFlags::FUA,
        cookie: Cookie(0x0102_0304_0506_0708),
        span: Span { offset: 0x1000, length: 0x200 },
    };

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let compact = REQUEST.encode(HeaderStyle::Structured).unwrap();
        let expected = [
            &[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8][..],
            &[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0],
        ];
        assert_eq!(*compact, expected.concat());
        let extended = REQUEST.encode(HeaderStyle::Extended).unwrap();
        assert_eq!(extended[..4], [0x21, 0xe4, 0x1c, 0x71]);
        assert_eq!(extended[24..], [0, 0, 0, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn a_compact_request_has_no_room_for_64_bits() {
        let long = Request { span: Span { offset: 0, length: 1 << 32 }, ..REQUEST };
        assert_eq!(long.encode(HeaderStyle::Simple), None);
        assert!(long.encode(HeaderStyle::Extended).is_some());
    }

    #[test]
    fn payloads_follow_writes_and_the_flag() {
        let flagged =
            |command| Request { command: Ok(command), flags: CommandFlags::PAYLOAD_LEN, ..REQUEST };
        for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
            assert_eq!(REQUEST.payload_len(style), 0x200, "a write without the flag");
            assert_eq!(flagged(Command::Write).payload_len(style), 0x200);
            let expected = if style == HeaderStyle::Extended { 0x200 } else { 0 };
            assert_eq!(flagged(Command::Flush).payload_len(style), expected);
        }
        let read = Request { command: Ok(Command::Read), ..REQUEST };
        assert_eq!(read.payload_len(HeaderStyle::Extended), 0);
    }

    #[test]
    fn spans_at_the_end_of_all_offsets_hold_nothing_behind() {
        let all = Span { offset: 0, length: u64::MAX };
        assert!(all.holds(Span { offset: u64::MAX, length: 0 }));
        assert!(!all.holds(Span { offset: u64::MAX, length: 1 }));
        let inner = Span { offset: 8, length: 8 };
        assert!(inner.holds(inner) && all.holds(inner));
        assert!(!inner.holds(Span { offset: 7, length: 2 }));
        assert!(!inner.holds(Span { offset: 15, length: 2 }));
    }
}
