//! All files of tests in this folder, in one program, so that the engine's generic code is compiled and linked once.
//! `cargo test -p blkmq-uring --test all contents::` runs one file.

mod common;
mod contents;
mod owners;
mod refusals;
mod threads;
