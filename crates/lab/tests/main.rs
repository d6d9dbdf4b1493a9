//! All test files of this folder, in one program: the engine's generic code is compiled and linked once for all of
//! them. `cargo test -p blkmq-lab --test all canary::` runs one file.

mod canary;
mod cloud;
mod elevator_log;
mod fairness;
mod goals;
mod goals_beside;
mod merging;
mod order;
mod promises;
mod replicas;
mod reservations;
mod simulation;
mod soak;
mod streams_on_disk;
mod tenants;
mod weights;
