//! Recordings of a running server, requested by a control client: a trace of a device as blktrace's records, or a log
//! of its scheduler's calls.
//!
//! `session.rs` decides when a recording ends, in any time; `blktrace.rs` and `elevator.rs` are the two kinds;
//! `frames.rs` has the format of the bytes on the socket; `running.rs` transfers them. A recording has a fixed amount
//! of memory, and its client delays no I/O: bytes that it does not take in time are dropped and counted.

mod blktrace;
mod elevator;
mod frames;
mod running;
mod session;

pub use frames::{RecordError, record};
pub(crate) use running::{Kind, Wanted, check, run};
pub use session::{Ended, Why};
