//! librbd and librados, and the memory that they reach. The only `unsafe` code of the crate.
//!
//! | file | |
//! |---|---|
//! | `api.rs` | the functions, as a table from the library of the machine |
//! | `image.rs` | a connection to a cluster with one open image: its properties, and its end |
//! | `flight.rs` | the requests that librbd has, with the addresses that it was given |
//! | `fake.rs` | for tests: a librbd over memory that fails and stalls on command |
//!
//! Two invariants carry all of it:
//!
//! 1. *A handle is used only between the call that made it and the call that ends it.* Each handle has one owner, which
//!    ends it when it is dropped, after those that came out of it.
//! 2. *Librbd knows an address only while it is good.* A place whose number librbd has keeps its request's token, and
//!    its list of pieces as it is; the engine leaves the payloads behind a token alone and alive. A queue that goes away
//!    waits for librbd, and where librbd does not answer, place, token and image are kept for ever (`flight.rs`).

#![allow(unsafe_code)]

mod api;
#[cfg(test)]
pub(crate) mod fake;
mod flight;
mod image;
pub(crate) use api::Api;
pub(crate) use flight::Flight;
pub(crate) use image::{Facts, Image, Reply, wait};
