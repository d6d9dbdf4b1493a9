//! Requests, parsed from a stream of bytes, and the bytes of replies (`docs/spec/nbd.md`, sections 2 and 4), in the
//! form that the handshake agreed on. A payload is not part of a request: the server reads it straight to its
//! destination.
//!
//! Headers are returned by value, so a reply without a payload, and a read in one piece, allocate nothing. [`Pieces`]
//! writes a read in several chunks, and [`Extents`] collects the extents of an answer to BLOCK_STATUS.

use crate::magic::{
    EXTENDED_REPLY, EXTENDED_REQUEST, REQUEST, SIMPLE_REPLY, STRING, STRUCTURED_REPLY,
};
use crate::request::{Cookie, Extent, ExtentCount, ReplyTo, Request, Span};
use crate::wire::{
    ChunkFlags, ChunkType, Command, CommandFlags, ErrorCode, Fields, Header, HeaderStyle, Limits,
    Put, clipped,
};

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// These bytes do not begin a request of the agreed form.
    #[error("{0:#010x} begins no request")]
    Magic(u32),
    /// A payload of this many bytes exceeds [`Limits::payload_dropped`].
    #[error("a request with {0} bytes of payload")]
    Payload(u64),
}

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

/// The writer of replies. It has no state.
#[derive(Clone, Copy, Debug)]
pub struct Replies {
    style: HeaderStyle,
}

impl Replies {
    /// A writer of replies in this form.
    #[must_use]
    pub const fn new(style: HeaderStyle) -> Self {
        Self { style }
    }

    /// A success without content: for a request of length 0, and for any request other than a read or BLOCK_STATUS.
    #[must_use]
    pub fn done(self, to: ReplyTo) -> Header {
        let needs_chunk = self.style.has_chunks() && to.has_content;
        if self.style == HeaderStyle::Extended || needs_chunk {
            Chunk { style: self.style, to, kind: ChunkType::None, is_last: true }.header(0)
        } else {
            simple(to, 0)
        }
    }

    /// An error without a text.
    #[must_use]
    pub fn error(self, to: ReplyTo, error: ErrorCode) -> Header {
        if !self.style.has_chunks() {
            return simple(to, error.to_wire());
        }
        let mut header = self.last(to, ChunkType::Error).header(6);
        header.put_u32(error.to_wire());
        header.put_u16(0);
        header
    }

    /// Appends an error with a text for users: at most 4096 bytes of it, and none in a simple reply.
    pub fn error_with_text(self, to: ReplyTo, error: ErrorCode, text: &str, out: &mut Vec<u8>) {
        if !self.style.has_chunks() {
            out.put(&simple(to, error.to_wire()));
            return;
        }
        let text = clipped(text, STRING);
        out.put(&self.last(to, ChunkType::Error).header(6 + text.len() as u32));
        out.put_u32(error.to_wire());
        out.put_u16(text.len() as u16);
        out.put(text.as_bytes());
    }

    /// The header of a successful read of `length` bytes, more than 0, which follow. After a header in the simple form,
    /// a later failure can only close the connection.
    #[must_use]
    pub fn read(self, to: ReplyTo, length: u32) -> Header {
        if !self.style.has_chunks() {
            return simple(to, 0);
        }
        let mut header = self.last(to, ChunkType::OffsetData).header(8 + length);
        header.put_u64(to.offset);
        header
    }

    /// A read in pieces of data and holes; `None` in the simple form, which has one piece only.
    #[must_use]
    pub fn pieces(self, to: ReplyTo, length: u32) -> Option<Pieces> {
        let span = Span { offset: to.offset, length: length.into() };
        self.style.has_chunks().then(|| Pieces::new(self.style, to, span))
    }

    /// Appends the answer to BLOCK_STATUS: a chunk for each context, with its id and at least one extent. Under
    /// structured replies, lengths and flags have 32 bits.
    pub fn block_status(self, to: ReplyTo, contexts: &[(u32, &Extents)], out: &mut Vec<u8>) {
        let is_extended = self.style == HeaderStyle::Extended;
        for (at, (id, extents)) in contexts.iter().enumerate() {
            let extents = extents.as_slice();
            debug_assert!(!extents.is_empty(), "a context has a state everywhere");
            let is_last = at + 1 == contexts.len();
            let (kind, length) = if is_extended {
                (ChunkType::BlockStatusExtended, 8 + 16 * extents.len())
            } else {
                (ChunkType::BlockStatus, 4 + 8 * extents.len())
            };
            let chunk = Chunk { style: self.style, to, kind, is_last };
            out.put(&chunk.header(length as u32));
            out.put_u32(*id);
            if is_extended {
                out.put_u32(extents.len() as u32);
            }
            for extent in extents {
                if is_extended {
                    out.put_u64(extent.length);
                    out.put_u64(extent.flags);
                } else {
                    out.put_u32(extent.length as u32);
                    out.put_u32(extent.flags as u32);
                }
            }
        }
    }

    fn last(self, to: ReplyTo, kind: ChunkType) -> Chunk {
        Chunk { style: self.style, to, kind, is_last: true }
    }
}

fn simple(to: ReplyTo, error: u32) -> Header {
    let mut header = Header::new();
    header.put_u32(SIMPLE_REPLY);
    header.put_u32(error);
    header.put_u64(to.cookie.0);
    header
}

/// A chunk, without its payload. The style is one with chunks.
#[derive(Clone, Copy)]
struct Chunk {
    style: HeaderStyle,
    to: ReplyTo,
    kind: ChunkType,
    is_last: bool,
}

impl Chunk {
    /// The bytes in front of a payload of `length` bytes.
    fn header(self, length: u32) -> Header {
        let is_extended = self.style == HeaderStyle::Extended;
        let flags = if self.is_last { ChunkFlags::DONE } else { ChunkFlags::NONE };
        let mut header = Header::new();
        header.put_u32(if is_extended { EXTENDED_REPLY } else { STRUCTURED_REPLY });
        header.put_u16(flags.to_wire());
        header.put_u16(self.kind.to_wire());
        header.put_u64(self.to.cookie.0);
        if is_extended {
            header.put_u64(self.to.offset);
            header.put_u64(length.into());
        } else {
            header.put_u32(length);
        }
        header
    }
}

/// A reply to a read in progress. It marks the last piece.
#[derive(Debug)]
pub struct Pieces {
    style: HeaderStyle,
    to: ReplyTo,
    left: Span,
}

impl Pieces {
    pub(super) const fn new(style: HeaderStyle, to: ReplyTo, left: Span) -> Self {
        Self { style, to, left }
    }

    /// The number of bytes that no piece has covered yet. At 0, the reply is complete.
    #[must_use]
    pub const fn left(&self) -> Span {
        self.left
    }

    /// The header of a piece of data, which is followed by `length` bytes. A read with DF is one such piece.
    ///
    /// # Panics
    /// If `length` is 0, or exceeds the remaining bytes.
    pub fn data(&mut self, length: u32) -> Header {
        self.piece(ChunkType::OffsetData, 8 + length, length)
    }

    /// A hole: `length` bytes of zeroes.
    ///
    /// # Panics
    /// If `length` is 0, or exceeds the remaining bytes.
    pub fn hole(&mut self, length: u32) -> Header {
        let mut header = self.piece(ChunkType::OffsetHole, 12, length);
        header.put_u32(length);
        header
    }

    /// Ends a read that failed at the beginning of the remaining range.
    ///
    /// # Panics
    /// If the reply is complete.
    #[must_use]
    pub fn failed(self, error: ErrorCode) -> Header {
        assert!(self.left.length > 0, "a reply ends once");
        let chunk =
            Chunk { style: self.style, to: self.to, kind: ChunkType::ErrorOffset, is_last: true };
        let mut header = chunk.header(14);
        header.put_u32(error.to_wire());
        header.put_u16(0);
        header.put_u64(self.left.offset);
        header
    }

    fn piece(&mut self, kind: ChunkType, payload: u32, length: u32) -> Header {
        let covered = u64::from(length);
        assert!(covered > 0 && covered <= self.left.length, "a piece lies in what is left");
        let offset = self.left.offset;
        self.left = Span { offset: offset + covered, length: self.left.length - covered };
        let is_last = self.left.length == 0;
        let mut header = Chunk { style: self.style, to: self.to, kind, is_last }.header(payload);
        header.put_u64(offset);
        header
    }
}

/// The extents of a context from the beginning of a request's range, bounded in number.
///
/// Adjacent extents in one state become one, and no extent exceeds the range. An answer may end before the range does;
/// the client asks again for the rest.
#[derive(Clone, Debug)]
pub struct Extents {
    list: Vec<Extent>,
    most: usize,
    left: u64,
}

/// Whether further extents are useful.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Room {
    /// The next extent will be taken.
    More,
    /// The range is covered, or there are as many extents as the bound permits.
    Full,
}

impl Extents {
    /// An empty list, for a request about `span`.
    #[must_use]
    pub fn new(span: Span, count: ExtentCount, limits: &Limits) -> Self {
        let most = match count {
            ExtentCount::One => 1,
            ExtentCount::Many => limits.extents.max(1) as usize,
        };
        Self { list: Vec::new(), most, left: span.length }
    }

    /// Appends an extent. An extent of length 0 adds nothing. Flags of more than 32 bits need extended headers.
    pub fn push(&mut self, extent: Extent) -> Room {
        let length = extent.length.min(self.left);
        let is_full = self.list.len() == self.most;
        match self.list.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.flags == extent.flags => last.length += length,
            _ if is_full => return Room::Full,
            _ => self.list.push(Extent { length, ..extent }),
        }
        self.left -= length;
        if self.left == 0 { Room::Full } else { Room::More }
    }

    /// The extents so far.
    #[must_use]
    pub fn as_slice(&self) -> &[Extent] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Cookie, Extent, ExtentCount, Request};
    use crate::wire::{Command, CommandFlags, Limits};

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

    const SIMPLE: Replies = Replies::new(HeaderStyle::Simple);
    const STRUCTURED: Replies = Replies::new(HeaderStyle::Structured);
    const EXTENDED: Replies = Replies::new(HeaderStyle::Extended);

    fn to(command: Command) -> ReplyTo {
        let span = Span { offset: 0x1000, length: 0x300 };
        let request = Request {
            command: Ok(command),
            flags: CommandFlags::NONE,
            cookie: Cookie(0xabcd),
            span,
        };
        request.reply_to()
    }

    /// Bytes as hexadecimal digits, a blank between fields.
    fn hex(parts: &str) -> Vec<u8> {
        let digits: Vec<u8> = parts.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn successes_without_content() {
        let simple = hex("67446698 00000000 000000000000abcd");
        let structured = hex("668e33ef 0001 0000 000000000000abcd 00000000");
        let extended = hex("6e8a278c 0001 0000 000000000000abcd 0000000000001000 0000000000000000");
        for command in [Command::Write, Command::Flush, Command::Trim, Command::WriteZeroes] {
            assert_eq!(*SIMPLE.done(to(command)), simple);
            assert_eq!(*STRUCTURED.done(to(command)), simple);
            assert_eq!(*EXTENDED.done(to(command)), extended);
        }
        for command in [Command::Read, Command::BlockStatus] {
            assert_eq!(*SIMPLE.done(to(command)), simple);
            assert_eq!(*STRUCTURED.done(to(command)), structured, "it must have chunks");
            assert_eq!(*EXTENDED.done(to(command)), extended);
        }
    }

    #[test]
    fn errors_with_a_text_and_without() {
        let write = to(Command::Write);
        let simple = hex("67446698 0000001c 000000000000abcd");
        let structured = hex("668e33ef 0001 8001 000000000000abcd 00000006 0000001c 0000");
        assert_eq!(*SIMPLE.error(write, ErrorCode::NoSpace), simple);
        assert_eq!(*STRUCTURED.error(write, ErrorCode::NoSpace), structured);
        let mut out = Vec::new();
        SIMPLE.error_with_text(write, ErrorCode::NoSpace, "full", &mut out);
        assert_eq!(out, simple);
        out.clear();
        EXTENDED.error_with_text(write, ErrorCode::NoSpace, "full", &mut out);
        let expected = "6e8a278c 0001 8001 000000000000abcd 0000000000001000 000000000000000a \
                        0000001c 0004 66756c6c";
        assert_eq!(out, hex(expected));
    }

    #[test]
    fn a_text_is_cut_at_the_bound() {
        let mut out = Vec::new();
        STRUCTURED.error_with_text(to(Command::Read), ErrorCode::Io, &"x".repeat(70_000), &mut out);
        assert_eq!(out.len(), 20 + 6 + 4096);
        assert_eq!(out[24..26], 4096u16.to_be_bytes());
    }

    #[test]
    fn a_read_in_one_piece() {
        let read = to(Command::Read);
        assert_eq!(*SIMPLE.read(read, 0x300), hex("67446698 00000000 000000000000abcd"));
        let structured = hex("668e33ef 0001 0001 000000000000abcd 00000308 0000000000001000");
        assert_eq!(*STRUCTURED.read(read, 0x300), structured);
        let extended = "6e8a278c 0001 0001 000000000000abcd 0000000000001000 0000000000000308 \
                        0000000000001000";
        assert_eq!(*EXTENDED.read(read, 0x300), hex(extended));
    }

    #[test]
    fn a_read_in_pieces_of_which_the_last_one_is_marked() {
        let read = to(Command::Read);
        assert!(SIMPLE.pieces(read, 0x300).is_none());
        let mut pieces = STRUCTURED.pieces(read, 0x300).unwrap();
        let data = hex("668e33ef 0000 0001 000000000000abcd 00000108 0000000000001000");
        assert_eq!(*pieces.data(0x100), data);
        assert_eq!(pieces.left(), Span { offset: 0x1100, length: 0x200 });
        let hole = hex("668e33ef 0001 0002 000000000000abcd 0000000c 0000000000001100 00000200");
        assert_eq!(*pieces.hole(0x200), hole);
        assert_eq!(pieces.left().length, 0);

        let mut pieces = EXTENDED.pieces(read, 0x300).unwrap();
        let _ = pieces.hole(0x100);
        let failed = "6e8a278c 0001 8002 000000000000abcd 0000000000001000 000000000000000e \
                      00000005 0000 0000000000001100";
        assert_eq!(*pieces.failed(ErrorCode::Io), hex(failed));
    }

    #[test]
    #[should_panic(expected = "a piece lies in what is left")]
    fn a_piece_beyond_the_range_is_a_bug() {
        let _ = STRUCTURED.pieces(to(Command::Read), 8).unwrap().data(9);
    }

    #[test]
    fn extents_have_a_chunk_for_each_context() {
        let status = to(Command::BlockStatus);
        let span = Span { offset: 0x1000, length: 0x300 };
        let extents = |list: &[(u64, u64)]| {
            let mut extents = Extents::new(span, ExtentCount::Many, &Limits::default());
            for (length, flags) in list {
                let _ = extents.push(Extent { length: *length, flags: *flags });
            }
            extents
        };
        let (base, tier) = (extents(&[(0x100, 0), (0x200, 3)]), extents(&[(0x300, 7)]));
        let mut out = Vec::new();
        STRUCTURED.block_status(status, &[(1, &base), (2, &tier)], &mut out);
        let expected = "668e33ef 0000 0005 000000000000abcd 00000014 00000001 \
                        00000100 00000000 00000200 00000003 \
                        668e33ef 0001 0005 000000000000abcd 0000000c 00000002 00000300 00000007";
        assert_eq!(out, hex(expected));
        out.clear();
        EXTENDED.block_status(status, &[(2, &tier)], &mut out);
        let expected = "6e8a278c 0001 0006 000000000000abcd 0000000000001000 0000000000000018 \
                        00000002 00000001 0000000000000300 0000000000000007";
        assert_eq!(out, hex(expected));
    }

    const SPAN: Span = Span { offset: 4096, length: 100 };

    fn extent(length: u64, flags: u64) -> Extent {
        Extent { length, flags }
    }

    fn extents(count: ExtentCount, most: u32) -> Extents {
        Extents::new(SPAN, count, &Limits { extents: most, ..Limits::default() })
    }

    #[test]
    fn neighbours_in_one_state_are_one_extent() {
        let mut all = extents(ExtentCount::Many, 9);
        for (length, flags) in [(10, 0), (0, 1), (10, 0), (30, 3), (20, 3)] {
            assert_eq!(all.push(extent(length, flags)), Room::More);
        }
        assert_eq!(all.push(extent(1000, 0)), Room::Full, "the range ends");
        assert_eq!(all.as_slice(), [extent(20, 0), extent(50, 3), extent(30, 0)]);
        assert_eq!(all.push(extent(1, 0)), Room::Full);
        assert_eq!(all.as_slice().len(), 3);
    }

    #[test]
    fn the_bound_is_reached_by_the_first_extent_that_is_too_many() {
        let mut all = extents(ExtentCount::Many, 2);
        assert_eq!(all.push(extent(1, 0)), Room::More);
        assert_eq!(all.push(extent(1, 1)), Room::More, "it may become longer");
        assert_eq!(all.push(extent(1, 1)), Room::More);
        assert_eq!(all.push(extent(1, 0)), Room::Full);
        assert_eq!(all.as_slice(), [extent(1, 0), extent(2, 1)]);
    }

    #[test]
    fn one_extent_is_one_that_ends_within_the_range() {
        let mut one = extents(ExtentCount::One, 9);
        assert_eq!(one.push(extent(60, 0)), Room::More);
        assert_eq!(one.push(extent(60, 0)), Room::Full);
        assert_eq!(one.as_slice(), [extent(100, 0)]);
    }
}
