//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq --test all client::` runs one file.

mod client;
mod devices;
mod examples;
mod integrity;
mod nbd_server;
mod on_runtime;
mod reachable;
