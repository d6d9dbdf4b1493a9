//! librbd and librados, and the memory that they reach. The only `unsafe` code of the crate.
//!
//! | file | |
//! |---|---|
//! | `api.rs` | the functions, as a table from the library of the machine |
//! | `image.rs` | a connection to a cluster with one open image: its properties, and its end |
//! | `flight.rs` | the requests that librbd has, with the addresses that it was given |
//! | `fake.rs` | for tests: a librbd over memory that fails and stalls on command |
//!
//! Safety rests on two invariants:
//!
//! 1. *A handle is used only between the call that made it and the call that ends it.* Each handle has one owner, which
//!    ends it when dropped, after the handles derived from it.
//! 2. *Librbd has an address only while it is valid.* A place whose ticket librbd has keeps its request's token, and
//!    its list of pieces unchanged; the engine keeps the payloads of a token alive and does not touch them. A queue
//!    that ends waits for librbd; if librbd does not answer, place, token and image are leaked (`flight.rs`).

#![allow(unsafe_code)]

mod api;
#[cfg(test)]
pub(crate) mod fake;
mod flight;
mod image;
pub(crate) use api::Api;
pub(crate) use flight::Flight;
pub(crate) use image::{Facts, Image, Reply, wait};
