//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-runtime --test all clients::` runs one file.

mod clients;
mod common;
mod control;
mod ends;
mod event_fd;
mod on_runtime;
mod reactor;
