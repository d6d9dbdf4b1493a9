//! Elevator logs: every call of a policy and every answer, with times.
//!
//! An [`ElevatorLog`] is filled by observers beside policies, in real or in virtual time. [`ElevatorLog::bytes`]
//! encodes it, and [`Log`] decodes it. The format is in `wire.rs`.

mod recorder;
mod wire;

pub use crate::spied::Heard;
pub use recorder::ElevatorLog;
pub use wire::{Call, Entry, Instance, Log, LogError};
