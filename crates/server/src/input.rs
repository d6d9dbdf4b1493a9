//! Bytes that have arrived and are not parsed.
//!
//! All connections of a worker read into one buffer. Bytes that a connection leaves unparsed are stored with the
//! connection and prepended to its next bytes: part of a header, the data of an option, or, while its requests must
//! wait, up to the whole buffer.

/// The maximum length of a read: some 9,000 requests without a payload.
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

    /// Prepends `rest`, and returns the buffer and the number of bytes in it.
    pub(crate) fn with(&mut self, rest: &[u8]) -> (&mut [u8], usize) {
        self.bytes[..rest.len()].copy_from_slice(rest);
        (&mut self.bytes, rest.len())
    }
}
