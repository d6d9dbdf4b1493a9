//! Virtual block devices: models that a queue can be put around, with faults on demand.
//!
//! A device is told the time, takes requests, and gives each of them back once. It owns no clock and no
//! thread and never blocks, so the same model serves a benchmark in real time and the laboratory in virtual
//! time. Real storage is elsewhere (`blkmq-uring`); nothing here does I/O.
//!
//! [`registry::ALL`] lists what there is. A [`DeviceFactory`] makes a [`Device`] from its description, and
//! [`Device::queues`] its hardware queues. [`faults`] stands around any of them.
//!
//! ```
//! use blkmq_core::{Nanos, Op};
//! use blkmq_device::testkit::Rig;
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
//! In the order in which one writes it:
//!
//! 1. Write `doc/mine.md` first: what the model charges for, its parameters, which faults it produces, which
//!    combinations it never will, and what it cannot show. A model whose limits are not written down proves
//!    whatever its user hopes.
//! 2. Make `src/mine/mod.rs` with its `FACTORY`, and a typed struct of parameters read with [`Given`](blkmq_core::Given):
//!    names and defaults of the thing that is modelled, numbers out of range rounded with a note, nothing
//!    accepted and then ignored.
//! 3. Implement [`DeviceQueue`] for one hardware queue, for any payload, or any [`Payload`] if it
//!    stores. A device that answers within the call says `Enqueued::Done` and keeps nothing. One that answers
//!    later keeps its [`Inflight`] tokens in the order in which they end, and [`next_event`] names the first.
//!    *Nothing more by itself* is [`Instant::MAX`]; `None` would mean "cannot tell" and have it polled.
//! 4. Say [`Busy::DevResource`] only where the promise holds: something in service on this queue will end,
//!    or `next_event` names when there is room. Otherwise it is [`Busy::Resource`].
//! 5. What several hardware queues share (a bandwidth, a seek arm) sits behind an `Arc<Mutex<_>>` that is
//!    not touched while the feature is off. A queue belongs to one pump; nothing else here is shared.
//! 6. Draw faults from [`fault::Fault`] and a stream of your seed, one per hardware queue, so that a run
//!    repeats whichever thread pumps first.
//! 7. Add a line to [`registry::ALL`], a variant to the private enum in `device.rs`, and call
//!    [`testkit::conformance`] on it with every feature and fault switched on in turn.
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
mod description;
mod device;
pub mod disk;
pub mod fault;
pub mod faults;
pub mod flash;
mod log;
pub mod memory;
pub mod null;
mod occupancy;
mod param;
pub mod registry;
mod service;
pub mod testkit;

pub use blkmq_core::Parameter;
pub use description::descriptions;
pub use device::{Device, MachineShape};
pub use log::{Answer, Arrival, ArrivalLog};
pub use occupancy::{Activity, OccupancyLog, Span};
pub use param::{DeviceError, ParamError};
pub use registry::DeviceFactory;
