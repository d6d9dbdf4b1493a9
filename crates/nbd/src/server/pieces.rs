//! A read in several chunks, from the beginning of its range to the end: data where there is some, and holes, which
//! cost no bandwidth.

use crate::chunk::Chunk;
use crate::code::{ChunkType, ErrorCode};
use crate::header::Header;
use crate::request::{ReplyTo, Span};
use crate::style::HeaderStyle;
use crate::wire::Put;

/// A reply to a read under way. It knows which piece is the last one, and marks it.
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

    /// The bytes that no piece has covered yet. The reply is complete when there are none.
    #[must_use]
    pub const fn left(&self) -> Span {
        self.left
    }

    /// The header of a piece of data; its `length` bytes follow it. A read with DF has one such piece for all of it.
    ///
    /// # Panics
    /// If `length` is 0, or more than is left.
    pub fn data(&mut self, length: u32) -> Header {
        self.piece(ChunkType::OffsetData, 8 + length, length)
    }

    /// A hole: `length` bytes of zeroes.
    ///
    /// # Panics
    /// If `length` is 0, or more than is left.
    pub fn hole(&mut self, length: u32) -> Header {
        let mut header = self.piece(ChunkType::OffsetHole, 12, length);
        header.put_u32(length);
        header
    }

    /// The end of a read that failed at the beginning of the remaining range.
    ///
    /// # Panics
    /// If nothing is left, because the reply is complete then.
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
