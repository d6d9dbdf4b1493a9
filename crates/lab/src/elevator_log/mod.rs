//! Elevator logs: every call of a policy and every answer, with times.
//!
//! The answers of a policy depend on the calls alone, so a log can be played back: to the same policy, which must give
//! every answer again ([`replay`]), or as a workload to another policy ([`rerun`]). [`summary`] reports the fate of a
//! log's requests in figures, so that the two can be compared.
//!
//! An [`ElevatorLog`] is filled through [`Observation`](crate::observe::Observation), in real or in virtual time;
//! [`ElevatorLog::bytes`] encodes it, and [`Log`] decodes the bytes. `blkmq-trace` has the format and the recorder,
//! which servers use, too.

mod replay;
mod rerun;
mod summary;

pub use blkmq_trace::elevator_log::{Call, ElevatorLog, Entry, Heard, Instance, Log, LogError};
pub use replay::{Difference, ReplayError, Replayed, replay};
pub use rerun::{RerunError, Workload, rerun};
pub use summary::{Summary, Waits, summary};
