//! Exports of NBD servers.
//!
//! | file | |
//! |---|---|
//! | `uri.rs`, `options.rs` | the description of a device |
//! | `socket.rs`, `stream.rs`, `tls.rs` | sockets that never block |
//! | `greeting.rs` | the handshake on a connected socket |
//! | `target.rs`, `device.rs`, `shape.rs` | the agreed export, and its properties that the engine needs |
//! | `link.rs` | a connection, and its re-establishment |
//! | `holes.rs` | the stored ranges, queried over a separate connection |
//! | `place.rs`, `transfer.rs` | requests in flight, poisonous requests, and the transfer of bytes |
//! | `queue.rs` | a hardware queue |

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
