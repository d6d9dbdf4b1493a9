//! The words and tables that the threads of a queue share. The code that acts on them is in the other folders.

pub(crate) mod board;
pub(crate) mod common;
pub(crate) mod completions;
pub(crate) mod duties;
pub(crate) mod follow;
pub(crate) mod hctx;
pub(crate) mod hub;
pub(crate) mod inflight;
#[cfg(feature = "compare")]
pub(crate) mod modes;
#[cfg(feature = "compare")]
pub(crate) mod parking;
pub(crate) mod seats;
pub(crate) mod settings;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod tags;
