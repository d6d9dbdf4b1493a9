//! Bounds on the bytes that a peer can make this side keep, drop or write (`docs/spec/nbd.md`, section 6).
//!
//! Bounds on time, connections and requests in flight belong to the server, which has clocks and sockets.

use crate::magic::STRING;

/// Bounds on bytes. [`Limits::default`] has those of `docs/spec/nbd.md`, section 6.
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
