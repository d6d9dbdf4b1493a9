//! Elevator logs: everything that a policy was told and what it answered, with times.
//!
//! A policy decides by what it is told and nothing else, so a log can be played back: to the same policy, which must
//! give every answer again ([`replay`]), or as a workload to another one ([`rerun`]). [`summary`] says in figures what
//! became of the requests of a log, so that both can be compared.
//!
//! An [`ElevatorLog`] is filled through [`Observation`](crate::observe::Observation), in real or in virtual time; it
//! becomes bytes ([`ElevatorLog::bytes`]), and they a [`Log`] again. The format is in `wire.rs`.

mod outside;
mod recorder;
mod replay;
mod rerun;
mod summary;
mod wire;

pub use crate::observe::outside::Heard;
pub use recorder::ElevatorLog;
pub use replay::{Difference, ReplayError, Replayed, replay};
pub use rerun::{RerunError, Workload, rerun};
pub use summary::{Summary, Waits, summary};
pub use wire::{Call, Entry, Instance, Log, LogError};
