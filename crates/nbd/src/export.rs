//! Exports as both sides see them: their facts, the block sizes that requests must respect (`docs/spec/nbd.md`, section
//! 4.2), their contexts, the extents that contexts report, and the directory that a server answers from.

use crate::code::TransmissionFlags;
use std::fmt;

/// The facts about an export that a client can learn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExportInfo {
    /// Its canonical name; a client may have used another one, such as the empty name of the default export.
    pub name: String,
    /// A text for users; empty if there is none.
    pub description: String,
    /// Its size in bytes.
    pub size: u64,
    /// The abilities of the export. The handshake adds and removes the flags that depend on the agreed form of headers
    /// (see [`transmission_flags`](Self::transmission_flags)).
    pub flags: TransmissionFlags,
    /// The block sizes that requests must respect.
    pub blocks: BlockSizes,
    /// The names of its metadata contexts, such as `base:allocation`. The id of a context is its position here, from 1.
    pub contexts: Vec<String>,
}

/// A metadata context that a client has chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Its number in replies to BLOCK_STATUS.
    pub id: u32,
    /// `namespace:leaf`.
    pub name: String,
}

/// An export in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// A text for users; empty if there is none.
    pub description: String,
}

/// The exports of a server, which its handshakes look up. Answers about an export should be consistent, or INFO would
/// mislead a client about the GO that follows.
pub trait Exports {
    /// The export of this name, or the default export if the name is empty; `None` if there is none.
    fn find(&self, name: &str) -> Option<ExportInfo>;

    /// Calls `each` with name and description of every export to be shown to clients.
    fn list(&self, each: &mut dyn FnMut(&str, &str));
}

/// Flags that depend on the handshake, or that this crate does not support.
const NOT_OF_EXPORTS: TransmissionFlags = TransmissionFlags::SEND_DF
    .with(TransmissionFlags::SEND_RESIZE)
    .with(TransmissionFlags::BLOCK_STATUS_PAYLOAD);

impl ExportInfo {
    /// The flags to announce: `HAS_FLAGS` always, `SEND_DF` if replies have chunks, and no `SEND_FAST_ZERO` without
    /// `SEND_WRITE_ZEROES`. `SEND_RESIZE`, `BLOCK_STATUS_PAYLOAD` and bits without a name are left out.
    #[must_use]
    pub fn transmission_flags(&self, has_chunks: bool) -> TransmissionFlags {
        let known =
            TransmissionFlags::from_wire(self.flags.to_wire() & TransmissionFlags::KNOWN.to_wire());
        let mut flags = known.without(NOT_OF_EXPORTS).with(TransmissionFlags::HAS_FLAGS);
        if has_chunks {
            flags = flags.with(TransmissionFlags::SEND_DF);
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
        }
        flags
    }
}

/// Adjacent bytes in one state, which begin at the end of the preceding extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub length: u64,
    /// Its state, by the rules of its context.
    pub flags: u64,
}

/// The number of extents per context that a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtentCount {
    /// One extent, which ends within the range of the request (REQ_ONE).
    One,
    /// As many as the server chooses to send.
    Many,
}

/// The name of the context whose flags are [`HOLE`] and [`ZERO`].
pub const BASE_ALLOCATION: &str = "base:allocation";
/// In [`BASE_ALLOCATION`]: the bytes are not allocated.
pub const HOLE: u64 = 1;
/// In [`BASE_ALLOCATION`]: the bytes read as zeroes.
pub const ZERO: u64 = 2;

/// Block sizes of an export in bytes. Always consistent with each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockSizes {
    min: u32,
    preferred: u32,
    max_payload: u32,
}

impl BlockSizes {
    /// The sizes that a client assumes if it has not asked: 1, 4096, and 32 MiB.
    pub const DEFAULT: Self = Self { min: 1, preferred: 4096, max_payload: 32 << 20 };

    /// Sets the minimum, of which offsets and lengths are multiples. Raises the preferred size to it.
    ///
    /// # Errors
    /// If `min` is not a power of two from 1 to 65536.
    pub const fn with_min(self, min: u32) -> Result<Self, BlockSizeError> {
        if !min.is_power_of_two() || min > 65536 {
            return Err(BlockSizeError::Min(min));
        }
        let preferred = if self.preferred < min { min } else { self.preferred };
        Self { min, ..self }.with_preferred(preferred)
    }

    /// Sets the preferred size, multiples of which are fast.
    ///
    /// # Errors
    /// If `preferred` is not a power of two, or is below 512, below the minimum, or above the longest payload.
    pub const fn with_preferred(self, preferred: u32) -> Result<Self, BlockSizeError> {
        let is_small = preferred < 512 || preferred < self.min;
        if !preferred.is_power_of_two() || is_small || preferred > self.max_payload {
            return Err(BlockSizeError::Preferred(preferred));
        }
        Ok(Self { preferred, ..self })
    }

    /// Sets the longest payload of a request or a reply. [`u32::MAX`] is no limit; a server should have one, of at
    /// least 1 MiB.
    ///
    /// # Errors
    /// If it is below the preferred size, or not a multiple of the minimum.
    pub const fn with_max_payload(self, max_payload: u32) -> Result<Self, BlockSizeError> {
        let is_multiple = max_payload.is_multiple_of(self.min) || max_payload == u32::MAX;
        if max_payload < self.preferred || !is_multiple {
            return Err(BlockSizeError::MaxPayload(max_payload));
        }
        Ok(Self { max_payload, ..self })
    }

    /// The minimum in bytes, of which offsets and lengths are multiples: a power of two from 1 to 65536.
    #[must_use]
    pub const fn min(self) -> u32 {
        self.min
    }

    /// The preferred size in bytes, multiples of which are fast: a power of two of at least 512.
    #[must_use]
    pub const fn preferred(self) -> u32 {
        self.preferred
    }

    /// The longest payload of a request or a reply, in bytes.
    #[must_use]
    pub const fn max_payload(self) -> u32 {
        self.max_payload
    }

    /// Limits payloads to `most` bytes, but not to less than the preferred size.
    pub(crate) fn bounded(self, most: u32) -> Self {
        let most = (most - most % self.min).max(self.preferred);
        Self { max_payload: self.max_payload.min(most), ..self }
    }
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A size that is inconsistent with the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSizeError {
    /// The minimum is not a power of two from 1 to 65536.
    Min(u32),
    /// The preferred size is not a power of two, or is below 512, below the minimum, or above the longest payload.
    Preferred(u32),
    /// The longest payload is below the preferred size, or not a multiple of the minimum.
    MaxPayload(u32),
}

impl fmt::Display for BlockSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Min(size) => {
                write!(f, "minimum block size {size}: a power of two from 1 to 65536 is wanted")
            }
            Self::Preferred(size) => write!(
                f,
                "preferred block size {size}: a power of two is wanted, from 512 and the minimum to the longest payload"
            ),
            Self::MaxPayload(size) => write!(
                f,
                "longest payload {size}: a multiple of the minimum block size is wanted, not below the preferred one"
            ),
        }
    }
}

impl std::error::Error for BlockSizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_do_not_go_together_are_left_out() {
        let all =
            ExportInfo { flags: TransmissionFlags::from_wire(u16::MAX), ..ExportInfo::default() };
        let absent = TransmissionFlags::SEND_RESIZE | TransmissionFlags::BLOCK_STATUS_PAYLOAD;
        assert_eq!(all.transmission_flags(true), TransmissionFlags::KNOWN.without(absent));
        let without_chunks = absent | TransmissionFlags::SEND_DF;
        assert_eq!(all.transmission_flags(false), TransmissionFlags::KNOWN.without(without_chunks));
        let fast = ExportInfo { flags: TransmissionFlags::SEND_FAST_ZERO, ..ExportInfo::default() };
        assert_eq!(fast.transmission_flags(false), TransmissionFlags::HAS_FLAGS);
    }

    #[test]
    fn sizes_that_contradict_each_other_are_refused() {
        let sizes = BlockSizes::DEFAULT;
        for min in [0, 3, 1 << 17, u32::MAX] {
            assert_eq!(sizes.with_min(min), Err(BlockSizeError::Min(min)));
        }
        for preferred in [0, 256, 1000, 1 << 26] {
            assert_eq!(sizes.with_preferred(preferred), Err(BlockSizeError::Preferred(preferred)));
        }
        assert_eq!(sizes.with_max_payload(4095), Err(BlockSizeError::MaxPayload(4095)));
        let blocks = sizes.with_min(512).unwrap();
        assert_eq!(blocks.with_max_payload(5000), Err(BlockSizeError::MaxPayload(5000)));
        assert!(BlockSizeError::Min(3).to_string().contains('3'));
    }

    #[test]
    fn the_preferred_size_follows_the_minimum() {
        let sizes = BlockSizes::DEFAULT.with_min(65536).unwrap();
        assert_eq!((sizes.min(), sizes.preferred()), (65536, 65536));
        assert_eq!(sizes.with_preferred(4096), Err(BlockSizeError::Preferred(4096)));
        let small = BlockSizes::DEFAULT.with_max_payload(8192).unwrap();
        assert_eq!(small.with_min(65536), Err(BlockSizeError::Preferred(65536)));
    }

    #[test]
    fn a_bound_leaves_a_multiple_of_the_minimum() {
        let sizes = BlockSizes::DEFAULT.with_min(4096).unwrap().with_max_payload(u32::MAX).unwrap();
        assert_eq!(sizes.bounded(10_000).max_payload(), 8192);
        assert_eq!(sizes.bounded(100).max_payload(), 4096);
        assert_eq!(BlockSizes::DEFAULT.bounded(u32::MAX), BlockSizes::DEFAULT);
    }
}
