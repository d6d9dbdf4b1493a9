//! The back end's side of vhost-user-blk: a disk for a virtual machine, whose memory this process shares.
//!
//! The front end, a virtual machine monitor such as QEMU or cloud-hypervisor, connects to a socket and sends
//! [messages](message): the features that its guest has agreed on, the memory of the guest as descriptors to map, and
//! the places of the rings. The guest's driver then puts requests into the rings and never passes through the monitor.
//!
//! | module | |
//! |---|---|
//! | [`message`] | the bytes of messages, without I/O |
//! | [`socket`] | messages with descriptors over a socket |
//! | [`session`] | a connection: the order of messages, and the state that they build |
//! | [`memory`] | the memory of a guest: regions, translation, access |
//! | [`ring`] | a split ring: requests taken, answers given, notifications left out |
//! | [`inflight`] | the record of requests in flight, which survives this process |
//! | [`request`] | the requests of virtio-blk |
//! | [`config`] | the description of the disk that the guest reads |
//!
//! # A guest is hostile
//!
//! The guest can change its memory at any time. So each descriptor, index and header is read once, into memory of this
//! process, and checked there. No reference into the memory of a guest is ever made (`memory.rs`), and memory that is
//! taken away ends the connection (`guard.rs`); `unsafe` is in these two files. A ring that breaks the rules is stopped, and no other one.
//!
//! The crate knows no disk, no thread and no clock: `blkmq-server` has them.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

pub mod config;
pub mod features;
mod guard;
pub mod inflight;
pub mod memory;
pub mod message;
pub mod request;
pub mod ring;
pub mod session;
pub mod socket;
