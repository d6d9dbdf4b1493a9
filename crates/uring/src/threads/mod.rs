//! The other way to a file: a pool of threads that read and write, for places where io_uring is forbidden.
//!
//! `pool.rs` has the threads and the way back from them, `queue.rs` a hardware queue.

mod pool;
mod queue;

pub(crate) use pool::Pool;
pub(crate) use queue::ThreadQueue;
