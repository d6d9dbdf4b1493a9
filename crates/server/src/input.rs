//! Bytes that have arrived and are not parsed yet.
//!
//! A worker has one buffer into which all its connections read. The bytes that a connection leaves unparsed are
//! kept with the connection and put in front of its next bytes: part of a header, the data of an option, or, while its
//! requests have to wait, as much as the buffer held.

/// Bytes that one read takes. Some 9,000 requests without a payload.
pub(crate) const CAPACITY: usize = 256 << 10;

/// The buffer of a worker.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Box<[u8]>,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice() }
    }

    /// Puts `rest` in front, and returns the buffer and the number of bytes that are there.
    pub(crate) fn with(&mut self, rest: &[u8]) -> (&mut [u8], usize) {
        self.bytes[..rest.len()].copy_from_slice(rest);
        (&mut self.bytes, rest.len())
    }
}
