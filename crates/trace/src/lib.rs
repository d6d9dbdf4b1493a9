//! The recordings of a queue: [blktrace's records](record), which `blkparse` and `btt` read, and
//! [elevator logs](elevator_log), which `blkmq replay` plays back. No I/O: bytes in, bytes out.
//!
//! A [`Stream`] converts the [`Trace`](blkmq_engine::Trace) of a running queue to records. An
//! [`ElevatorLog`](elevator_log::ElevatorLog) is filled by recorders beside policies ([`watched`]); it is also the
//! [`PolicyObserver`](blkmq_engine::PolicyObserver) that installs them. The laboratory has the workloads that fill
//! both, and the replay.

#![forbid(unsafe_code)]

pub mod elevator_log;
pub mod record;
pub mod watched;

pub use record::{Order, Stream};
