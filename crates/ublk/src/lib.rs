//! The server's side of ublk: a block device of Linux, `/dev/ublkbN`, whose requests a program carries out.
//!
//! | module | |
//! |---|---|
//! | [`wire`] | the bytes of commands, parameters and descriptors, without I/O |
//! | [`control`] | a device: added, described, started, stopped, deleted |
//! | [`queues`] | the requests of a started device, taken from the kernel and answered |
//!
//! Data is copied by the kernel between its pages and a buffer of each tag (the copy mode of ublk). The crate knows no disk,
//! no thread and no clock: `blkmq-server` has them. `unsafe` is in `queues/kernel.rs` alone.

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

pub mod control;
pub mod queues;
pub mod wire;
