//! Models of the loops that wait, under random schedules: real clients, reactors and pump threads of a real service,
//! with a modelled [disk](disk) and a modelled clock (`crate::port::model`).
//!
//! The engine's own models (`engine/src/shuttle_tests`) call a submitter as a program might. Here the callers are the
//! loops of this crate, and the system calls by which they sleep are behind the port. A lost wake-up shows as a
//! deadlock, or as a time-out that the load does not need.
//!
//! Each file is a family of models. Its twins plant a bug in this crate ([`planted`](crate::planted)) or in the disk,
//! which the same models must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod disk;
mod model;
mod outside;
mod owners;
mod reactor;
mod shared;
