//! Recordings of a running server, for a client of control that asked: a trace of a device in blktrace's records, or a
//! log of its scheduler's calls.
//!
//! `session.rs` decides when a recording ends, in any time; `blktrace.rs` and `elevator.rs` are the two kinds;
//! `frames.rs` is the form in which the bytes travel; `running.rs` moves them. A recording has a
//! fixed amount of memory, and its client makes no I/O wait: bytes that it does not take in time are dropped and counted.

mod blktrace;
mod elevator;
mod frames;
mod running;
mod session;

pub use frames::{RecordError, record};
pub(crate) use running::{Kind, Wanted, check, run};
pub use session::{Ended, Why};
