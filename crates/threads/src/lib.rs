//! Devices whose requests are done by threads, one system call at a time.
//!
//! | | |
//! |---|---|
//! | `pool.rs` | threads, and a hardware queue; [`Work`], a request for a thread, and [`Source`], the maker of work |
//! | `file` | [`FileDevice`]: a regular file, on every system that the standard library knows |
//!
//! On Linux the crate `blkmq-uring` opens files; its requests come through this crate's [`Source`] where io_uring is
//! forbidden.

mod file;
mod pool;

pub use file::{FILE, FileDevice, OpenError, Options};
pub use pool::{Pool, RETRY_DELAY, Source, Step, ThreadQueue, Work};
