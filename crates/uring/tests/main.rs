//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-uring --test all contents::` runs one file.

mod common;
mod contents;
mod owners;
mod refusals;
mod threads;
