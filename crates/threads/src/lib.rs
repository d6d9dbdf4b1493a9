//! Devices whose requests are done by threads, one system call at a time.
//!
//! | | |
//! |---|---|
//! | `pool.rs` | the threads; [`Work`], a request for a thread, and [`Source`], which makes it of the engine's request |
//! | `queue.rs` | a hardware queue |
//! | `file` | [`FileDevice`]: a regular file, on every system that the standard library knows |
//!
//! On Linux the crate `blkmq-uring` opens files; its requests come through this crate's [`Source`] where io_uring is
//! forbidden.

mod file;
mod pool;
mod queue;

pub use file::{FILE, FileDevice, OpenError, Options};
pub use pool::{Pool, RETRY_DELAY, Source, Step, Work};
pub use queue::ThreadQueue;
