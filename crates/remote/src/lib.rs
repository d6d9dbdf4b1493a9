//! Block devices served by other programs and hosts: exports of NBD servers. Linux only; elsewhere this crate is empty.
//!
//! [`NbdDevice::open`] negotiates an export with a server, and
//! [`BlockDevice::queues`](blkmq_engine::BlockDevice::queues) makes a connection for each hardware queue. A lost
//! connection is re-established, and its unanswered requests are sent again (`doc/nbd.md` has the guarantees). Data
//! moves between payloads and sockets without an intermediate copy, except in rustls if TLS is used.
//!
//! The protocol is in `blkmq-nbd`. This crate has the sockets, but no thread and no clock: a hardware queue is given
//! the time, and returns the time of its next event.
//!
//! # Why the memory is safe
//!
//! The bytes of a payload are accessed by address ([`IoBuf`](blkmq_buf::IoBuf)), in system calls that end before the
//! call of the engine returns. One type holds the addresses together with the request's token
//! ([`Inflight`](blkmq_engine::Inflight)), and lends the bytes only while it has the token (`src/memory.rs`): the
//! engine keeps a payload alive, and does not touch it, until its token is back. A leaked queue accesses nothing.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod device;
mod link;
mod memory;
mod options;
mod place;
mod stream;
mod target;

pub use device::{NbdDevice, NbdQueue};
pub use options::{NBD, NBD_PAGE, OpenError, Options, Server, Uri, UriError, description};
pub use target::Outages;
