//! The request of a plug: what travels from a submitter to its elevator.

use crate::shared::slots::Bio;
use blkmq_core::IoMeta;

/// The content of a plug or a staging ring: a request without a slot, of one bio or several that merged in a plug. It
/// has a cache line of its own, since staging moves it from one core to another.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PluggedRequest {
    pub(crate) meta: IoMeta,
    pub(crate) bio: Bio,
    pub(crate) bios: u32,
}
