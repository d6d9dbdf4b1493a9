//! The bounds of groups.

/// The most groups that a tree may have, without the root.
pub const MAX_GROUPS: u16 = 1023;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 1000;
/// The most characters in a name.
pub(super) const MAX_NAME: usize = 64;
