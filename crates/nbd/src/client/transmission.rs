//! A client's requests, and the replies to them, as bytes (`docs/spec/nbd.md`, sections 2 and 4). The caller sends
//! payloads behind the header of a request, and reads the data of a read straight to its destination.
//!
//! A client keeps a part of each request to check its reply: a chunk is checked before its payload is read. Chunks of
//! one read may arrive in any order. Overlaps are detected by the sum of their lengths, so an overlap that equals a gap
//! goes unnoticed.

use super::BrokenReply;
use crate::magic::{
    EXTENDED_REPLY, EXTENDED_REPLY_LEN, SIMPLE_REPLY, SIMPLE_REPLY_LEN, STRUCTURED_REPLY,
    STRUCTURED_REPLY_LEN,
};
use crate::request::{Cookie, Extent, ExtentCount, Request, Span};
use crate::wire::{
    ChunkFlags, ChunkType, Command, CommandFlags, ErrorCode, Fields, Header, HeaderStyle, Limits,
};
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
    command: Command,
    span: Span,
    count: ExtentCount,
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
    fn cover(&mut self, chunk: Span) -> Result<(), BrokenReply> {
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

    fn note_extents(&mut self) -> Result<(), BrokenReply> {
        if self.command != Command::BlockStatus {
            return Err(BrokenReply::WrongContent(self.cookie));
        }
        self.has_extents = true;
        Ok(())
    }

    fn note_error(&mut self) {
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

/// The bit that makes a chunk an error, known or not.
const ERROR_BIT: u16 = 1 << 15;

/// The most extents of a chunk.
const MOST_EXTENTS: u32 = 1 << 20;

/// The parser of replies in the form that the handshake agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Replies {
    style: HeaderStyle,
    longest: u32,
    longest_text: u32,
}

/// The result of parsing the beginning of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<'a> {
    /// A reply, or a chunk of one.
    Reply(Reply<'a>),
    /// Too few bytes.
    NeedMore,
    /// The server broke the protocol: the connection has to end.
    Broken(BrokenReply),
}

/// A reply, or a chunk of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// The cookie of the request.
    pub cookie: Cookie,
    /// Whether this is the last reply to the request. Replies to other requests may come before the last one.
    pub is_last: bool,
    /// The content of the reply.
    pub content: Content<'a>,
    /// Bytes to skip before the payload: the header, and content that has been parsed.
    pub header_len: usize,
    /// Bytes of payload that follow.
    pub payload_len: u32,
}

/// The content of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// No content: a success, or the end of a reply in chunks.
    None,
    /// The request has failed.
    Error {
        /// The reason. An error that is unknown here is [`ErrorCode::Io`].
        error: ErrorCode,
        /// A text for users, as the server sent it; it may be empty.
        text: &'a [u8],
        /// The offset of the fault; `None` if it is unknown.
        offset: Option<u64>,
    },
    /// These bytes of the export are the payload.
    Data(Span),
    /// These bytes of the export are zero.
    Hole(Span),
    /// The payload has extents of a context, for [`Extents::read`](super::Extents::read).
    Extents {
        /// The id of the context.
        context: u32,
    },
}

/// The header of a chunk.
struct Head {
    kind: Kind,
    is_last: bool,
    cookie: Cookie,
    header_len: usize,
    length: u32,
}

/// The type of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Known(ChunkType),
    /// An error of a type that is unknown here. It fails its request like another, so that the connection can continue.
    UnknownError,
}

impl Kind {
    fn from_wire(number: u16) -> Result<Self, BrokenReply> {
        match ChunkType::from_wire(number) {
            Some(kind) => Ok(Self::Known(kind)),
            None if number & ERROR_BIT != 0 => Ok(Self::UnknownError),
            None => Err(BrokenReply::UnknownChunk(number)),
        }
    }
}

/// Why parsing stops: too few bytes, or a broken protocol.
enum Stop {
    NeedMore,
    Broken(BrokenReply),
}

impl From<BrokenReply> for Stop {
    fn from(broken: BrokenReply) -> Self {
        Self::Broken(broken)
    }
}

/// The field, or [`Stop::NeedMore`] if it has not arrived.
fn arrived<T>(field: Option<T>) -> Result<T, Stop> {
    field.ok_or(Stop::NeedMore)
}

impl Replies {
    /// A parser of replies in this form. Chunks are limited to [`Limits::payload_dropped`] plus their own fields, and
    /// texts to [`Limits::string`].
    #[must_use]
    pub fn new(style: HeaderStyle, limits: &Limits) -> Self {
        Self { style, longest: limits.payload_dropped, longest_text: limits.string }
    }

    /// The reply at the beginning of `input`. Its range is noted in its request, so each reply must be parsed only
    /// once: the caller continues behind the reply and its payload, and forgets the request after the last reply.
    pub fn next<'a>(&self, input: &'a [u8], in_flight: &mut dyn InFlight) -> Parsed<'a> {
        match self.read(input, in_flight) {
            Ok(reply) => Parsed::Reply(reply),
            Err(Stop::NeedMore) => Parsed::NeedMore,
            Err(Stop::Broken(broken)) => Parsed::Broken(broken),
        }
    }

    fn read<'a>(&self, input: &'a [u8], in_flight: &mut dyn InFlight) -> Result<Reply<'a>, Stop> {
        let mut fields = Fields::new(input);
        let magic = arrived(fields.u32())?;
        match (magic, self.style) {
            (SIMPLE_REPLY, HeaderStyle::Simple | HeaderStyle::Structured) => {
                self.simple(fields, in_flight)
            }
            (STRUCTURED_REPLY, HeaderStyle::Structured)
            | (EXTENDED_REPLY, HeaderStyle::Extended) => self.chunk(fields, in_flight),
            _ => Err(BrokenReply::Magic(magic).into()),
        }
    }

    fn simple<'a>(
        &self,
        mut fields: Fields<'a>,
        in_flight: &mut dyn InFlight,
    ) -> Result<Reply<'a>, Stop> {
        let error = arrived(fields.u32())?;
        let cookie = Cookie(arrived(fields.u64())?);
        let pending = in_flight.find(cookie).ok_or(BrokenReply::UnknownCookie(cookie))?;
        let reply = |content, payload_len| {
            Ok(Reply { cookie, is_last: true, content, header_len: SIMPLE_REPLY_LEN, payload_len })
        };
        if error != 0 {
            let error = error_of(error);
            return reply(Content::Error { error, text: &[], offset: None }, 0);
        }
        if self.style == HeaderStyle::Simple && pending.command == Command::Read {
            let length = u32::try_from(pending.span.length).ok();
            let length = length.filter(|length| *length <= self.longest);
            let length = length.ok_or(BrokenReply::TooLong(pending.span.length))?;
            pending.cover(pending.span)?;
            return reply(Content::Data(pending.span), length);
        }
        // With structured replies, reads and extents come in chunks.
        pending.end().map_err(|_| BrokenReply::WrongContent(cookie))?;
        reply(Content::None, 0)
    }

    fn chunk<'a>(
        &self,
        mut fields: Fields<'a>,
        in_flight: &mut dyn InFlight,
    ) -> Result<Reply<'a>, Stop> {
        let is_extended = self.style == HeaderStyle::Extended;
        let flags = ChunkFlags::from_wire(arrived(fields.u16())?);
        let number = arrived(fields.u16())?;
        let cookie = Cookie(arrived(fields.u64())?);
        let offset = if is_extended { Some(arrived(fields.u64())?) } else { None };
        let length =
            if is_extended { arrived(fields.u64())? } else { arrived(fields.u32())?.into() };
        let pending = in_flight.find(cookie).ok_or(BrokenReply::UnknownCookie(cookie))?;
        if offset.is_some_and(|offset| offset != pending.span.offset) {
            return Err(BrokenReply::WrongOffset(cookie).into());
        }
        let kind = Kind::from_wire(number)?;
        // The length excludes the offset in front of the data.
        let length = u32::try_from(length)
            .ok()
            .filter(|length| *length <= self.longest.saturating_add(8))
            .ok_or(BrokenReply::TooLong(length))?;
        let header_len = if is_extended { EXTENDED_REPLY_LEN } else { STRUCTURED_REPLY_LEN };
        let is_last = flags.contains(ChunkFlags::DONE);
        let head = Head { kind, is_last, cookie, header_len, length };
        self.content(&head, fields, pending)
    }

    fn content<'a>(
        &self,
        head: &Head,
        fields: Fields<'a>,
        pending: &mut Pending,
    ) -> Result<Reply<'a>, Stop> {
        let (content, here) = match head.kind {
            Kind::Known(ChunkType::None) if head.length == 0 && head.is_last => (Content::None, 0),
            Kind::Known(ChunkType::None) => {
                return Err(BrokenReply::WrongLength(head.cookie).into());
            }
            Kind::Known(ChunkType::OffsetData) => (data(head, fields, pending)?, 8),
            Kind::Known(ChunkType::OffsetHole) => (hole(head, fields, pending)?, 12),
            Kind::Known(ChunkType::BlockStatus) => (self.extents(head, fields, pending)?, 4),
            Kind::Known(ChunkType::BlockStatusExtended) => {
                (self.extents(head, fields, pending)?, 8)
            }
            Kind::Known(ChunkType::Error | ChunkType::ErrorOffset) => {
                (self.error(head, fields, pending)?, head.length)
            }
            Kind::UnknownError => (self.unknown_error(head, fields, pending)?, head.length),
        };
        if head.is_last {
            pending.end()?;
        }
        Ok(Reply {
            cookie: head.cookie,
            is_last: head.is_last,
            content,
            header_len: head.header_len + here as usize,
            payload_len: head.length - here,
        })
    }

    fn extents<'a>(
        &self,
        head: &Head,
        mut fields: Fields<'a>,
        pending: &mut Pending,
    ) -> Result<Content<'a>, Stop> {
        let is_extended = self.style == HeaderStyle::Extended;
        if is_extended != (head.kind == Kind::Known(ChunkType::BlockStatusExtended)) {
            return Err(BrokenReply::WrongContent(head.cookie).into());
        }
        let (front, each) = if is_extended { (8, 16) } else { (4, 8) };
        let count = head.length.saturating_sub(front) / each;
        if count == 0 || count > MOST_EXTENTS || head.length != front + count * each {
            return Err(BrokenReply::WrongLength(head.cookie).into());
        }
        let context = arrived(fields.u32())?;
        if is_extended && arrived(fields.u32())? != count {
            return Err(BrokenReply::WrongLength(head.cookie).into());
        }
        pending.note_extents()?;
        Ok(Content::Extents { context })
    }

    fn error<'a>(
        &self,
        head: &Head,
        mut fields: Fields<'a>,
        pending: &mut Pending,
    ) -> Result<Content<'a>, Stop> {
        let wrong = BrokenReply::WrongLength(head.cookie);
        let fixed = if head.kind == Kind::Known(ChunkType::ErrorOffset) { 14 } else { 6 };
        if head.length < fixed || head.length > fixed + self.longest_text {
            return Err(wrong.into());
        }
        let error = arrived(fields.u32())?;
        let text_len = arrived(fields.u16())?;
        if u32::from(text_len) != head.length - fixed || error == 0 {
            return Err(wrong.into());
        }
        let text = arrived(fields.bytes(text_len.into()))?;
        let offset = if fixed == 14 { Some(arrived(fields.u64())?) } else { None };
        pending.note_error();
        Ok(Content::Error { error: error_of(error), text, offset })
    }

    /// An error of an unknown type begins like any other, with the error and a text. Missing or malformed fields are
    /// ignored: the request has failed in any case.
    fn unknown_error<'a>(
        &self,
        head: &Head,
        mut fields: Fields<'a>,
        pending: &mut Pending,
    ) -> Result<Content<'a>, Stop> {
        if head.length > 14 + self.longest_text {
            return Err(BrokenReply::WrongLength(head.cookie).into());
        }
        let mut fields = Fields::new(arrived(fields.bytes(head.length))?);
        let error = fields.u32().map_or(ErrorCode::Io, error_of);
        let text = fields.u16().and_then(|len| fields.bytes(len.into())).unwrap_or_default();
        pending.note_error();
        Ok(Content::Error { error, text, offset: None })
    }
}

fn data<'a>(
    head: &Head,
    mut fields: Fields<'a>,
    pending: &mut Pending,
) -> Result<Content<'a>, Stop> {
    if head.length < 9 {
        return Err(BrokenReply::WrongLength(head.cookie).into());
    }
    let span = Span { offset: arrived(fields.u64())?, length: (head.length - 8).into() };
    pending.cover(span)?;
    Ok(Content::Data(span))
}

fn hole<'a>(
    head: &Head,
    mut fields: Fields<'a>,
    pending: &mut Pending,
) -> Result<Content<'a>, Stop> {
    if head.length != 12 {
        return Err(BrokenReply::WrongLength(head.cookie).into());
    }
    let (offset, length) = (arrived(fields.u64())?, arrived(fields.u32())?);
    if length == 0 {
        return Err(BrokenReply::EmptyHole(head.cookie).into());
    }
    let span = Span { offset, length: length.into() };
    pending.cover(span)?;
    Ok(Content::Hole(span))
}

fn error_of(number: u32) -> ErrorCode {
    ErrorCode::from_wire(number).unwrap_or(ErrorCode::Io)
}

/// The extents of a context, in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    fields: Fields<'a>,
    style: HeaderStyle,
}

impl<'a> Extents<'a> {
    /// The extents in `payload`, the payload of a reply to `pending` with
    /// [`Content::Extents`](super::Content::Extents). The first one begins at the offset of the request, and the last
    /// one may reach beyond its range.
    ///
    /// # Errors
    /// If an extent has no length, if one behind another begins beyond the range of the request, or if there are
    /// several, or one that reaches beyond the range, and the client wanted one.
    pub fn read(
        payload: &'a [u8],
        style: HeaderStyle,
        pending: &Pending,
    ) -> Result<Self, BrokenReply> {
        let extents = Self { fields: Fields::new(payload), style };
        let (mut count, mut covered) = (0, 0u64);
        for extent in extents.clone() {
            if extent.length == 0 {
                return Err(BrokenReply::WrongExtents(pending.cookie));
            }
            if covered >= pending.span.length {
                return Err(BrokenReply::Outside(pending.cookie));
            }
            covered = covered.saturating_add(extent.length);
            count += 1;
        }
        let is_too_much = count > 1 || covered > pending.span.length;
        if pending.count == ExtentCount::One && is_too_much {
            return Err(BrokenReply::WrongExtents(pending.cookie));
        }
        Ok(extents)
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let fields = &mut self.fields;
        if self.style == HeaderStyle::Extended {
            Some(Extent { length: fields.u64()?, flags: fields.u64()? })
        } else {
            Some(Extent { length: fields.u32()?.into(), flags: fields.u32()?.into() })
        }
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
