//! The NBD protocol without I/O: bytes in, bytes out, for both sides of a connection.
//!
//! [`server`] is the server's half, [`client`] the client's. Each has a handshake, which is fed with the bytes of the
//! other side until both agree on an export and on the form of headers ([`HeaderStyle`]), a parser and a writer. The
//! caller owns sockets, buffers, threads and time, and reads payloads straight to their destination; a request or a
//! reply without a payload allocates nothing. Every number that a peer can make large has a bound in [`Limits`].
//!
//! Both halves in memory: a handshake, and a read.
//!
//! ```
//! use blkmq_nbd::client::{self, Content, Goal, Pending, Plan};
//! use blkmq_nbd::server::{self, Config, Parsed, Replies, Requests};
//! use blkmq_nbd::{Checked, Command, CommandFlags, Cookie, ExportInfo, Exports, Limits, Request, Span};
//! use std::collections::BTreeMap;
//!
//! /// A server with one export of 8 bytes, whatever its name.
//! struct One;
//!
//! impl Exports for One {
//!     fn find(&self, _: &str) -> Option<ExportInfo> {
//!         Some(ExportInfo { size: 8, ..ExportInfo::default() })
//!     }
//!
//!     fn list(&self, each: &mut dyn FnMut(&str, &str)) {
//!         each("one", "8 bytes");
//!     }
//! }
//!
//! // The two buffers stand for a socket.
//! let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
//! let mut client = client::Handshake::new(Plan::new(Goal::Go("one".into())));
//! let mut server = server::Handshake::new(Config::default());
//! server.greeting(&mut to_client);
//! let terms = loop {
//!     let consumed = client.feed(&to_client, &mut to_server).consumed;
//!     to_client.drain(..consumed);
//!     let progress = server.feed(&to_server, &One, &mut to_client);
//!     to_server.drain(..progress.consumed);
//!     if let server::Next::Go(negotiated) = progress.next {
//!         break negotiated.terms;
//!     }
//! };
//! let client::Next::Go(agreed) = client.feed(&to_client, &mut to_server).next else { unreachable!() };
//! assert_eq!(agreed.terms(), terms);
//!
//! // The client asks for 3 bytes ...
//! let span = Span { offset: 2, length: 3 };
//! let read = Request { command: Ok(Command::Read), flags: CommandFlags::NONE, cookie: Cookie(7), span };
//! let sent = client::Requests::new(terms.style).header(&read).expect("64 bits are not needed");
//! let mut in_flight: BTreeMap<_, _> = Pending::of(&read).map(|it| (read.cookie, it)).into_iter().collect();
//!
//! // ... the server answers ...
//! let Parsed::Request { request, .. } = Requests::new(terms.style, &Limits::default()).next(&sent) else {
//!     unreachable!()
//! };
//! assert_eq!(terms.check(&request), Ok(Checked::Read { span, in_one_piece: false }));
//! let header = Replies::new(terms.style).read(request.reply_to(), 3);
//! let answer = [&header, &b"abc"[..]].concat();
//!
//! // ... and the client finds its bytes.
//! let replies = client::Replies::new(terms.style, &Limits::default());
//! let client::Parsed::Reply(reply) = replies.next(&answer, &mut in_flight) else { unreachable!() };
//! assert_eq!((reply.content, reply.is_last), (Content::Data(span), true));
//! assert_eq!(answer[reply.header_len..], *b"abc");
//! ```
//!
//! `docs/spec/nbd.md` describes the protocol, the habits of the clients in use and the bounds. This crate supports
//! simple and structured replies, extended headers, metadata contexts, and STARTTLS; the TLS itself is the caller's. It
//! leaves out the old handshake, TLS for some exports only, BLOCK_STATUS with a payload, and RESIZE.

#![forbid(unsafe_code)]

pub mod client;
mod request;
pub mod server;
mod wire;

pub use request::{
    BASE_ALLOCATION, BlockSizeError, BlockSizes, Checked, Context, Cookie, ExportInfo, Exports,
    Extent, ExtentCount, HOLE, Listed, ReplyTo, Request, Span, Terms, ZERO,
};
pub use wire::{
    ChunkFlags, ChunkType, ClientFlags, Command, CommandFlags, ErrorCode, HandshakeFlags, Header,
    HeaderStyle, InfoType, Limits, OptionCode, OptionError, ReplyCode, TransmissionFlags,
};

/// The numbers by which messages are recognised, and the lengths of their fixed parts (`docs/spec/nbd.md`, section 2).
pub mod magic {
    /// The first 8 bytes from a server: `NBDMAGIC`.
    pub const GREETING: u64 = 0x4e42_444d_4147_4943;
    /// The next 8 bytes from a server, and the first of every option: `IHAVEOPT`.
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    /// Replaces [`OPTION`] on a server that speaks the old handshake, which has no options. Clients here refuse it.
    pub const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
    /// The beginning of every reply to an option.
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// The beginning of a compact request.
    pub const REQUEST: u32 = 0x2560_9513;
    /// The beginning of an extended request.
    pub const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
    /// The beginning of a simple reply.
    pub const SIMPLE_REPLY: u32 = 0x6744_6698;
    /// The beginning of a chunk of a structured reply.
    pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
    /// The beginning of a chunk of an extended reply.
    pub const EXTENDED_REPLY: u32 = 0x6e8a_278c;

    /// Bytes of a server's greeting.
    pub const GREETING_LEN: usize = 18;
    /// Bytes of an option in front of its data.
    pub const OPTION_LEN: usize = 16;
    /// Bytes of a reply to an option in front of its data.
    pub const OPTION_REPLY_LEN: usize = 20;
    /// Zero bytes behind the answer to EXPORT_NAME, unless both sides agreed to leave them out.
    pub const EXPORT_NAME_ZEROES: usize = 124;
    /// Bytes of a compact request.
    pub const REQUEST_LEN: usize = 28;
    /// Bytes of an extended request.
    pub const EXTENDED_REQUEST_LEN: usize = 32;
    /// Bytes of a simple reply in front of its data.
    pub const SIMPLE_REPLY_LEN: usize = 16;
    /// Bytes of a chunk of a structured reply in front of its payload.
    pub const STRUCTURED_REPLY_LEN: usize = 20;
    /// Bytes of a chunk of an extended reply in front of its payload.
    pub const EXTENDED_REPLY_LEN: usize = 32;

    /// The TCP port of NBD.
    pub const PORT: u16 = 10809;
    /// The longest name, query or error text in bytes.
    pub const STRING: u32 = 4096;
}
