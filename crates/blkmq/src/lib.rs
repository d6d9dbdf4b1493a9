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
//! # What you want, and where it is
//!
//! | to | there is |
//! |---|---|
//! | open a device by its description | [`open`], [`Device`]; one that exists only in this program, [`device()`] |
#![cfg_attr(
    target_os = "linux",
    doc = "| open a file or block device by typed options | [`UringDevice::open`], [`uring::Options`] |"
)]
//! | put a queue with a scheduler around it | [`Device::start`]; with everything chosen, [`BlockDevice::config`], [`Config`], [`Service::start`] |
//! | do I/O from a thread | [`Service::client`], [`Client`], [`Io`], [`Completion`]; one at a time, [`Service::blocking`] and [`Blocking`] |
//! | do I/O from tasks or many threads | [`Service::reactor`], [`Reactor`], [`Handle`], [`Submitted`]; room before there is an I/O, [`Handle::reserve`] and [`Permit`] |
//! | have buffers | [`AlignedBuf`]; many without allocating, and registered with the kernel, [`BufferPool`] and [`Device::register`]; your own, [`IoBuf`] and [`Payload`] |
#![cfg_attr(
    target_os = "linux",
    doc = "| wait for sockets and disks together | [`Client::event_fd`], [`Client::prepare_wait`], \
           [`Client::end_wait`], [`Sleep`]; for several clients, [`wait_any`] |"
)]
//! | say how long waiting threads stay awake, and where pump threads run | [`Waiting`]; [`PumpMode`], [`Placement`] |
//! | give an I/O up | [`Client::cancel`], [`Submitted::cancel`], [`Handle::cancel`], [`Canceller`] |
//! | know why an I/O was refused, or failed | [`Refused`] and [`Refusal`], [`CallError`], [`SubmitError`] and [`SubmitErrorKind`]; [`IoError`] |
//! | share a disk between tenants | [`Service::add_group`], [`GroupOptions`], [`GroupGuard`], [`IoMax`]; the whole tree, [`GroupTree`]; what each has done, [`Queue::group_io`] and [`GroupIo`]; what cannot be shared, [`Config::notes`] |
//! | share driver tags between disks | [`SharedTags`] |
//! | change a queue in use | [`Service::edit`] and [`Plan`]; by sysfs' names, [`Service::attribute`] and [`Service::set_attribute`]; hold it, [`Queue::freeze`] and [`Queue::quiesce`] |
//! | see what it does | [`Service::stats`] and [`QueueStats`]; what does not come back, [`Service::set_observer`], [`Stall`] and [`Queue::outstanding`] |
//! | write a device | [`DeviceQueue`], [`DeviceShape`], [`Inflight`], [`BioTable`]; how, in [`device`](mod@device) |
//! | write a scheduler | [`Scheduler`], [`Factory`]; how, in [`sched`] |
//! | test either | `testkit`, with the feature of that name |
//! | run without threads or clocks | [`Queue::submitter`] and [`Submitter`], in [`engine`] |
//!
//! The layers below are crates of their own, re-exported here as modules: [`core`](mod@core) has the nouns, [`sched`] the
//! policies, [`engine`] the queue and the device port, [`device`](mod@device) virtual devices, [`runtime`] clocks, threads
//! and clients, [`buf`] the buffers, and `uring`, on Linux, files and block devices.
//!
//! # Features
//!
//! `testkit`: the suites that every device and every scheduler passes, for those that are written elsewhere. For
//! `[dev-dependencies]`.

#![forbid(unsafe_code)]

mod open;
#[cfg(feature = "testkit")]
pub mod testkit;

#[doc(inline)]
pub use blkmq_buf as buf;
#[doc(inline)]
pub use blkmq_core as core;
#[doc(inline)]
pub use blkmq_device as device;
#[doc(inline)]
pub use blkmq_engine as engine;
#[doc(inline)]
pub use blkmq_runtime as runtime;
#[doc(inline)]
pub use blkmq_sched as sched;
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use blkmq_uring as uring;

#[cfg(target_os = "linux")]
pub use open::FileDevice;
pub use open::{Device, OpenError, StartError, device_names, open, open_on};

#[doc(inline)]
pub use blkmq_buf::{AlignedBuf, BufferPool, IoBuf};
#[doc(inline)]
pub use blkmq_core::{
    Bytes, Class, GroupId, Instant, IoError, IoFlags, IoPrio, IoResult, Limits, Nanos, Op, Owner,
    Payload, SECTOR_SIZE, Sectors,
};
#[doc(inline)]
pub use blkmq_engine::{
    Access, BioTable, BlockDevice, Busy, Change, ChangeError, Completion, Config, ConfigError,
    ConfigNote, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues, DeviceShape, EditError, Enqueued,
    Expiry, Finished, Freeze, Group, GroupError, GroupTree, Inflight, Io, IoMax, IoMaxError,
    NoMerges, NoSubmitterLeft, Outstanding, Place, Plan, PumpMode, Queue, QueueStats, Quiesce,
    Refusal, Refused, SharedTags, Stats, Submitter, Unsubmitted, Verdict, WriteCache,
};
#[doc(inline)]
pub use blkmq_runtime::{
    Answer, Batch, Blocking, CallError, Canceller, Client, Clock, Event, GroupGuard, GroupOptions,
    Handle, NotTaken, Observer, Permit, Placement, Reactor, ReactorError, Reserving, Resumed,
    Service, ServiceError, Stall, SubmitError, SubmitErrorKind, Submitted, Unavailable, Waiting,
};
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use blkmq_runtime::{Sleep, wait_any};
#[doc(inline)]
pub use blkmq_sched::{Factory, Flow, GroupIo, Options, Scheduler, StatsLevel};
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use blkmq_uring::UringDevice;

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
pub fn scheduler(name: &str) -> Option<&'static Factory> {
    sched::registry::find(name)
}
