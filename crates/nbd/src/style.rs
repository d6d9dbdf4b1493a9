//! The forms of requests and replies between which a handshake chooses.

use crate::magic::{
    EXTENDED_REPLY_LEN, EXTENDED_REQUEST_LEN, REQUEST_LEN, SIMPLE_REPLY_LEN, STRUCTURED_REPLY_LEN,
};

/// The form of requests and replies of a connection, from the least to the most able.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HeaderStyle {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; reads, extents and errors are answered in chunks.
    Structured,
    /// Requests and replies of 64-bit lengths; every reply has chunks.
    Extended,
}

impl HeaderStyle {
    /// Bytes of a request, without its payload.
    #[must_use]
    pub const fn request_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => REQUEST_LEN,
            Self::Extended => EXTENDED_REQUEST_LEN,
        }
    }

    /// Bytes of a chunk, without its payload; under [`HeaderStyle::Simple`] those of a simple reply.
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
