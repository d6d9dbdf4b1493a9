//! Files and block devices behind a queue, through io_uring, or by threads where io_uring is forbidden. Linux only: on
//! other systems this crate is empty.
//!
//! [`UringDevice::open`] determines the type and the limits of a file, and [`UringDevice::queues`] makes a ring for
//! each hardware queue, or threads for all of them. Payloads give the address of their bytes ([`IoBuf`]). An
//! [`AlignedBuf`] is a payload that direct I/O accepts, and a [`BufferPool`] has many of them in memory that the kernel
//! maps only once. The device's page (`doc/uring.md`) has its costs, its parameters and its limitations.
//!
//! ```
//! use blkmq_buf::AlignedBuf;
//! use blkmq_core::Bytes;
//! use blkmq_engine::{BlockDevice, Io};
//! use blkmq_runtime::Service;
//! use blkmq_uring::UringDevice;
//! # let path = std::env::temp_dir().join(format!("blkmq-uring-doc-{}", std::process::id()));
//! # std::fs::write(&path, vec![7; 1 << 20])?;
//! # if UringDevice::parse(&path.to_string_lossy()).is_err_and(|e| e.is_unavailable()) {
//! #     return Ok(std::fs::remove_file(&path)?);
//! # }
//!
//! // Read only, past the page cache; `path` is a file or a block device.
//! let device = UringDevice::parse(&format!("{},readonly=1", path.display()))?;
//! let service = Service::start(device.config()?)?;
//! let mut disk = service.blocking()?;
//! let (result, mut bytes) = disk.call(Io::read(Bytes(8192), AlignedBuf::new(4096)))?;
//! result?;
//! assert_eq!(bytes.as_mut_slice(), [7; 4096]);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why the memory is safe
//!
//! The kernel writes to a buffer after the call that passed it has returned. The argument rests on this crate, on the
//! engine and on implementations of the unsafe trait [`IoBuf`]. Safe code has to keep no promise:
//!
//! 1. *The buffer exists and does not move.* A payload belongs to its I/O from submission until its completion is
//!    taken, in a cell of the engine's table ([`BioTable`]). [`IoBuf`] promises that in this time its bytes do not move
//!    and that only the device reaches them. The cell opens only to the holder of the request's token. The token cannot
//!    be shared between threads, and here it is in a place of the queue.
//! 2. *No token leaves early.* A request's [`Inflight`] leaves its place only after the kernel has reported, in the
//!    completion ring, that it is done with the request, or while the kernel does not have it (between two tries).
//!    [`abandon`] and dropping a queue first wait until the kernel has released all requests, whatever the state of the
//!    queue.
//! 3. *The engine frees no payload whose token has not been returned.* When a queue ends, the engine asks for the
//!    requests that are still held ([`abandon`]), and looks for the token of every payload that remains. A payload
//!    without its token is leaked and counted ([`blkmq_engine::leaked_bios`]).
//!
//! With threads in place of a ring, a request contains its token while the pool has it, and returns with it. The same
//! conclusions hold.
//!
//! So a device may wrap one of these, keep tokens, ignore `abandon`, or forget the queue (`std::mem::forget`,
//! `ManuallyDrop`): the ring, its places and the payloads then stay for the life of the process. That costs memory, not
//! soundness. A registered pool outlives the ring, because the ring holds a share in it. Its buffers count their
//! ranges, so a leaked buffer is never given out again.
//!
//! A process that forks does not share its rings with the child (`MADV_DONTFORK`): a child that uses or drops a queue
//! of its parent is killed by SIGSEGV and reaches no memory of either process.
//!
//! [`IoBuf`]: blkmq_buf::IoBuf
//! [`AlignedBuf`]: blkmq_buf::AlignedBuf
//! [`BufferPool`]: blkmq_buf::BufferPool
//! [`BioTable`]: blkmq_engine::BioTable
//! [`Inflight`]: blkmq_engine::Inflight
//! [`DeviceQueue`]: blkmq_engine::DeviceQueue
//! [`abandon`]: blkmq_engine::DeviceQueue::abandon

#![cfg(target_os = "linux")]

mod berth;
mod contents;
mod device;
mod error;
mod lock;
mod options;
mod parts;
mod present;
mod queue;
mod request;
mod ring;
mod sys;
mod target;

pub use device::UringDevice;
pub use error::OpenError;
pub use lock::{Conflict, Permission};
pub use options::{Options, ParamError, THREADS, THREADS_PAGE, URING, URING_PAGE};
pub use present::FileState;
pub use queue::UringQueue;
