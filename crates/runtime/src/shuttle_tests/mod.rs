//! Models of the loops that wait, under random schedules: real clients, reactors and pump threads of a real service,
//! with a [disk](disk) and a clock of the model (`crate::port::model`).
//!
//! The engine's own models (`engine/src/shuttle_tests`) call a submitter as a program might; here the callers are the
//! loops of this crate, with the system calls by which they sleep behind the port. A lost wake-up is a deadlock, or a
//! time-out that no load needs.
//!
//! Each file is a family of models. It has twins with a bug planted in this crate ([`planted`](crate::planted)) or in
//! the disk, which the same models must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod disk;
mod model;
mod outside;
mod owners;
mod reactor;
mod shared;
