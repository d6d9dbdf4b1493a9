//! Devices of a Ceph cluster: images of RBD, through librbd. Linux only; elsewhere this crate is empty.
//!
//! [`RbdDevice::open`] looks at an image, and [`BlockDevice::queues`](blkmq_engine::BlockDevice::queues) opens it for
//! one or several hardware queues. Librbd is loaded when the first image is opened; on a machine without it programs
//! start, and opening says which package is missing.
//!
//! The crate has no thread and no clock of its own; librados has both. `doc/rbd.md` has the parameters and the promises.
//!
//! # Why the memory is safe
//!
//! Librbd reads and writes payloads from threads of its own, until it has answered. A request's token
//! ([`Inflight`](blkmq_engine::Inflight)) stays in its place until then, and the engine leaves the payloads behind a
//! token alone, and alive. A queue that goes away waits for librbd; where the cluster does not answer, the memory is
//! kept for ever (`src/sys/flight.rs`).

#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod device;
mod error;
mod options;
mod queue;
mod replies;
mod sys;
#[cfg(test)]
mod tests;

pub use device::RbdDevice;
pub use error::OpenError;
pub use options::{Cache, ImageSpec, Options, RBD, RBD_PAGE};
pub use queue::{ImageState, RbdQueue};
