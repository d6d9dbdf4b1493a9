//! Files and block devices behind a queue, through io_uring. Linux only; elsewhere this crate is empty.
//!
//! [`UringDevice::open`] finds out what a file is and can do, and [`UringDevice::queues`] makes a ring for each
//! hardware queue. Payloads say where their bytes are ([`IoBuf`]); [`AlignedBuf`] is one that direct I/O
//! accepts, and a [`BufferPool`] has many of them in memory that the kernel has mapped once and for all.
//! What it charges for, its parameters and what it cannot do are on its page (`doc/uring.md`).
//!
//! # Why the memory is safe
//!
//! The kernel writes to a buffer after the call that passed it has returned, so three things must hold:
//!
//! 1. *The buffer is there, and stays where it is.* A payload belongs to its I/O from submission until its
//!    completion is taken, in a cell of the engine's table ([`BioTable`]); what [`IoBuf`] promises is that its
//!    bytes do not move meanwhile, and nobody looks at them.
//! 2. *No token is given back early.* A request's [`Inflight`] leaves this crate only after the kernel has
//!    said, in the completion ring, that it is done with it; and the engine completes nothing without it.
//! 3. *Nothing is freed on the way out.* The engine asks for what is still held ([`abandon`]) before it frees
//!    its table, and that waits for the kernel. So does dropping a queue, in whatever state it is.
//!
//! A device that wraps one of these and forgets it (`std::mem::forget`), or keeps tokens for itself, breaks the
//! contract of [`DeviceQueue`], and with it the second or third of these.
//!
//! [`BioTable`]: blkmq_engine::BioTable
//! [`Inflight`]: blkmq_engine::Inflight
//! [`DeviceQueue`]: blkmq_engine::DeviceQueue
//! [`abandon`]: blkmq_engine::DeviceQueue::abandon

#![cfg(target_os = "linux")]

mod buf;
mod device;
mod error;
mod factory;
mod layout;
mod options;
mod param;
mod pool;
mod queue;
mod request;
mod ring;
mod sysfs;
mod target;

pub use buf::{AlignedBuf, IoBuf, PAGE};
pub use device::{Queues, UringDevice};
pub use error::OpenError;
pub use factory::{FACTORY, Open, UringFactory};
pub use options::Options;
pub use param::ParamError;

pub use pool::BufferPool;
pub use queue::UringQueue;
