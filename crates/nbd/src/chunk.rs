//! The header of a chunk of a structured or extended reply.

use crate::code::ChunkType;
use crate::flags::ChunkFlags;
use crate::header::Header;
use crate::magic::{EXTENDED_REPLY, STRUCTURED_REPLY};
use crate::request::ReplyTo;
use crate::style::HeaderStyle;
use crate::wire::Put;

/// A chunk, without its payload. The style is one with chunks.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) style: HeaderStyle,
    pub(crate) to: ReplyTo,
    pub(crate) kind: ChunkType,
    pub(crate) is_last: bool,
}

impl Chunk {
    /// The bytes in front of a payload of `length` bytes.
    pub(crate) fn header(self, length: u32) -> Header {
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
