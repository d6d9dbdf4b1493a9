//! All test files in one program, so that the engine's generic code is compiled and linked only once. `cargo test -p
//! blkmq-device --test all conformance::` runs one file.

mod cloud;
mod common;
mod conformance;
mod crash;
mod disk;
mod faults;
mod flash;
mod flash_behaviour;
mod flush;
mod framework;
mod memory;
mod null_blk;
mod order;
mod stress;
mod witness;
