//! Exports of NBD servers.
//!
//! | file | |
//! |---|---|
//! | `uri.rs`, `options.rs` | the description of a device |
//! | `socket.rs`, `stream.rs`, `tls.rs` | sockets that never block |
//! | `greeting.rs` | from a connected socket to an agreement on the export |
//! | `target.rs`, `device.rs`, `shape.rs` | the agreement, and the part of it that the engine must know |
//! | `link.rs` | a connection, its loss and the next one |
//! | `holes.rs` | the stored ranges, over a connection of its own |
//! | `place.rs`, `transfer.rs` | requests in flight, those that their server does not survive, and their bytes out and in |
//! | `queue.rs` | one hardware queue out of these |

pub(crate) mod device;
pub(crate) mod error;
mod greeting;
mod holes;
mod link;
pub(crate) mod options;
mod place;
pub(crate) mod queue;
mod shape;
mod socket;
mod stream;
pub(crate) mod target;
#[cfg(feature = "tls")]
mod tls;
mod transfer;
pub(crate) mod uri;
