//! The server's half: the handshake, requests as they arrive, and the bytes of replies.
//!
//! A server sends [`Handshake::greeting`], feeds a [`Handshake`] until it answers [`Next::Go`], and then takes
//! requests with [`Requests::next`], checks each against the [`Terms`](crate::Terms) of the [`Negotiated`] and writes
//! replies with [`Replies`].

mod answers;
mod config;
mod contexts;
mod extents;
mod handshake;
mod negotiated;
mod options;
mod pieces;
mod replies;
mod requests;
mod session;

pub use config::{Config, Listing, Tls};
pub use extents::{Extents, Room};
pub use handshake::Handshake;
pub use negotiated::{Closing, Negotiated, Next, Progress};
pub use pieces::Pieces;
pub use replies::Replies;
pub use requests::{Malformed, Parsed, Requests};
