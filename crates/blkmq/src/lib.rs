//! The multi-queue block layer for user space: put a scheduler, tags, budgets and merging between your I/O
//! and your device, without the lock that holds the kernel's schedulers back.
//!
//! A [`Service`] is a queue around a device. Each thread takes a [`Client`] (a completion queue with cookies)
//! or a [`Blocking`] one, pushes I/Os, and gets completions back. A scheduler is chosen by name.
//!
//! ```
//! use blkmq::prelude::*;
//!
//! // A device: here null_blk's stand-in, one hardware queue of depth 64 that completes at once.
//! let device = blkmq::device("null,irqmode=0")?;
//! let config = Config::new(device.shape, device.queues::<Vec<u8>>())
//!     .scheduler(blkmq::scheduler("mq-deadline").expect("built in"));
//! let service = Service::start(config, Placement::Anywhere)?;
//!
//! // One client per thread. Buffers are owned by the I/O until it completes.
//! let mut client = service.client()?;
//! let now = client.clock().now();
//! for block in 0..8 {
//!     client.push(now, Io::new(Op::Write, block * 8, 8, block, vec![0; 4096]))?;
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
//! let service = Service::start(blkmq::device("null")?.config(), Placement::Anywhere)?;
//! let reactor = service.reactor()?;
//! let disk = reactor.handle();
//!
//! let done = block_on(async { disk.submit(Io::new(Op::Write, 0, 8, 1, vec![7; 4096])).await })?;
//! assert_eq!((done.result, done.payload.len()), (Ok(()), 4096));
//! disk.call(Io::new(Op::Flush, 0, 0, 2, vec![]), |answer| assert!(answer.is_ok()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layers below are crates of their own, re-exported here: [`core`](mod@core) has the nouns, [`sched`] the policies and
//! how to write one, [`engine`] the queue and the device port, [`device`](mod@device) virtual devices,
//! [`runtime`] clocks, threads and clients. On Linux, `uring` has files and block devices.

#![forbid(unsafe_code)]

pub use blkmq_core as core;
pub use blkmq_device as device;
pub use blkmq_engine as engine;
pub use blkmq_runtime as runtime;
pub use blkmq_sched as sched;
#[cfg(target_os = "linux")]
pub use blkmq_uring as uring;

pub use blkmq_engine::{Access, Config, Io, Queue, QueueStats};
pub use blkmq_runtime::{Blocking, Client, Handle, Reactor, Service};

/// What most programs need.
pub mod prelude {
    pub use blkmq_core::{Class, IoFlags, IoPrio, IoResult, Op, Owner};
    pub use blkmq_engine::{Access, Completion, Config, Io, PumpMode, Queue};
    pub use blkmq_runtime::{
        Answer, Blocking, Client, Clock, Handle, Placement, Reactor, Service, Submitted,
    };
}

/// The device that `text` describes on this machine: `NAME[,KEY=VALUE]...`, as after the command line's
/// `--device`. How many hardware queues it has by default depends on the machine.
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
