//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-runtime --test all blocking::` runs one file.

mod blocking;
mod bounded;
mod callbacks;
mod common;
mod control;
mod dividing;
mod ends;
mod event_fd;
mod futures;
mod groups;
mod moved;
mod on_runtime;
mod outside;
mod permits;
mod poisoned;
