//! The client's half: the handshake, the bytes of requests, and replies as they arrive.
//!
//! A client feeds a [`Handshake`] with the bytes of the server until it answers [`Next::Go`]. It then writes requests
//! with [`Requests`], keeps a [`Pending`] for each, and takes replies with [`Replies::next`].

mod broken;
mod handshake;
mod plan;
mod replies;
mod requests;
mod session;

pub use broken::{BrokenHandshake, BrokenReply, Refused};
pub use handshake::Handshake;
pub use plan::{Agreed, Details, Goal, Next, Plan, Progress, Tls};
pub use replies::{Content, Extents, Parsed, Replies, Reply};
pub use requests::{InFlight, Pending, Requests};
