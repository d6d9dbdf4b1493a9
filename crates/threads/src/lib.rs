//! Devices whose requests are done by threads, one system call at a time.
//!
//! | | |
//! |---|---|
//! | `work.rs` | [`Work`], a request for a thread, and [`Source`], which makes it of the engine's request |
//! | `pool.rs`, `queue.rs` | the threads, and a hardware queue |
//! | `file` | [`FileDevice`]: a regular file, on every system that the standard library knows |
//!
//! On Linux the crate `blkmq-uring` opens files; its requests come through this crate's [`Source`] where io_uring is
//! forbidden.

mod file;
mod pool;
mod queue;
mod work;

pub use file::{FILE, FileDevice, OpenError, Options};
pub use pool::Pool;
pub use queue::ThreadQueue;
pub use work::{RETRY_DELAY, Source, Step, Work};
