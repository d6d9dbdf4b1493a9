//! Exports as both sides see them: their facts, their contexts, the extents that contexts report, and the directory
//! that a server answers from.

use crate::block_sizes::BlockSizes;
use crate::flags::TransmissionFlags;

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
}
