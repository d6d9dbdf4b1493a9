//! A request as it is on the wire, valid or not, and its bytes (`docs/spec/nbd.md`, section 2); and the terms of a
//! transmission phase, with the check of requests against them (sections 4 and 4.2).
//!
//! A refused request is answered after its payload has been read off the wire: see [`crate::server::Requests`].

use crate::code::{Command, CommandFlags, ErrorCode, TransmissionFlags};
use crate::export::{BlockSizes, ExtentCount};
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
mod tests;
