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
//! 7. Describe the model by an `ABOUT` and a `build` that returns its parts (`basics.rs`). Add a variant to the
//!    private enum `Model`, where the compiler asks for its queues, and a line to [`registry::ALL`]. Then call
//!    `contract::conformance`, which the feature `testkit` adds, on it with every parameter and fault switched on in
//!    turn.
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
pub mod disk;
pub mod fault;
pub mod faults;
pub mod flash;
mod log;
pub mod memory;
pub mod null;
pub mod registry;

use basics::Parts;
pub use basics::descriptions;
use blkmq_core::Payload;
pub use blkmq_core::{DeviceError, MachineShape, ParamError, Parameter};
use blkmq_engine::{BlockDevice, Config, DeviceQueues, DeviceShape};
use cloud::CloudParams;
use disk::DiskParams;
use faults::{FaultsParams, Faulty};
use flash::{FlashDrive, FlashParams};
pub use log::{Activity, Answer, Arrival, ArrivalLog, OccupancyLog, Span};
use memory::{MemoryParams, MemoryStore};
use null::NullParams;
pub use registry::DeviceFactory;
use std::io;

/// A device with its final parameters.
#[derive(Clone, Debug)]
pub struct Device {
    /// The shape of the device for the engine.
    pub shape: DeviceShape,
    /// Whether the device requests the scheduler `none` unless the user names one.
    pub no_sched: bool,
    /// Notes for the user, a sentence each, on values that were rounded, clamped, replaced, or accepted without effect.
    pub notes: Vec<String>,
    /// The arrival log, if arrivals are recorded.
    pub log: Option<ArrivalLog>,
    /// The occupancy log, if the device models parts and records their work.
    pub occupancy: Option<OccupancyLog>,
    model: Model,
}

/// The model of a device, with its parameters.
#[derive(Clone, Debug)]
enum Model {
    Null(NullParams),
    Memory(MemoryParams, MemoryStore),
    Disk(DiskParams),
    Flash(FlashParams, FlashDrive),
    Cloud(CloudParams),
    /// Faults around another device.
    Faults(FaultsParams, Box<Device>),
}

impl Device {
    /// Builds a device from the result of a model's builder.
    fn of<M>(parts: Parts<M>, model: impl FnOnce(M) -> Model) -> Self {
        let Parts { shape, no_sched, notes, log, occupancy, model: own } = parts;
        Self { shape, no_sched, notes, log, occupancy, model: model(own) }
    }

    /// Wraps `inner` with faults.
    fn around(params: FaultsParams, mut notes: Vec<String>, mut inner: Self) -> Self {
        notes.append(&mut inner.notes);
        Self {
            shape: params.shape(&inner.shape),
            no_sched: inner.no_sched,
            notes,
            log: inner.log.clone(),
            occupancy: inner.occupancy.clone(),
            model: Model::Faults(params, Box::new(inner)),
        }
    }

    /// Returns the hardware queues, `shape.hw_queues` of them, for payloads of type `P`.
    ///
    /// Every call powers the device on again: nothing in flight, a full bandwidth budget, and the faults from the start
    /// of their seed. The arrival log and the stored data are kept, and all data is durable.
    #[must_use]
    pub fn queues<P: Payload>(&self) -> DeviceQueues<P> {
        let (log, occupancy) = (self.log.as_ref(), self.occupancy.as_ref());
        match &self.model {
            Model::Null(params) => null::queues(params, log),
            Model::Memory(params, store) => memory::queues(params, store, log),
            Model::Disk(params) => disk::queues(params, log, occupancy),
            Model::Flash(params, drive) => flash::queues(params, drive, log, occupancy),
            Model::Cloud(params) => cloud::queues(params, log),
            Model::Faults(params, inner) => Faulty::wrap(params, &self.shape, inner.queues()),
        }
    }

    /// The store, if the device or its inner device has one, to read the contents or simulate a crash. Clones of a
    /// device share it.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        match &self.model {
            Model::Memory(_, store) => Some(store),
            Model::Faults(_, inner) => inner.memory(),
            _ => None,
        }
    }

    /// Returns whether the device, or its inner device, models the service times of hardware. If not, the device is as
    /// fast as the processor, apart from the times in its parameters.
    #[must_use]
    pub fn is_model(&self) -> bool {
        match &self.model {
            Model::Null(_) | Model::Memory(..) => false,
            Model::Disk(_) | Model::Flash(..) | Model::Cloud(_) => true,
            Model::Faults(_, inner) => inner.is_model(),
        }
    }

    /// The counters of written and moved units, if the device or its inner device is a flash device. Clones of a device
    /// share them.
    #[must_use]
    pub fn flash(&self) -> Option<&FlashDrive> {
        match &self.model {
            Model::Flash(_, drive) => Some(drive),
            Model::Faults(_, inner) => inner.flash(),
            _ => None,
        }
    }

    /// The configuration of a queue on the device, with all other settings at their defaults.
    #[must_use]
    pub fn config<P: Payload>(&self) -> Config<P> {
        Config::new(self.shape, self.queues()).default_scheduler(self.default_scheduler())
    }

    /// Like [`BlockDevice::default_scheduler`], but `none` if the device requests it (`no_sched`).
    #[must_use]
    pub fn default_scheduler(&self) -> &'static str {
        if self.no_sched { "none" } else { self.shape.default_scheduler() }
    }
}

impl<P: Payload> BlockDevice<P> for Device {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    /// Never fails.
    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(self.queues())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn default_scheduler(&self) -> &'static str {
        self.default_scheduler()
    }
}
