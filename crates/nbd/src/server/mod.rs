//! The server's half: the handshake, requests as they arrive, and the bytes of replies.
//!
//! A server sends [`Handshake::greeting`], feeds a [`Handshake`] until it answers [`Next::Go`], and then takes
//! requests with [`Requests::next`], checks each against the [`Terms`](crate::Terms) of the [`Negotiated`] and writes
//! replies with [`Replies`].

mod config;
mod handshake;
mod options;
mod replies;
mod requests;
mod session;

pub use config::{Closing, Config, Listing, Negotiated, Next, Progress, Tls};
pub use handshake::Handshake;
pub use replies::{Extents, Pieces, Replies, Room};
pub use requests::{Malformed, Parsed, Requests};
