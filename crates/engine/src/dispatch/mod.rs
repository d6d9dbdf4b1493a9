//! From an elevator to its devices: which thread runs an elevator or a pump, and the port that a device implements.

#[cfg(feature = "compare")]
pub(crate) mod compare;
pub(crate) mod device;
pub(crate) mod drive;
pub(crate) mod engine;
pub(crate) mod expiry;
#[cfg(not(feature = "compare"))]
pub(crate) mod gate;
pub(crate) mod pump;
pub(crate) mod visit;

#[cfg(feature = "compare")]
pub(crate) use compare::gate;
