//! Elevator logs: every call of a policy and every answer, with times.
//!
//! An [`ElevatorLog`] is filled beside policies, in real or in virtual time; it becomes bytes
//! ([`ElevatorLog::bytes`]), and the bytes a [`Log`] again. The format is in `wire.rs`.

mod recorder;
mod wire;

pub use crate::spied::Heard;
pub use recorder::ElevatorLog;
pub use wire::{Call, Entry, Instance, Log, LogError};
