//! Pages for authors of storage software: an engine, its sizes, and its scheduler. Their programs are compiled and run.

#[doc = include_str!("../doc/choosing.md")]
pub mod choosing {}

#[doc = include_str!("../doc/engine.md")]
pub mod engine {}

#[doc = include_str!("../doc/sizing.md")]
pub mod sizing {}
