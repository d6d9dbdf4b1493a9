//! The bytes of one header, kept in place: no allocation for a request or for a reply in one piece.

use crate::wire::Put;
use std::fmt;
use std::ops::Deref;

/// The longest header: an extended reply with an error at an offset.
const MOST: usize = 48;

/// The bytes of a header, at most 48. It dereferences to them.
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
