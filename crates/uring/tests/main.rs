//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-uring --test all contents::` runs one file.

mod common;
mod contents;
mod forbidden;
mod forgetful;
mod joined;
mod locking;
mod loop_device;
mod on_runtime;
mod owners;
mod refusals;
mod threads;
