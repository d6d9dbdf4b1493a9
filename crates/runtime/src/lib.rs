//! The runtime around the engine: the one clock, parked threads, and the clients that programs use.
//!
//! [`Service`] runs a queue: it builds the queue with a host that parks and wakes threads, starts pump threads if they
//! are wanted, and hands out clients. [`Client`] is the base: a completion queue with cookies. Two types build on it.
//! [`Blocking`] is for callers that do one I/O at a time. [`Reactor`] gives a client its own thread, so that any number
//! of other threads can share it: they get answers as callbacks or as futures, from [`Handle::call`] and
//! [`Handle::submit`]. With the feature `tokio`, a reactor may instead be tasks of a runtime, with a client for each
//! worker (`Service::reactor_on`).
//!
//! ```
//! use blkmq_core::Op;
//! use blkmq_device::{MachineShape, registry};
//! use blkmq_engine::{BlockDevice, Io};
//! use blkmq_runtime::Service;
//!
//! // A device that completes after 100 us, and I/Os that carry no data.
//! let machine = MachineShape { cpus: 1, nodes: 1 };
//! let device = registry::parse("null,irqmode=2,completion_nsec=100000", &machine)?;
//! let service = Service::start(device.config())?;
//!
//! // One client per thread: push, wait for completions, identify each by its cookie.
//! let mut client = service.client()?;
//! for cookie in 0..8 {
//!     client.push(Io::new(Op::Read, cookie * 64, 8, cookie, ()))?;
//! }
//! let mut cookies = Vec::new();
//! assert_eq!(client.wait(8, 8, |done| cookies.push(done.cookie)), 8);
//! cookies.sort();
//! assert_eq!(cookies, Vec::from_iter(0..8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The calls that block, and for how long, are listed in `docs/blocking.md`.
//!
//! By default only the caller's threads run: a thread that submits or waits runs elevator and pumps inline, because at
//! queue depth 1 waking another thread costs more than all the rest. A reactor with a thread pays that price, once per
//! batch in each direction; on a runtime it does not. A program that has a thread for each core does best with a client
//! for each thread.

#![forbid(unsafe_code)]

mod client;
mod clock;
mod control;
mod placement;
mod planted;
mod port;
mod reactor;
mod service;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod submit_error;
mod waiting;

#[cfg(target_os = "linux")]
pub use client::outside::{Sleep, wait_any};
pub use client::{
    Batch, Blocking, CallError, Canceller, Client, ClientError, Event, Observer, Resumed,
    STALL_AFTER, Stall,
};
pub use clock::{Clock, wall_clock_millis};
pub use control::{Changing, GroupGuard, GroupOptions};

pub use placement::{Placement, available_cpus, bind_thread, numa_nodes, usable_cpus};
pub use reactor::{Closed, Handle, Permit, Reactor, ReactorError, Reserving, Submitted};
pub use service::{Service, ServiceError};
pub use submit_error::{Answer, NotTaken, StillHeld, SubmitError, SubmitErrorKind, Unavailable};
pub use waiting::Waiting;
