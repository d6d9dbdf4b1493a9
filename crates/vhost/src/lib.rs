//! The back end's side of vhost-user-blk: a disk for a virtual machine, which shares its memory with this process.
//!
//! The front end, a virtual machine monitor such as QEMU or cloud-hypervisor, connects to a socket and sends
//! [messages](message): the negotiated features, the guest's memory as file descriptors, and the addresses of the
//! rings. After that the guest's driver puts requests into the rings without involving the monitor.
//!
//! | module | |
//! |---|---|
//! | [`message`] | the bytes of messages, and messages with descriptors over a socket |
//! | [`session`] | a connection: the order of messages, and the state that they build |
//! | [`memory`] | the memory of a guest: regions, translation, access |
//! | [`ring`] | a split ring: requests, answers, and the suppression of notifications |
//! | [`inflight`] | the record of requests in flight, which survives this process |
//! | [`request`] | the requests of virtio-blk |
//! | [`config`] | the description of the disk that the guest reads, and feature bits |
//!
//! # A guest is hostile
//!
//! The guest can change its memory at any time. So each descriptor, index and header is read once, into memory of this
//! process, and checked there. References into guest memory are never made, and removal of memory ends the connection
//! (`memory.rs`, the only file with `unsafe`). A ring that breaks the rules is stopped, without affecting the others.
//!
//! The crate has no disk, thread or clock: `blkmq-server` has them.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

pub mod config;
pub mod inflight;
pub mod memory;
pub mod message;
pub mod ring;
pub mod session;

pub use config::request;
