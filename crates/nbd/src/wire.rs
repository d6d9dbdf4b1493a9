//! Big-endian fields, taken from the front of bytes and appended, and the forms of headers between which a handshake
//! chooses. Independent of any message. [`Limits`] bounds what a peer can make this side keep, drop or write.
//!
//! A [`Header`] keeps its bytes in place: no allocation for a request or for a reply in one piece.

use crate::magic::{
    EXTENDED_REPLY_LEN, EXTENDED_REQUEST_LEN, REQUEST_LEN, SIMPLE_REPLY_LEN, STRING,
    STRUCTURED_REPLY_LEN,
};
use std::fmt;
use std::ops::Deref;

/// Bytes that are taken field by field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(field)
    }

    /// A string preceded by its length.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// `Some` if no bytes are left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Bytes that grow field by field.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u16(&mut self, field: u16) {
        self.put(&field.to_be_bytes());
    }

    fn put_u32(&mut self, field: u32) {
        self.put(&field.to_be_bytes());
    }

    fn put_u64(&mut self, field: u64) {
        self.put(&field.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A string of the protocol: UTF-8 without NUL.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// The longest prefix of `text` that has at most `most` bytes and ends at a character boundary.
pub(crate) fn clipped(text: &str, most: u32) -> &str {
    let mut end = text.len().min(most as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The longest header: an extended reply with an error at an offset.
const MOST: usize = 48;

/// The bytes of a header, at most 48. Dereferences to them.
#[derive(Clone, Copy)]
pub struct Header {
    bytes: [u8; MOST],
    len: u8,
}

impl Header {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; MOST], len: 0 }
    }
}

impl Put for Header {
    fn put(&mut self, bytes: &[u8]) {
        let len = usize::from(self.len);
        self.bytes[len..len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Header {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Header {}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The form of requests and replies of a connection, from the least to the most capable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HeaderStyle {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; reads, extents and errors are answered in chunks.
    Structured,
    /// Requests and replies with 64-bit lengths; every reply has chunks.
    Extended,
}

impl HeaderStyle {
    /// Bytes of a request without its payload.
    #[must_use]
    pub const fn request_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => REQUEST_LEN,
            Self::Extended => EXTENDED_REQUEST_LEN,
        }
    }

    /// Bytes of a chunk without its payload; under [`HeaderStyle::Simple`], bytes of a simple reply.
    #[must_use]
    pub const fn reply_len(self) -> usize {
        match self {
            Self::Simple => SIMPLE_REPLY_LEN,
            Self::Structured => STRUCTURED_REPLY_LEN,
            Self::Extended => EXTENDED_REPLY_LEN,
        }
    }

    /// Returns whether replies may have chunks.
    #[must_use]
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Self::Simple)
    }
}

/// Bounds on bytes. [`Limits::default`] has those of `docs/spec/nbd.md`, section 6.
///
/// Bounds on time, connections and requests in flight belong to the server, which has clocks and sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The longest data of an option, or of a reply to one, that is read, in bytes.
    pub option_data: u32,
    /// The longest data of an option that is skipped and answered by an error, in bytes. Longer data ends the
    /// connection.
    pub option_dropped: u32,
    /// The longest name, query or text, in bytes.
    pub string: u32,
    /// The most queries of an option about metadata contexts.
    pub queries: u32,
    /// The most options of a handshake, besides the ones that a list adds.
    pub options: u32,
    /// Additional options for each export of an answered LIST: clients that show a list send one for each of its
    /// exports.
    pub options_listed: u32,
    /// The most LISTs of a handshake that are answered.
    pub lists: u32,
    /// The most exports of a LIST that a client keeps.
    pub listed: u32,
    /// The longest payload that is announced and accepted, in bytes.
    pub payload: u32,
    /// The longest payload that is skipped and answered by an error, in bytes. A longer one ends the connection.
    pub payload_dropped: u32,
    /// The most extents of a context in an answer to BLOCK_STATUS.
    pub extents: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            option_data: 64 << 10,
            option_dropped: 1 << 20,
            string: STRING,
            queries: 32,
            options: 64,
            options_listed: 8,
            lists: 3,
            listed: 10_000,
            payload: 32 << 20,
            payload_dropped: 64 << 20,
            extents: 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_their_order() {
        let mut bytes = Vec::new();
        bytes.put_u16(0x0102);
        bytes.put_u32(3);
        bytes.put(b"abc");
        bytes.put_u64(u64::MAX);
        assert_eq!(bytes[..6], [1, 2, 0, 0, 0, 3]);
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.u16(), Some(0x0102));
        assert_eq!(fields.counted(), Some(&b"abc"[..]));
        assert_eq!(fields.rest().len(), 8);
        assert_eq!(fields.end(), None);
        assert_eq!(fields.u64(), Some(u64::MAX));
        assert_eq!(fields.end(), Some(()));
        assert_eq!(fields.u16(), None);
    }

    #[test]
    fn a_length_beyond_the_bytes_takes_nothing() {
        let mut fields = Fields::new(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(fields.counted(), None);
        assert_eq!(fields.rest(), [1]);
    }

    #[test]
    fn strings_have_no_nul_and_end_with_a_character() {
        assert_eq!(text(b"a b"), Some("a b"));
        assert_eq!(text(b"a\0b"), None);
        assert_eq!(text(b"\xff"), None);
        let umlauts = "\u{e4}\u{e4}";
        assert_eq!(clipped(umlauts, 3), "\u{e4}");
        assert_eq!(clipped(umlauts, 9), umlauts);
    }
}
