//! Virtual block devices: models for a queue to drive, with faults on demand.
//!
//! A device receives the time with each call, takes requests, and returns each of them once. It has no clock or thread
//! and never blocks, so the same model serves a benchmark in real time and the laboratory in virtual time. Real storage
//! is elsewhere (`blkmq-uring`); this crate does no I/O.
//!
//! [`registry::ALL`] lists the devices. A [`DeviceFactory`] makes a [`Device`] from its description, and
//! [`Device::queues`] makes its hardware queues. [`faults`] can wrap any device.
//!
//! ```
//! use blkmq_core::{Nanos, Op};
//! use blkmq_device::contract::Rig;
//! use blkmq_device::{MachineShape, registry};
//! use blkmq_engine::BlockDevice;
//!
//! // Null_blk with a timer, for requests that carry no data.
//! let machine = MachineShape { cpus: 1, nodes: 1 };
//! let device = registry::parse("null,irqmode=2,completion_nsec=50000", &machine)?;
//!
//! // A queue around it in virtual time.
//! let mut rig = Rig::new(device.config());
//! let begun = rig.now;
//! let read = rig.submit(Op::Read, 0, 8);
//! rig.finish();
//! assert_eq!(rig.ended(read).at.since(begun), Nanos(50_000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Writing a device
//!
//! In the order of writing:
//!
//! 1. Write `doc/mine.md` first: the costs that the model charges, its parameters, the faults that it produces, the
//!    combinations that it never produces, and its limits. A model without documented limits can prove anything.
//! 2. Make `src/mine/mod.rs` with its `ABOUT`, and a typed struct of parameters read with [`Given`](blkmq_core::Given):
//!    names and defaults as in the modelled hardware, a note for every number that is rounded or clamped, and no
//!    parameter that is accepted but ignored.
//! 3. Implement [`DeviceQueue`] for one hardware queue, for any payload, or any [`Payload`] if it stores data. A device
//!    that completes a request within the call answers `Enqueued::Done` and keeps no token. A device that completes it
//!    later keeps its [`Inflight`] tokens in the order in which they end, and [`next_event`] returns the time of the
//!    first. It returns [`Instant::MAX`] if no event will come spontaneously; `None` would mean that the time is
//!    unknown, so that the device must be polled.
//! 4. Answer [`Busy::DevResource`] only where its promise holds: a request in service on this queue will end, or
//!    `next_event` returns the time when there is room. Otherwise answer [`Busy::Resource`].
//! 5. Put state that several hardware queues share (a bandwidth, a seek arm) behind an `Arc<Mutex<_>>`, which is not
//!    touched while the feature is off. A queue belongs to one pump; nothing else here is shared.
//! 6. Draw faults from [`fault::Fault`] and a stream of the device's seed, one per hardware queue, so that a run
//!    repeats whatever the order of pumping threads.
//! 7. Describe the model by an `ABOUT` and a `build` that returns its parts (`description.rs`). Add a variant to the
//!    private enum in `device.rs`, where the compiler asks for its queues, and a line to [`registry::ALL`]. Then call
//!    `contract::conformance`, which the feature `testkit` adds, on it with every parameter and fault switched on in turn.
//!
//! [`DeviceQueue`]: blkmq_engine::DeviceQueue
//! [`Payload`]: blkmq_core::Payload
//! [`Inflight`]: blkmq_engine::Inflight
//! [`next_event`]: blkmq_engine::DeviceQueue::next_event
//! [`Instant::MAX`]: blkmq_core::Instant::MAX
//! [`Busy::DevResource`]: blkmq_engine::Busy::DevResource
//! [`Busy::Resource`]: blkmq_engine::Busy::Resource

#![forbid(unsafe_code)]

mod basics;
pub mod cloud;
#[cfg(feature = "testkit")]
pub mod contract;
mod description;
mod device;
pub mod disk;
pub mod fault;
pub mod faults;
pub mod flash;
mod log;
pub mod memory;
pub mod null;
pub mod registry;

pub use blkmq_core::{DeviceError, MachineShape, ParamError, Parameter};
pub use description::descriptions;
pub use device::Device;
pub use log::{Activity, Answer, Arrival, ArrivalLog, OccupancyLog, Span};
pub use registry::DeviceFactory;
