//! The server's side of ublk: a Linux block device, `/dev/ublkbN`, whose requests a program performs.
//!
//! | module | |
//! |---|---|
//! | [`wire`] | the bytes of commands, parameters and descriptors, without I/O |
//! | [`control`] | a device: added, described, started, stopped, deleted |
//! | [`queues`] | the requests of a started device, taken from the kernel and answered |
//!
//! The kernel copies data between its pages and a buffer for each tag (ublk's copy mode). The crate has no disk, thread
//! or clock: `blkmq-server` has them. Only `queues.rs` contains `unsafe`.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

pub mod control;
pub mod queues;
pub mod wire;
