//! From an elevator to its devices: which thread runs an elevator or a pump, and what a device is.

pub(crate) mod device;
pub(crate) mod drive;
pub(crate) mod duties;
pub(crate) mod engine;
#[cfg(not(feature = "compare"))]
pub(crate) mod gate;
pub(crate) mod inflight;
pub(crate) mod pump;
pub(crate) mod pump_mode;
pub(crate) mod ready;
pub(crate) mod verdict;

#[cfg(feature = "compare")]
pub(crate) use crate::compare::gate;
