//! The client's half: the handshake, the bytes of requests, and replies as they arrive.
//!
//! A client feeds a [`Handshake`] with the bytes of the server until it answers [`Next::Go`]. It then writes requests
//! with [`Requests`], keeps a [`Pending`] for each, and takes replies with [`Replies::next`].

mod answers;
mod broken;
mod extents;
mod handshake;
mod pending;
mod plan;
mod replies;
mod requests;
mod session;

pub use broken::{BrokenHandshake, BrokenReply, Refused};
pub use extents::Extents;
pub use handshake::Handshake;
pub use pending::{InFlight, Pending};
pub use plan::{Agreed, Details, Goal, Next, Plan, Progress, Tls};
pub use replies::{Content, Parsed, Replies, Reply};
pub use requests::Requests;
