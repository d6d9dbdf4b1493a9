//! The bytes of replies (`docs/spec/nbd.md`, sections 2 and 4), in the form that the handshake agreed on.
//!
//! Headers come by value, so a reply without a payload, and a read in one piece, allocate nothing.

use super::extents::Extents;
use super::pieces::Pieces;
use crate::chunk::Chunk;
use crate::code::{ChunkType, ErrorCode};
use crate::header::Header;
use crate::magic::{SIMPLE_REPLY, STRING};
use crate::request::{ReplyTo, Span};
use crate::style::HeaderStyle;
use crate::wire::{Put, clipped};

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

    /// A success without content: of every request but reads and BLOCK_STATUS, and of those if their length is 0.
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

    /// The header of a successful read whose bytes all follow: `length` of them, more than 0. Once it is sent in the
    /// simple form, a later failure can only close the connection.
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

#[cfg(test)]
mod tests;
