//! All test files of this folder, in one program: the engine's generic code is compiled and linked once for all of
//! them. `cargo test -p blkmq-lab --test all soak::` runs one file.

mod cloud;
mod elevator_log;
mod fairness;
mod goals;
mod goals_beside;
mod merging;
mod promises;
mod replicas;
mod reservations;
mod simulation;
mod soak;
mod weights;
