//! Devices of other programs and hosts: the exports of NBD servers. Linux only; elsewhere this crate is empty.
//!
//! [`NbdDevice::open`] agrees with a server on an export, and [`BlockDevice::queues`](blkmq_engine::BlockDevice::queues)
//! makes a connection for each hardware queue. A connection that is lost is made anew, and the requests that it took
//! along are sent again (`doc/nbd.md` has the promises). The bytes of reads and writes go from payloads to sockets and
//! back without a copy in between; with TLS, rustls has one.
//!
//! The protocol is in `blkmq-nbd`. This crate has the sockets, and no thread and no clock: a hardware queue receives
//! the time, and names the next time at which it wants to be asked.
//!
//! # Why the memory is safe
//!
//! A payload's bytes are reached by address ([`IoBuf`](blkmq_buf::IoBuf)), in system calls that have ended before the
//! call of the engine returns. The addresses are in one type, which also keeps the request's token
//! ([`Inflight`](blkmq_engine::Inflight)) and gives the bytes away only while it has it (`src/memory.rs`): the engine
//! leaves a payload alone, and alive, until its token is back. A queue that is forgotten reaches nothing any more.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod memory;
mod nbd;

pub use nbd::device::NbdDevice;
pub use nbd::error::OpenError;
pub use nbd::options::{NBD, NBD_PAGE, Options, description};
pub use nbd::queue::NbdQueue;
pub use nbd::target::Outages;
pub use nbd::uri::{Server, Uri, UriError};
