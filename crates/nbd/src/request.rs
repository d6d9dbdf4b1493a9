//! Exports as both sides see them, and the requests to them.
//!
//! An export has facts, block sizes that requests must respect (`docs/spec/nbd.md`, section 4.2), contexts, extents
//! that contexts report, and the directory that a server answers from. A request is here as it is on the wire, valid or
//! not, with its bytes (section 2). The terms of a transmission phase check requests (sections 4 and 4.2). A refused
//! request is answered after its payload has been read off the wire: see [`crate::server::Requests`].

use crate::magic::{EXTENDED_REQUEST, REQUEST};
use crate::wire::{Command, CommandFlags, ErrorCode, Header, HeaderStyle, Put, TransmissionFlags};

/// The facts about an export that a client can learn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExportInfo {
    /// Its canonical name; a client may have used another one, such as the empty name of the default export.
    pub name: String,
    /// A text for users; empty if there is none.
    pub description: String,
    /// Its size in bytes.
    pub size: u64,
    /// The abilities of the export. The handshake adds and removes the flags that depend on the agreed form of headers
    /// (see [`transmission_flags`](Self::transmission_flags)).
    pub flags: TransmissionFlags,
    /// The block sizes that requests must respect.
    pub blocks: BlockSizes,
    /// The names of its metadata contexts, such as `base:allocation`. The id of a context is its position here, from 1.
    pub contexts: Vec<String>,
}

/// A metadata context that a client has chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Its number in replies to BLOCK_STATUS.
    pub id: u32,
    /// `namespace:leaf`.
    pub name: String,
}

/// An export in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// A text for users; empty if there is none.
    pub description: String,
}

/// The exports of a server, which its handshakes look up. Answers about an export should be consistent, or INFO would
/// mislead a client about the GO that follows.
pub trait Exports {
    /// The export of this name, or the default export if the name is empty; `None` if there is none.
    fn find(&self, name: &str) -> Option<ExportInfo>;

    /// Calls `each` with name and description of every export to be shown to clients.
    fn list(&self, each: &mut dyn FnMut(&str, &str));
}

/// Flags that depend on the handshake, or that this crate does not support.
const NOT_OF_EXPORTS: TransmissionFlags = TransmissionFlags::SEND_DF
    .with(TransmissionFlags::SEND_RESIZE)
    .with(TransmissionFlags::BLOCK_STATUS_PAYLOAD);

impl ExportInfo {
    /// The flags to announce: `HAS_FLAGS` always, `SEND_DF` if replies have chunks, and no `SEND_FAST_ZERO` without
    /// `SEND_WRITE_ZEROES`. `SEND_RESIZE`, `BLOCK_STATUS_PAYLOAD` and bits without a name are left out.
    #[must_use]
    pub fn transmission_flags(&self, has_chunks: bool) -> TransmissionFlags {
        let known =
            TransmissionFlags::from_wire(self.flags.to_wire() & TransmissionFlags::KNOWN.to_wire());
        let mut flags = known.without(NOT_OF_EXPORTS).with(TransmissionFlags::HAS_FLAGS);
        if has_chunks {
            flags = flags.with(TransmissionFlags::SEND_DF);
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
        }
        flags
    }
}

/// Adjacent bytes in one state, which begin at the end of the preceding extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub length: u64,
    /// Its state, by the rules of its context.
    pub flags: u64,
}

/// The number of extents per context that a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtentCount {
    /// One extent, which ends within the range of the request (REQ_ONE).
    One,
    /// As many as the server chooses to send.
    Many,
}

/// The name of the context whose flags are [`HOLE`] and [`ZERO`].
pub const BASE_ALLOCATION: &str = "base:allocation";
/// In [`BASE_ALLOCATION`]: the bytes are not allocated.
pub const HOLE: u64 = 1;
/// In [`BASE_ALLOCATION`]: the bytes read as zeroes.
pub const ZERO: u64 = 2;

/// Block sizes of an export in bytes. Always consistent with each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockSizes {
    min: u32,
    preferred: u32,
    max_payload: u32,
}

impl BlockSizes {
    /// The sizes that a client assumes if it has not asked: 1, 4096, and 32 MiB.
    pub const DEFAULT: Self = Self { min: 1, preferred: 4096, max_payload: 32 << 20 };

    /// Sets the minimum, of which offsets and lengths are multiples. Raises the preferred size to it.
    ///
    /// # Errors
    /// If `min` is not a power of two from 1 to 65536.
    pub const fn with_min(self, min: u32) -> Result<Self, BlockSizeError> {
        if !min.is_power_of_two() || min > 65536 {
            return Err(BlockSizeError::Min(min));
        }
        let preferred = if self.preferred < min { min } else { self.preferred };
        Self { min, ..self }.with_preferred(preferred)
    }

    /// Sets the preferred size, multiples of which are fast.
    ///
    /// # Errors
    /// If `preferred` is not a power of two, or is below 512, below the minimum, or above the longest payload.
    pub const fn with_preferred(self, preferred: u32) -> Result<Self, BlockSizeError> {
        let is_small = preferred < 512 || preferred < self.min;
        if !preferred.is_power_of_two() || is_small || preferred > self.max_payload {
            return Err(BlockSizeError::Preferred(preferred));
        }
        Ok(Self { preferred, ..self })
    }

    /// Sets the longest payload of a request or a reply. [`u32::MAX`] is no limit; a server should have one, of at
    /// least 1 MiB.
    ///
    /// # Errors
    /// If it is below the preferred size, or not a multiple of the minimum.
    pub const fn with_max_payload(self, max_payload: u32) -> Result<Self, BlockSizeError> {
        let is_multiple = max_payload.is_multiple_of(self.min) || max_payload == u32::MAX;
        if max_payload < self.preferred || !is_multiple {
            return Err(BlockSizeError::MaxPayload(max_payload));
        }
        Ok(Self { max_payload, ..self })
    }

    /// The minimum in bytes, of which offsets and lengths are multiples: a power of two from 1 to 65536.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// The preferred size in bytes, multiples of which are fast: a power of two of at least 512.
    #[must_use]
    pub const fn preferred(self) -> u32 {
        self.preferred
    }

    /// The longest payload of a request or a reply, in bytes.
    #[must_use]
    pub const fn max_payload(self) -> u32 {
        self.max_payload
    }

    /// Limits payloads to `most` bytes, but not to less than the preferred size.
    pub(crate) fn bounded(self, most: u32) -> Self {
        let most = (most - most % self.min).max(self.preferred);
        Self { max_payload: self.max_payload.min(most), ..self }
    }
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A size that is inconsistent with the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockSizeError {
    /// The minimum is not a power of two from 1 to 65536.
    #[error("minimum block size {0}: a power of two from 1 to 65536 is wanted")]
    Min(u32),
    /// The preferred size is not a power of two, or is below 512, below the minimum, or above the longest payload.
    #[error(
        "preferred block size {0}: a power of two is wanted, from 512 and the minimum to the \
         longest payload"
    )]
    Preferred(u32),
    /// The longest payload is below the preferred size, or not a multiple of the minimum.
    #[error(
        "longest payload {0}: a multiple of the minimum block size is wanted, not below the \
         preferred one"
    )]
    MaxPayload(u32),
}

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

/// The terms that both sides agreed on: the size and abilities of the export, and the form of headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The size of the export in bytes.
    pub size: u64,
    /// The announced abilities.
    pub flags: TransmissionFlags,
    /// The block sizes that requests must respect.
    pub blocks: BlockSizes,
    /// The form of headers.
    pub style: HeaderStyle,
    /// Whether the client has chosen a metadata context, without which there is no BLOCK_STATUS.
    pub has_contexts: bool,
}

/// A valid request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Checked {
    /// A request of length 0, to be answered by a success immediately.
    Nothing,
    /// READ.
    Read {
        /// The bytes to read.
        span: Span,
        /// The reply must have one chunk at most (DF).
        in_one_piece: bool,
    },
    /// WRITE.
    Write {
        /// The bytes to write.
        span: Span,
        /// The bytes must be stable before the reply.
        fua: bool,
    },
    /// DISC: finish the requests in flight, then close. There is no reply.
    Disconnect,
    /// FLUSH.
    Flush,
    /// TRIM.
    Trim {
        /// The bytes to discard.
        span: Span,
        /// The discard must be stable before the reply.
        fua: bool,
    },
    /// CACHE.
    Cache {
        /// The bytes to read ahead.
        span: Span,
    },
    /// WRITE_ZEROES.
    WriteZeroes {
        /// The bytes to make zero.
        span: Span,
        /// The zeroes must be stable before the reply.
        fua: bool,
        /// The bytes must stay allocated.
        no_hole: bool,
        /// Fail with [`ErrorCode::NotSupported`] immediately if this is not faster than writing.
        fast: bool,
    },
    /// BLOCK_STATUS.
    BlockStatus {
        /// The bytes whose state the client asks for.
        span: Span,
        /// The extents that the client wants.
        count: ExtentCount,
    },
}

impl Terms {
    /// Checks a request against the terms.
    ///
    /// A write to a read-only export is [`ErrorCode::NotPermitted`], whatever else is wrong with it. Commands and flags
    /// that are unknown or not announced are [`ErrorCode::Invalid`], except that FLUSH and CACHE are always accepted,
    /// because some clients send them unannounced. A range beyond the end is [`ErrorCode::NoSpace`] for writes and
    /// zeroes. Any other range beyond the end, an unaligned range and a payload that is too long are
    /// [`ErrorCode::Invalid`].
    ///
    /// # Errors
    /// As above.
    pub fn check(&self, request: &Request) -> Result<Checked, ErrorCode> {
        let command = request.command.map_err(|_| ErrorCode::Invalid)?;
        let modifies = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if modifies && self.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(ErrorCode::NotPermitted);
        }
        if command == Command::Disconnect {
            return Ok(Checked::Disconnect);
        }
        if !self.announced(command) || !request.flags.is_within(self.permitted(command)) {
            return Err(ErrorCode::Invalid);
        }
        if command == Command::Flush {
            return Ok(Checked::Flush);
        }
        self.check_range(command, request)?;
        if request.span.length == 0 {
            return Ok(Checked::Nothing);
        }
        Ok(accepted(command, request))
    }

    fn announced(&self, command: Command) -> bool {
        match command {
            Command::Trim => self.flags.contains(TransmissionFlags::SEND_TRIM),
            Command::WriteZeroes => self.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES),
            Command::BlockStatus => self.has_contexts && self.style.has_chunks(),
            _ => true,
        }
    }

    /// The flags that the terms permit with `command`.
    fn permitted(&self, command: Command) -> CommandFlags {
        let if_sent = |ability, flag| {
            if self.flags.contains(ability) { flag } else { CommandFlags::NONE }
        };
        let of_command = match command {
            Command::Read => if_sent(TransmissionFlags::SEND_DF, CommandFlags::DF),
            Command::Write if self.style == HeaderStyle::Extended => CommandFlags::PAYLOAD_LEN,
            Command::WriteZeroes => {
                let fast = if_sent(TransmissionFlags::SEND_FAST_ZERO, CommandFlags::FAST_ZERO);
                CommandFlags::NO_HOLE.with(fast)
            }
            Command::BlockStatus => CommandFlags::REQ_ONE,
            _ => CommandFlags::NONE,
        };
        of_command.with(if_sent(TransmissionFlags::SEND_FUA, CommandFlags::FUA))
    }

    fn check_range(&self, command: Command, request: &Request) -> Result<(), ErrorCode> {
        let span = request.span;
        if span.end().is_none_or(|end| end > self.size) {
            let writes = matches!(command, Command::Write | Command::WriteZeroes);
            return Err(if writes { ErrorCode::NoSpace } else { ErrorCode::Invalid });
        }
        let has_payload = matches!(command, Command::Read | Command::Write);
        if has_payload && span.length > u64::from(self.blocks.max_payload()) {
            let in_one_piece = request.flags.contains(CommandFlags::DF);
            return Err(if in_one_piece { ErrorCode::Overflow } else { ErrorCode::Invalid });
        }
        if (span.offset | span.length) & u64::from(self.blocks.min() - 1) != 0 {
            return Err(ErrorCode::Invalid);
        }
        Ok(())
    }
}

fn accepted(command: Command, request: &Request) -> Checked {
    let Request { span, flags, .. } = *request;
    let fua = flags.contains(CommandFlags::FUA);
    match command {
        Command::Read => Checked::Read { span, in_one_piece: flags.contains(CommandFlags::DF) },
        Command::Write => Checked::Write { span, fua },
        Command::Disconnect => Checked::Disconnect,
        Command::Flush => Checked::Flush,
        Command::Trim => Checked::Trim { span, fua },
        Command::Cache => Checked::Cache { span },
        Command::WriteZeroes => Checked::WriteZeroes {
            span,
            fua,
            no_hole: flags.contains(CommandFlags::NO_HOLE),
            fast: flags.contains(CommandFlags::FAST_ZERO),
        },
        Command::BlockStatus if flags.contains(CommandFlags::REQ_ONE) => {
            Checked::BlockStatus { span, count: ExtentCount::One }
        }
        Command::BlockStatus => Checked::BlockStatus { span, count: ExtentCount::Many },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_do_not_go_together_are_left_out() {
        let all =
            ExportInfo { flags: TransmissionFlags::from_wire(u16::MAX), ..ExportInfo::default() };
        let absent = TransmissionFlags::SEND_RESIZE | TransmissionFlags::BLOCK_STATUS_PAYLOAD;
        assert_eq!(all.transmission_flags(true), TransmissionFlags::KNOWN.without(absent));
        let without_chunks = absent | TransmissionFlags::SEND_DF;
        assert_eq!(all.transmission_flags(false), TransmissionFlags::KNOWN.without(without_chunks));
        let fast = ExportInfo { flags: TransmissionFlags::SEND_FAST_ZERO, ..ExportInfo::default() };
        assert_eq!(fast.transmission_flags(false), TransmissionFlags::HAS_FLAGS);
    }

    #[test]
    fn sizes_that_contradict_each_other_are_refused() {
        let sizes = BlockSizes::DEFAULT;
        for min in [0, 3, 1 << 17, u32::MAX] {
            assert_eq!(sizes.with_min(min), Err(BlockSizeError::Min(min)));
        }
        for preferred in [0, 256, 1000, 1 << 26] {
            assert_eq!(sizes.with_preferred(preferred), Err(BlockSizeError::Preferred(preferred)));
        }
        assert_eq!(sizes.with_max_payload(4095), Err(BlockSizeError::MaxPayload(4095)));
        let blocks = sizes.with_min(512).unwrap();
        assert_eq!(blocks.with_max_payload(5000), Err(BlockSizeError::MaxPayload(5000)));
        assert!(BlockSizeError::Min(3).to_string().contains('3'));
    }

    #[test]
    fn the_preferred_size_follows_the_minimum() {
        let sizes = BlockSizes::DEFAULT.with_min(65536).unwrap();
        assert_eq!((sizes.min(), sizes.preferred()), (65536, 65536));
        assert_eq!(sizes.with_preferred(4096), Err(BlockSizeError::Preferred(4096)));
        let small = BlockSizes::DEFAULT.with_max_payload(8192).unwrap();
        assert_eq!(small.with_min(65536), Err(BlockSizeError::Preferred(65536)));
    }

    #[test]
    fn a_bound_leaves_a_multiple_of_the_minimum() {
        let sizes = BlockSizes::DEFAULT.with_min(4096).unwrap().with_max_payload(u32::MAX).unwrap();
        assert_eq!(sizes.bounded(10_000).max_payload(), 8192);
        assert_eq!(sizes.bounded(100).max_payload(), 4096);
        assert_eq!(BlockSizes::DEFAULT.bounded(u32::MAX), BlockSizes::DEFAULT);
    }

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

    const MIB: u64 = 1 << 20;

    fn terms() -> Terms {
        Terms {
            size: 64 * MIB,
            flags: TransmissionFlags::KNOWN.without(TransmissionFlags::READ_ONLY),
            blocks: BlockSizes::DEFAULT.with_min(512).unwrap(),
            style: HeaderStyle::Extended,
            has_contexts: true,
        }
    }

    fn request(command: Command, flags: CommandFlags, offset: u64, length: u64) -> Request {
        Request { command: Ok(command), flags, cookie: Cookie(7), span: Span { offset, length } }
    }

    fn outcome(terms: &Terms, command: Command, flags: CommandFlags) -> Result<Checked, ErrorCode> {
        terms.check(&request(command, flags, 512, 512))
    }

    #[test]
    fn flags_are_permitted_with_their_commands_only() {
        let terms = terms();
        let table = [
            (CommandFlags::NO_HOLE, &[Command::WriteZeroes][..]),
            (CommandFlags::DF, &[Command::Read]),
            (CommandFlags::REQ_ONE, &[Command::BlockStatus]),
            (CommandFlags::FAST_ZERO, &[Command::WriteZeroes]),
            (CommandFlags::PAYLOAD_LEN, &[Command::Write]),
            (CommandFlags::FUA, Command::ALL),
            (CommandFlags::from_wire(1 << 15), &[]),
        ];
        for (flag, commands) in table {
            for command in Command::ALL.iter().filter(|command| **command != Command::Disconnect) {
                let expected = commands.contains(command);
                assert_eq!(
                    outcome(&terms, *command, flag).is_ok(),
                    expected,
                    "{command:?} {flag:?}"
                );
            }
        }
    }

    #[test]
    fn flags_reach_the_command() {
        let terms = terms();
        let span = Span { offset: 512, length: 512 };
        let all = CommandFlags::FUA | CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
        assert_eq!(
            outcome(&terms, Command::WriteZeroes, all),
            Ok(Checked::WriteZeroes { span, fua: true, no_hole: true, fast: true })
        );
        let one = CommandFlags::REQ_ONE;
        let status = Checked::BlockStatus { span, count: ExtentCount::One };
        assert_eq!(outcome(&terms, Command::BlockStatus, one), Ok(status));
        let read = Checked::Read { span, in_one_piece: true };
        assert_eq!(outcome(&terms, Command::Read, CommandFlags::DF), Ok(read));
        let write = Checked::Write { span, fua: false };
        assert_eq!(outcome(&terms, Command::Write, CommandFlags::NONE), Ok(write));
    }

    #[test]
    fn what_is_not_announced_is_invalid_but_for_flushes_and_hints() {
        let bare = Terms {
            flags: TransmissionFlags::HAS_FLAGS,
            style: HeaderStyle::Simple,
            has_contexts: false,
            ..terms()
        };
        for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
            assert_eq!(outcome(&bare, command, CommandFlags::NONE), Err(ErrorCode::Invalid));
        }
        for command in [Command::Flush, Command::Cache, Command::Read, Command::Write] {
            assert!(outcome(&bare, command, CommandFlags::NONE).is_ok(), "{command:?}");
            let fua = outcome(&bare, command, CommandFlags::FUA);
            assert_eq!(fua, Err(ErrorCode::Invalid), "{command:?}");
        }
        let zeroes = Terms { flags: TransmissionFlags::SEND_WRITE_ZEROES, ..terms() };
        let fast = outcome(&zeroes, Command::WriteZeroes, CommandFlags::FAST_ZERO);
        assert_eq!(fast, Err(ErrorCode::Invalid));
    }

    #[test]
    fn an_unknown_command_is_invalid() {
        for number in [8, 9, u16::MAX] {
            let read = request(Command::Read, CommandFlags::NONE, 0, 512);
            let unknown = Request { command: Err(number), ..read };
            assert_eq!(terms().check(&unknown), Err(ErrorCode::Invalid));
        }
    }

    /// `docs/spec/nbd.md`, *How to test this*, point 14.
    #[test]
    fn a_read_only_export_permits_no_change() {
        let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::READ_ONLY;
        let read_only = Terms { flags, ..terms() };
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            for flags in [CommandFlags::NONE, CommandFlags::FUA] {
                let outcome = outcome(&read_only, command, flags);
                assert_eq!(outcome, Err(ErrorCode::NotPermitted), "{command:?}");
            }
        }
        assert!(outcome(&read_only, Command::Read, CommandFlags::NONE).is_ok());
        assert!(outcome(&read_only, Command::Flush, CommandFlags::NONE).is_ok());
    }

    #[test]
    fn ranges_beyond_the_end_have_the_error_of_their_command() {
        let terms = terms();
        let ends = [(64 * MIB, 512), (64 * MIB - 512, 1024), (u64::MAX - 511, 512), (0, 65 * MIB)];
        for (offset, length) in ends {
            for command in [Command::Read, Command::Trim, Command::Cache, Command::BlockStatus] {
                let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
                assert_eq!(outcome, Err(ErrorCode::Invalid), "{command:?} {offset} {length}");
            }
            for command in [Command::Write, Command::WriteZeroes] {
                let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
                assert_eq!(outcome, Err(ErrorCode::NoSpace), "{command:?} {offset} {length}");
            }
        }
        for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
            let whole = request(command, CommandFlags::NONE, 0, 64 * MIB);
            assert!(terms.check(&whole).is_ok(), "{command:?} has no payload");
        }
    }

    #[test]
    fn payloads_have_a_longest_length() {
        let terms = terms();
        for command in [Command::Read, Command::Write] {
            let longest = request(command, CommandFlags::NONE, 0, 32 * MIB);
            assert!(terms.check(&longest).is_ok());
            let longer = request(command, CommandFlags::NONE, 0, 32 * MIB + 512);
            assert_eq!(terms.check(&longer), Err(ErrorCode::Invalid));
        }
        let whole = request(Command::Read, CommandFlags::DF, 0, 32 * MIB + 512);
        assert_eq!(terms.check(&whole), Err(ErrorCode::Overflow));
    }

    #[test]
    fn unaligned_ranges_are_invalid() {
        let terms = terms();
        for (offset, length) in [(1, 512), (512, 511), (256, 256)] {
            for command in [Command::Read, Command::Write, Command::Trim, Command::BlockStatus] {
                let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
                assert_eq!(outcome, Err(ErrorCode::Invalid), "{command:?} {offset} {length}");
            }
        }
    }

    #[test]
    fn a_length_of_zero_succeeds() {
        let terms = terms();
        for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes] {
            let outcome = terms.check(&request(command, CommandFlags::NONE, 512, 0));
            assert_eq!(outcome, Ok(Checked::Nothing), "{command:?}");
            let end = terms.check(&request(command, CommandFlags::NONE, 64 * MIB, 0));
            assert_eq!(end, Ok(Checked::Nothing), "{command:?}");
        }
        let beyond = terms.check(&request(Command::Read, CommandFlags::NONE, 64 * MIB + 1, 0));
        assert_eq!(beyond, Err(ErrorCode::Invalid), "there is no such place");
        let flush = terms.check(&request(Command::Flush, CommandFlags::NONE, 0, 0));
        assert_eq!(flush, Ok(Checked::Flush));
        assert_eq!(
            terms.check(&request(Command::Disconnect, CommandFlags::KNOWN, 9, 9)),
            Ok(Checked::Disconnect)
        );
    }
}
