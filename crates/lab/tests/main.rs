//! All test files of this folder, in one program: the engine's generic code is compiled and linked once for all of
//! them. `cargo test -p blkmq-lab --test all soak::` runs one file.

mod floors;
mod goals;
mod merging;
mod promises;
mod replicas;
mod simulation;
mod soak;
mod weights;
