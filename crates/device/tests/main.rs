//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-device --test all conformance::` runs one file.

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
