//! Devices of a Ceph cluster: images of RBD, through librbd. Linux only; elsewhere this crate is empty.
//!
//! [`RbdDevice::open`] reads the properties of an image, and [`BlockDevice::queues`](blkmq_engine::BlockDevice::queues)
//! opens it for one or several hardware queues. Librbd is loaded when the first image is opened: programs start without
//! it, and the error of opening names the missing package.
//!
//! The crate has no thread or clock; librados has both. `doc/rbd.md` describes the parameters and the guarantees.
//!
//! # Why the memory is safe
//!
//! Threads of librbd read and write payloads until librbd has answered. Until then a request's token
//! ([`Inflight`](blkmq_engine::Inflight)) stays in its place, and the engine keeps the payloads of that token alive and
//! does not touch them. A queue that ends waits for librbd; if the cluster does not answer, the memory is leaked
//! (`src/sys/mod.rs`).

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod device;
mod options;
mod queue;
mod sys;

pub use device::RbdDevice;
pub use options::{Cache, ImageSpec, OpenError, Options, RBD, RBD_PAGE};
pub use queue::{ImageState, RbdQueue};
