//! Exports of NBD servers.
//!
//! | file | |
//! |---|---|
//! | `uri.rs`, `options.rs`, `kind.rs` | the description of a device |
//! | `address.rs`, `socket.rs`, `stream.rs`, `tls.rs` | sockets that never block |
//! | `greeting.rs` | from a connected socket to an agreement on the export |
//! | `target.rs`, `device.rs`, `shape.rs` | the agreement, and the part of it that the engine must know |
//! | `link.rs`, `outages.rs` | a connection, its loss and the next one |
//! | `holes.rs` | the stored ranges, over a connection of its own |
//! | `place.rs`, `send.rs`, `receive.rs` | requests in flight, their bytes out and in |
//! | `suspicion.rs` | requests that their server does not survive |
//! | `queue.rs` | one hardware queue out of these |

mod address;
pub(crate) mod device;
pub(crate) mod error;
mod greeting;
mod holes;
pub(crate) mod kind;
mod link;
pub(crate) mod options;
pub(crate) mod outages;
mod place;
pub(crate) mod queue;
mod receive;
mod send;
mod shape;
mod socket;
mod stream;
mod suspicion;
mod target;
#[cfg(feature = "tls")]
mod tls;
pub(crate) mod uri;
