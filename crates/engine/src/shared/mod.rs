//! The words and tables that the threads of a queue share. The code that acts on them is in the other folders.

pub(crate) mod common;
pub(crate) mod few;
pub(crate) mod hctx;
pub(crate) mod hub;
pub(crate) mod lasting;
pub(crate) mod lines;
pub(crate) mod prospect;
pub(crate) mod shard;
pub(crate) mod slots;
pub(crate) mod stats;
pub(crate) mod tags;
pub(crate) mod write_cache;
