//! A run of bytes of one state, as BLOCK_STATUS reports it.

/// Bytes of one state, behind those of the extent before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub length: u64,
    /// Its state, by the rules of its context.
    pub flags: u64,
}

/// The number of extents that a client wants of each context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtentCount {
    /// One that ends within the range of the request (REQ_ONE).
    One,
    /// As many as the server likes to send.
    Many,
}

/// The name of the context whose flags are [`HOLE`] and [`ZERO`].
pub const BASE_ALLOCATION: &str = "base:allocation";
/// In [`BASE_ALLOCATION`]: the bytes are not allocated.
pub const HOLE: u64 = 1;
/// In [`BASE_ALLOCATION`]: the bytes read as zeroes.
pub const ZERO: u64 = 2;
