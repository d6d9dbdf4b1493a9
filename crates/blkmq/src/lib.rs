//! The multi-queue block layer for user space: put a scheduler, tags, budgets and merging between your I/O
//! and your device, without the lock that holds the kernel's schedulers back.
//!
//! [`open`] opens a device, and [`Device::start`] puts a [`Service`] around it: a queue with a scheduler. Each thread
//! takes a [`Client`] (a completion queue with cookies) or a [`Blocking`] one, pushes I/Os ([`Io`]), and gets their
//! buffers ([`AlignedBuf`]) back with the completions.
//!
//! ```
//! use blkmq::prelude::*;
//! # let folder = tempfile::tempdir()?;
//! # std::env::set_current_dir(&folder)?;
//! # if blkmq::open("uring:nothing").is_err_and(|e| e.is_unavailable()) { return Ok(()) }
//!
//! // A file of 16 MiB, made if it is not there; "uring:/dev/nvme0n1", "memory" and "null" are opened the same way.
//! let disk = blkmq::open("uring:first.img,size=16")?;
//! let service = disk.start("mq-deadline")?;
//!
//! // One client per thread. A buffer belongs to its I/O until that completes.
//! let mut client = service.client()?;
//! for block in 0..8 {
//!     client.push(Io::write(Bytes(block * 4096), AlignedBuf::new(4096)).cookie(block))?;
//! }
//! let done = client.wait(8, 8, |io| assert!(io.result.is_ok()));
//! assert_eq!(done, 8);
//! assert_eq!(service.stats().merges.plug, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where callers are many, or are tasks of an executor, they share a [`Reactor`]: a client with a thread of its
//! own. Its [`Handle`]s take I/Os from any thread and answer with a callback or a future. A dropped future does
//! not take the buffer from under the device:
//!
//! ```rust
//! use blkmq::prelude::*;
//!
//! # fn block_on<F: std::future::Future>(future: F) -> F::Output {
//! #     tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(future)
//! # }
//! let service = blkmq::open("memory,size=64")?.start("kyber")?;
//! let reactor = service.reactor()?;
//! let disk = reactor.handle();
//!
//! let write = Io::write(Bytes(0), AlignedBuf::copy_of(&[7; 4096]));
//! let done = block_on(async { disk.submit(write).await })?;
//! assert_eq!((done.result, done.payload.len()), (Ok(()), 4096));
//! disk.call(Io::flush(), |answer| assert!(answer.is_ok()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layers below are crates of their own, re-exported here: [`core`](mod@core) has the nouns, [`sched`] the policies and
//! how to write one, [`engine`] the queue and the device port, [`device`](mod@device) virtual devices,
//! [`runtime`] clocks, threads and clients, [`buf`] the buffers. On Linux, `uring` has files and block devices.

#![forbid(unsafe_code)]

mod open;

pub use blkmq_buf as buf;
pub use blkmq_core as core;
pub use blkmq_device as device;
pub use blkmq_engine as engine;
pub use blkmq_runtime as runtime;
pub use blkmq_sched as sched;
#[cfg(target_os = "linux")]
pub use blkmq_uring as uring;

pub use open::{Device, OpenError, StartError, device_names, open, open_on};

pub use blkmq_buf::{AlignedBuf, BufferPool};
pub use blkmq_engine::{Access, BlockDevice, Config, Io, Queue, QueueStats};
pub use blkmq_runtime::{
    Batch, Blocking, Client, GroupGuard, GroupOptions, Handle, Reactor, Service,
};
#[cfg(target_os = "linux")]
pub use blkmq_runtime::{Sleep, wait_any};

/// What most programs need.
pub mod prelude {
    pub use blkmq_buf::{AlignedBuf, BufferPool};
    pub use blkmq_core::{
        Bytes, Class, GroupId, IoError, IoFlags, IoPrio, IoResult, Op, Owner, Sectors,
    };
    pub use blkmq_engine::{BlockDevice, Completion, Config, Io, Refused};
    pub use blkmq_runtime::{Answer, Blocking, Client, Clock, Handle, Reactor, Service, Submitted};
}

/// The virtual device that `text` describes: one that exists in this program only, for payloads of any type, also
/// those that carry no data. [`open`] opens these and all others.
///
/// # Errors
/// If there is no such device, or it does not take what is said about it; the error lists what is accepted.
pub fn device(text: &str) -> Result<device::Device, device::DeviceError> {
    let cpus = runtime::available_cpus();
    let machine = device::MachineShape { cpus, nodes: runtime::numa_nodes() };
    device::registry::parse(text, &machine)
}

/// The scheduler called `name`, as sysfs spells it.
#[must_use]
pub fn scheduler(name: &str) -> Option<&'static sched::Factory> {
    sched::registry::find(name)
}
