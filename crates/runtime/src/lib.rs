//! Where the engine meets the world: the one clock, parked threads, and the clients that programs use.
//!
//! [`Service`] puts a queue on its feet: it builds the queue with a host that parks and wakes threads, starts
//! pump threads if they are wanted, and hands out clients. [`Client`] is the base: a completion queue with
//! cookies. [`Blocking`] sits on top, for callers that want one answer at a time.
//!
//! By default there are no threads but the caller's: whoever submits or waits runs elevator and pumps
//! inline, because waking another thread costs more than all the rest at queue depth 1.

#![forbid(unsafe_code)]

mod client;
mod clock;
mod host;
mod placement;
mod pump_thread;
mod service;

pub use client::{Blocking, Client, Waiting};
pub use clock::{Clock, wall_clock_millis};
pub use placement::{Placement, available_cpus, numa_nodes};
pub use service::{Service, ServiceError};
