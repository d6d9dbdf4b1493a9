//! All test files in one program, so that the engine's generic code is compiled and linked only once. `cargo test -p
//! blkmq-device --test all conformance::` runs one file.

mod common;
mod conformance;
mod crash;
mod faults;
mod flash_behaviour;
mod framework;
mod null_blk;
mod published;
mod stress;
