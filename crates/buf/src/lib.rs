//! The buffers of I/Os: memory that every device reads and writes, aligned for direct I/O.
//!
//! [`AlignedBuf`] is the buffer to use unless a program has its own: page-aligned bytes that can be written from and
//! read into on every device. A [`BufferPool`] hands out many of them without allocating, and a device that maps memory
//! in advance can register it. A [`BufList`] is several buffers as one payload. A [`SharedBuf`] is a buffer after its
//! I/O, as bytes for many readers. [`IoBuf`] is the promise of payloads that the kernel or hardware reaches by address;
//! it is the only unsafe trait of the project.
//!
//! ```
//! use blkmq_buf::{AlignedBuf, BufferPool};
//!
//! let mut buf = AlignedBuf::copy_of(b"hello");
//! assert_eq!(buf.as_mut_slice(), b"hello");
//!
//! // 64 buffers of 16 KiB in one allocation; each goes back when it is dropped.
//! let pool = BufferPool::new(64, 16 << 10);
//! let buf = pool.take().expect("all are free");
//! assert_eq!((buf.len(), pool.free()), (16 << 10, 63));
//! ```
//!
//! This crate does no I/O and knows no device.

mod aligned;
mod list;
mod pool;

pub use aligned::{AlignedBuf, IoBuf, PAGE, SharedBuf};
pub use list::{BufList, TooManyBufs};
pub use pool::BufferPool;
