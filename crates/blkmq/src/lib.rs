//! A multi-queue block layer for user space: it puts a scheduler, tags, budgets and merging between your I/Os and your
//! device, without the lock that limits the kernel's schedulers.
//!
//! [`open`] opens a device, and [`Device::start`] starts a [`Service`] for it: a queue with a scheduler. Each thread
//! takes its own client: a [`Client`], which pushes I/Os ([`Io`]) and reaps completions by cookie, or a
//! [`Blocking`] client, which does one I/O at a time. A completion returns the buffer ([`AlignedBuf`]) of its I/O.
//!
//! ```
//! use blkmq::prelude::*;
//! # let folder = tempfile::tempdir()?;
//! # std::env::set_current_dir(&folder)?;
//! # if blkmq::open("uring:nothing").is_err_and(|e| e.is_unavailable()) { return Ok(()) }
//!
//! // A file of 16 MiB, made if it is not there; "uring:/dev/nvme0n1" and devices that features add are opened the same way.
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
//! Many threads, or the tasks of an executor, share a [`Reactor`]: a client with its own thread. Its [`Handle`]s take
//! I/Os from any thread and answer with a callback or a future. A future may be dropped at any time: its I/O keeps the
//! buffer until the device is done with it. On tokio, and with the feature of that name, `Service::reactor_on` makes a
//! reactor of tasks of the runtime, so that an I/O need not change threads.
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
//! # Several buffers in one I/O
//!
//! A header, the caller's data and padding go to the disk in one write, and nothing is copied:
//!
//! ```rust
//! use blkmq::BufList;
//! use blkmq::prelude::*;
//!
//! let service = blkmq::open("memory,size=1")?.start("none")?;
//! let mut disk = service.blocking()?;
//!
//! let (header, data) = (AlignedBuf::copy_of(b"record 1"), AlignedBuf::copy_of(&[7; 1000]));
//! let padding = AlignedBuf::new(1024 - header.len() - data.len());
//! let record = BufList::new(vec![header, data, padding])?;
//! let (result, record) = disk.call(Io::write(Bytes(0), record))?;
//! assert_eq!(result, Ok(()));
//!
//! // The buffers are there for the next record. A read fills them in the same way.
//! let (result, mut record) = disk.call(Io::read(Bytes(0), record))?;
//! assert!(result.is_ok() && record.slices_mut().next().is_some_and(|header| header == b"record 1"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A device that bypasses the page cache takes ranges of whole blocks, each aligned in memory; any other list is
//! [refused](Refusal::RangeMisaligned) when it is pushed ([`Limits::range_alignment`]).
//!
//! # Pages for authors
//!
//! - [An engine on blkmq](guide::engine): submitters, classes of work, durability, the end.
//! - [Sizing](guide::sizing): submitters, depth, `nr_requests`, and the memory and the descriptors of each.
//! - [Choosing a scheduler](guide::choosing): for which device and load, with commands that show it.
//!
//! # Items by task
//!
//! | task | items |
//! |---|---|
//! | open a device by its description | [`open`], [`Device`] |
#![cfg_attr(
    feature = "models",
    doc = "| make a virtual device, for payloads of any type | [`device()`] |"
)]
#![cfg_attr(
    all(target_os = "linux", feature = "uring"),
    doc = "| open a file or block device by typed options | [`UringDevice::open`], [`uring::Options`] |"
)]
//! | start a queue with a scheduler for a device | [`Device::start`]; with every setting chosen, [`BlockDevice::config`], [`Config`], [`Service::start`] |
//! | do I/O from a thread | [`Service::client`], [`Client`], [`Io`], [`Completion`]; one I/O at a time, [`Service::blocking`] and [`Blocking`] |
//! | do I/O from tasks or many threads | [`Service::reactor`], on tokio `Service::reactor_on`, [`Reactor`], [`Handle`], [`Submitted`]; to reserve a place for an I/O in advance, [`Handle::reserve`] and [`Permit`] |
//! | allocate buffers | [`AlignedBuf`]; several in one I/O, [`BufList`]; bytes after an I/O for many readers, [`SharedBuf`]; a pool, which can be registered with the kernel, [`BufferPool`] and [`Device::register`]; your own types, [`IoBuf`] and [`Payload`] |
#![cfg_attr(
    target_os = "linux",
    doc = "| wait for sockets and disks together | [`Client::event_fd`], [`Client::prepare_wait`], \
           [`Client::end_wait`], [`Sleep`]; for several clients, [`wait_any`] |"
)]
//! | choose how threads wait, and where pump threads run | [`Waiting`]; [`PumpMode`], [`Placement`] |
//! | cancel an I/O | [`Client::cancel`], [`Submitted::cancel`], [`Handle::cancel`], [`Canceller`] |
//! | learn why an I/O was refused, or failed | [`Refused`] and [`Refusal`], [`CallError`], [`SubmitError`] and [`SubmitErrorKind`]; [`IoError`] |
//! | have the scheduler chosen by the groups of the queue | [`Device::start`] with [`AUTO`], [`Config::auto`]; the choice and the reason, [`Plan::auto`] |
//! | share a disk between tenants | [`Service::add_group`], [`GroupOptions`], [`GroupGuard`], [`IoMax`] with a [`Burst`], [`Promise`]; the whole tree, [`GroupTree`]; the I/O of each group, [`Queue::group_io`] and [`GroupIo`], and where its time goes, [`Queue::times`]; the cases in which weights do not hold, [`Config::notes`] |
//! | share driver tags between disks | [`SharedTags`] |
//! | reconfigure a running queue | [`Service::edit`] and [`Plan`]; by sysfs names, [`Service::attribute`] and [`Service::set_attribute`]; stop it for a while, [`Queue::freeze`] and [`Queue::quiesce`] |
//! | observe a queue | [`Service::stats`] and [`QueueStats`]; I/Os that do not complete, [`Service::set_observer`], [`Stall`] and [`Queue::outstanding`] |
//! | write a device | [`DeviceQueue`], [`DeviceShape`], [`Inflight`], [`BioTable`]; instructions, `device` with the feature `models` |
#![cfg_attr(
    feature = "layers",
    doc = "| write a layer, a device in front of others | [`layer::Layer`]; instructions, [`layer`] |"
)]
//! | write a scheduler | [`Scheduler`], [`Factory`]; instructions, [`sched`] |
//! | test a device or a scheduler | `testkit`, with the feature of that name |
//! | run a queue without threads or clocks | [`Queue::submitter`] and [`Submitter`], in [`engine`] |
//!
//! The lower layers are separate crates, re-exported here as modules: [`core`](mod@core) has the basic types, [`sched`]
//! the schedulers, [`engine`] the queue and the device interface, [`runtime`] the clocks, threads and clients, and
//! [`buf`] the buffers. With their features there are `device`, the virtual devices, `layer`, the devices made of
//! others, and, on Linux, `uring`, files and block devices, `remote`, the exports of NBD servers, and `rbd`, the images
//! of Ceph clusters.
//!
//! # Features
//!
//! A feature adds devices, schedulers or items and takes none away. [`open`] refuses a device that is left out, and
//! [`Device::start`] a scheduler; the error names the feature. The examples of these pages have all of them.
//!
//! `uring`, the only default: files and block devices through io_uring or by threads (`UringDevice`) on Linux, and
//! regular files by threads elsewhere (`threads:PATH`), which compiles for macOS and Windows but has never run there.
//!
//! `nbd`: exports of NBD servers as devices (`NbdDevice`), on Linux; with `tls`, inside TLS too.
//!
//! `rbd`: images of Ceph clusters as devices (`RbdDevice`), on Linux, where the machine has librbd.
//!
//! `layers`: devices made of others, `stripe`, `concat`, `crypt` and `checksum`, and the interface for your own layers.
//!
//! `models`: devices without storage, `null`, `memory`, and models of hardware, `disk`, `flash` and `cloud`; and
//! `faults` around any device.
//!
//! `kyber`, `bfq`: the schedulers of these names. `none`, `mq-deadline` and `mclock` are always there.
//!
//! `testkit`: the conformance suites of the built-in devices and schedulers, for your own devices and schedulers. It
//! is meant for `[dev-dependencies]`.
//!
//! `compare`: elevators behind locks, as in the kernel and in patches proposed for it (`Access`, `Modes`). For
//! measurements; a program that does I/O does not need it.
//!
//! `tokio`: reactors whose turns are tasks of a tokio runtime (`Service::reactor_on`), on Linux.

#![forbid(unsafe_code)]

mod open;

#[doc(inline)]
pub use blkmq_buf as buf;
#[doc(inline)]
pub use blkmq_core as core;
#[cfg(feature = "models")]
#[doc(inline)]
pub use blkmq_device as device;
#[doc(inline)]
pub use blkmq_engine as engine;
#[cfg(feature = "layers")]
#[doc(inline)]
pub use blkmq_layer as layer;
#[cfg(all(target_os = "linux", feature = "rbd"))]
#[doc(inline)]
pub use blkmq_rbd as rbd;
#[cfg(all(target_os = "linux", feature = "nbd"))]
#[doc(inline)]
pub use blkmq_remote as remote;
#[doc(inline)]
pub use blkmq_runtime as runtime;
#[doc(inline)]
pub use blkmq_sched as sched;
#[cfg(all(target_os = "linux", feature = "uring"))]
#[doc(inline)]
pub use blkmq_uring as uring;

#[cfg(feature = "uring")]
pub use open::FileDevice;
pub use open::{
    Device, DeviceState, Layers, OpenError, StartError, Zeroing, accepted_devices, device_names,
    open, open_on,
};

#[doc(inline)]
pub use blkmq_buf::{AlignedBuf, BufList, BufferPool, IoBuf, SharedBuf, TooManyBufs};
#[doc(inline)]
pub use blkmq_core::{
    Bytes, Class, DeviceError, Extent, Finding, GroupId, GroupIndex, Instant, IoError, IoFlags,
    IoPrio, IoResult, Limits, MachineShape, Nanos, Op, Owner, Payload, SECTOR_SIZE, Sectors,
};
#[doc(inline)]
pub use blkmq_engine::{
    AUTO, AutoChoice, AutoReason, BioTable, BlockDevice, Burst, Busy, Change, ChangeError,
    Completion, Config, ConfigError, ConfigNote, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues,
    DeviceShape, EditError, Enqueued, Expiry, Finished, FloorsError, Freeze, Group, GroupError,
    GroupTree, Inflight, Io, IoMax, IoMaxError, IoTimes, Join, Latencies, MAX_TRACE_NOTES,
    NoMerges, NoSubmitterLeft, Outstanding, Place, Plan, PolicyChoice, PolicyObserver, Promise,
    PromiseError, PumpMode, Queue, QueueStats, QueueTimes, Quiesce, Refusal, Refused, SharedTags,
    SlowIo, StatsMode, Submitter, Trace, TraceError, TraceEvent, TraceWhat, Unsubmitted, Verdict,
    Wait, WriteCache,
};
#[cfg(feature = "compare")]
#[doc(inline)]
pub use blkmq_engine::{Access, Modes};
#[cfg(all(target_os = "linux", feature = "rbd"))]
#[doc(inline)]
pub use blkmq_rbd::RbdDevice;
#[cfg(all(target_os = "linux", feature = "nbd"))]
#[doc(inline)]
pub use blkmq_remote::NbdDevice;
#[doc(inline)]
pub use blkmq_runtime::{
    Answer, Batch, Blocking, CallError, Canceller, Changing, Client, ClientError, Clock, Closed,
    Event, GroupGuard, GroupOptions, Handle, NotTaken, Observer, Permit, Placement, Reactor,
    ReactorError, Reserving, Resumed, Service, ServiceError, Stall, StillHeld, SubmitError,
    SubmitErrorKind, Submitted, Unavailable, Waiting,
};
#[cfg(target_os = "linux")]
#[doc(inline)]
pub use blkmq_runtime::{Sleep, wait_any};
#[doc(inline)]
pub use blkmq_sched::{
    Factory, FloorCause, FloorReport, FloorState, Flow, GroupIo, Options, Scheduler, StatsLevel,
};
#[cfg(all(target_os = "linux", feature = "uring"))]
#[doc(inline)]
pub use blkmq_uring::UringDevice;

/// The items that most programs need.
pub mod prelude {
    pub use blkmq_buf::{AlignedBuf, BufferPool};
    pub use blkmq_core::{
        Bytes, Class, GroupId, IoError, IoFlags, IoPrio, IoResult, Op, Owner, Sectors,
    };
    pub use blkmq_engine::{BlockDevice, Completion, Config, Io, Refused};
    pub use blkmq_runtime::{Answer, Blocking, Client, Clock, Handle, Reactor, Service, Submitted};
}

/// Builds the virtual device that `text` describes. A virtual device exists only in this program and takes payloads of
/// any type, including payloads without data. [`open`] opens virtual devices and all others.
///
/// # Errors
/// If there is no such device, or it does not accept a parameter; the error lists the accepted names.
#[cfg(feature = "models")]
pub fn device(text: &str) -> Result<device::Device, DeviceError> {
    let machine = MachineShape { cpus: runtime::available_cpus(), nodes: runtime::numa_nodes() };
    device::registry::parse(text, &machine)
}

/// Returns the scheduler called `name`, spelled as in sysfs.
///
/// # Errors
/// If there is no such scheduler, or this build is without it.
pub fn scheduler(name: &str) -> Result<&'static Factory, StartError> {
    sched::registry::find(name).ok_or_else(|| StartError::Scheduler(name.to_owned()))
}

#[cfg(feature = "testkit")]
pub mod testkit {
    //! The conformance suites of the built-in devices and schedulers, for your own devices and schedulers.
    //!
    //! The module needs the feature `testkit`, which is for tests only: the suites are not fast, and a suite panics
    //! with a sentence when it finds a fault.
    //!
    //! ```toml
    //! [dev-dependencies]
    //! blkmq = { version = "0.1", features = ["testkit"] }
    //! ```
    //!
    //! The suite for a scheduler draws scripts of every kind of step from a seed. The suite for a device runs a real
    //! queue in virtual time with a thousand I/Os drawn from a seed; a second function takes the device apart while it
    //! holds requests. An example with a built-in scheduler and a built-in device:
    //!
    //! ```
    //! use blkmq::{BlockDevice, testkit};
    //!
    //! let factory = blkmq::scheduler("kyber").expect("it is there");
    //! for seed in 0..20 {
    //!     let outcome = testkit::scheduler::conformance(factory, seed);
    //!     assert!(outcome.picked > 0, "seed {seed}: nothing was picked");
    //! }
    //!
    //! let device = blkmq::device("null,irqmode=2")?;
    //! for seed in 0..20 {
    //!     let outcome = testkit::device::conformance(device.shape, device.queues(), seed);
    //!     assert_eq!(outcome.failed, 0, "seed {seed}");
    //!     let held = testkit::device::abandonment(device.shape, device.queues(), seed);
    //!     assert!(held > 0, "seed {seed}: nothing was inside");
    //! }
    //! # Ok::<(), blkmq::device::DeviceError>(())
    //! ```
    //!
    //! To test the behaviour of one scheduler use [`scheduler::Driver`], and of one device [`device::Rig`].

    #[doc(inline)]
    pub use blkmq_device::contract as device;
    #[doc(inline)]
    pub use blkmq_sched::testkit as scheduler;
}

/// Pages for authors of storage software: an engine, its sizes, and its scheduler. Their programs are compiled and run.
pub mod guide {
    #[doc = include_str!("../doc/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("../doc/engine.md")]
    pub mod engine {}

    #[doc = include_str!("../doc/sizing.md")]
    pub mod sizing {}
}
