//! The terms of a transmission phase, and the check of requests against them (`docs/spec/nbd.md`, sections 4 and 4.2).
//!
//! A refused request is answered after its payload has been read off the wire: see [`crate::server::Requests`].

use crate::block_sizes::BlockSizes;
use crate::code::{Command, ErrorCode};
use crate::export::ExtentCount;
use crate::flags::{CommandFlags, TransmissionFlags};
use crate::request::{Request, Span};
use crate::wire::HeaderStyle;

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
