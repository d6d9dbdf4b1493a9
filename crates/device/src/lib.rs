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

pub mod registry {
    //! All devices by name; and [`Around`], faults around a device that is not in the registry.

    use crate::basics::About;
    pub use crate::basics::{Argument, Description, Pair};
    use crate::faults::FaultsParams;
    use crate::{Device, DeviceError, MachineShape, Model, Parameter};
    use crate::{cloud, disk, faults, flash, memory, null};
    use std::fmt;

    /// Makes a device from its description, for a machine like `host`.
    pub type Build =
        fn(given: &Description<'_>, host: &MachineShape) -> Result<Device, DeviceError>;

    /// An entry of the registry. All code that offers devices by name iterates over these.
    pub struct DeviceFactory {
        /// The name of the device, as after `--device`.
        pub name: &'static str,
        /// A one-line summary for lists.
        pub summary: &'static str,
        /// The kind of argument after a colon.
        pub argument: Argument,
        /// The parameters of the device.
        pub parameters: &'static [Parameter],
        /// Makes a device; if a name is repeated, the last value counts. The error names the pair and the accepted values.
        pub build: Build,
        about: About,
    }

    impl fmt::Debug for DeviceFactory {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("DeviceFactory").field("name", &self.name).finish_non_exhaustive()
        }
    }

    impl DeviceFactory {
        const fn new(about: About, build: Build) -> Self {
            let About { name, summary, argument, parameters } = about;
            Self { name, summary, argument, parameters, build, about }
        }

        /// The form of the description, for messages and lists: `null[,KEY=VALUE]...`.
        #[must_use]
        pub fn form(&self) -> String {
            self.about.form()
        }
    }

    const NULL: DeviceFactory = DeviceFactory::new(null::ABOUT, |given, host| {
        Ok(Device::of(null::build(given, host)?, Model::Null))
    });

    const MEMORY: DeviceFactory = DeviceFactory::new(memory::ABOUT, |given, host| {
        let model = |(params, store)| Model::Memory(params, store);
        Ok(Device::of(memory::build(given, host)?, model))
    });

    const FAULTS: DeviceFactory = DeviceFactory::new(faults::ABOUT, |given, host| {
        let (params, notes) = faults::parameters(given)?;
        Ok(Device::around(params, notes, parse(given.argument, host)?))
    });

    const DISK: DeviceFactory = DeviceFactory::new(disk::ABOUT, |given, host| {
        Ok(Device::of(disk::build(given, host)?, Model::Disk))
    });

    const FLASH: DeviceFactory = DeviceFactory::new(flash::ABOUT, |given, host| {
        let model = |(params, drive)| Model::Flash(params, drive);
        Ok(Device::of(flash::build(given, host)?, model))
    });

    const CLOUD: DeviceFactory = DeviceFactory::new(cloud::ABOUT, |given, host| {
        Ok(Device::of(cloud::build(given, host)?, Model::Cloud))
    });

    /// All devices, in the order of lists. An entry here makes a device available, documented and tested.
    pub const ALL: &[&DeviceFactory] = &[&NULL, &MEMORY, &DISK, &FLASH, &CLOUD, &FAULTS];

    /// The pages of these devices.
    const PAGES: &[(&str, &str)] = &[
        ("null", include_str!("../doc/null.md")),
        ("memory", include_str!("../doc/memory.md")),
        ("disk", include_str!("../doc/disk.md")),
        ("flash", include_str!("../doc/flash.md")),
        ("cloud", include_str!("../doc/cloud.md")),
        ("faults", include_str!("../doc/faults.md")),
    ];

    /// The page that `blkmq doc NAME` prints, if there is such a device. It is not a field of [`DeviceFactory`], so that a
    /// program that prints no pages does not contain them.
    #[must_use]
    pub fn page(name: &str) -> Option<&'static str> {
        PAGES.iter().find(|(device, _)| *device == name).map(|(_, page)| *page)
    }

    /// The maximum number of devices around the innermost one. More are useless, and each takes stack space at creation and
    /// for every request.
    const MOST_AROUND: usize = 8;

    /// Refuses a description with too many nested devices. Must be called before the inner device is made, because that
    /// recurses. Reads no more of `text` than necessary.
    ///
    /// # Errors
    /// [`DeviceError::Nested`].
    fn check_nesting(text: &str) -> Result<(), DeviceError> {
        let mut inside = text;
        for _ in 0..=MOST_AROUND {
            let end = inside.find([',', ':']).unwrap_or(inside.len());
            let factory = find(inside[..end].trim());
            let is_around = factory.is_some_and(|factory| factory.argument == Argument::Device);
            match inside.split_once(':') {
                Some((_, device)) if is_around => inside = device,
                _ => return Ok(()),
            }
        }
        Err(DeviceError::Nested { most: MOST_AROUND })
    }

    /// The device called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static DeviceFactory> {
        ALL.iter().copied().find(|f| f.name == name)
    }

    /// Makes the device that `text` describes, in the form of its factory ([`DeviceFactory::form`]), for a machine like
    /// `host`.
    ///
    /// # Errors
    /// If there is no such device, it does not accept its parameters or its argument, or too many devices are nested.
    pub fn parse(text: &str, host: &MachineShape) -> Result<Device, DeviceError> {
        check_nesting(text)?;
        let end = text.find([',', ':']).unwrap_or(text.len());
        let name = text[..end].trim();
        let accepted = || Vec::from_iter(ALL.iter().map(|f| f.name)).join(", ");
        let unknown = || DeviceError::Unknown { name: name.into(), accepted: accepted() };
        let factory = find(name).ok_or_else(unknown)?;
        (factory.build)(&factory.about.describe(&text[end..])?, host)
    }

    /// Faults around a device that has not been made.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Around<'a> {
        /// The parameters of the faults.
        pub params: FaultsParams,
        /// Notes on the parameters.
        pub notes: Vec<String>,
        /// The description of the inner device.
        pub inside: &'a str,
    }

    impl<'a> Around<'a> {
        /// Parses the faults around the device that `text` describes. Returns `None` if `text` does not begin with faults.
        ///
        /// For devices that are not in the registry, which itself parses inner devices.
        ///
        /// # Errors
        /// If the parameters are invalid, there is no inner device, or too many faults are nested.
        pub fn parse(text: &'a str) -> Result<Option<Self>, DeviceError> {
            let end = text.find([',', ':']).unwrap_or(text.len());
            if text[..end].trim() != faults::ABOUT.name {
                return Ok(None);
            }
            check_nesting(text)?;
            let given = faults::ABOUT.describe(&text[end..])?;
            let (params, notes) = faults::parameters(&given)?;
            Ok(Some(Self { params, notes, inside: given.argument }))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const HOST: MachineShape = MachineShape { cpus: 2, nodes: 1 };

        fn refusal(text: &str) -> String {
            parse(text, &HOST).expect_err(text).to_string()
        }

        #[test]
        fn a_description_makes_the_device() {
            let device = parse("null, submit_queues=2,hw_queue_depth = 8", &HOST).expect("right");
            assert_eq!((device.shape.hw_queues, device.shape.hw_queue_depth), (2, 8));
            assert!(parse("null", &HOST).is_ok());
            assert!(parse("null:submit_queues=2,timeout=1:100:0:1", &HOST).is_ok());
            let device =
                parse("faults, error=0.1 : faults,late=1:memory, size=3", &HOST).expect("right");
            assert_eq!(device.shape.limits.capacity, 3 << 11);
            assert!(device.memory().is_some(), "the wrapped one is reached");
        }

        /// Regression test: the hint `size=16m` was refused as "a whole number".
        #[test]
        fn sizes_and_times_take_units_as_everywhere_on_the_command_line() {
            let mib = |text| parse(text, &HOST).expect(text).shape.limits.capacity >> 11;
            for (text, expected) in [
                ("memory,size=1G", 1024),
                ("memory,size=16m,cache_size=1m", 16),
                ("memory,size=16", 16),
                ("null,gb=1t", 1 << 20),
                ("null,size=3m,completion_nsec=10us,irqmode=2,bs=4k", 3),
                ("disk,size=1g,seek_average_nsec=8ms,read_ahead=256k", 1024),
                ("flash,size=1g,read_ns=50us,page_size=16k,buffer_kib=1m", 1024),
                ("faults,late=0.5,late_nsec=1ms,timeout_nsec=2s:memory,size=2m", 2),
            ] {
                assert_eq!(mib(text), expected, "{text}");
            }
            assert!(refusal("memory,size=512k").contains("a whole number of MiB from 1 to"));
            assert!(
                refusal("null,completion_nsec=1k").contains("with a unit: 500ns, 10us, 5ms, 1s")
            );
        }

        /// Regression test: making a device around another recurses, so that 17,000 of them overflowed the stack, which a
        /// caller cannot catch.
        #[test]
        fn devices_around_one_another_are_bounded() {
            let nested = |around: usize| format!("{}null", "faults, late=0.5 : ".repeat(around));
            let device = parse(&nested(8), &HOST).expect("eight are accepted");
            assert_eq!(device.queues::<()>().len(), usize::from(device.shape.hw_queues));
            for around in [9, 17_000, 1_000_000] {
                let text = refusal(&nested(around));
                assert!(text.ends_with("accepted: at most 8 around the innermost one"), "{text}");
                assert!(Around::parse(&nested(around)).is_err(), "{around}");
            }
            assert!(Around::parse(&nested(8)).is_ok());
        }

        #[test]
        fn what_is_wrong_with_a_description_is_said() {
            assert!(refusal("").contains("accepted: null"));
            assert!(refusal("zram").contains("no device 'zram'; accepted: null"));
            assert!(refusal("null,fast").contains("'fast' is no KEY=VALUE; accepted: null[,KEY"));
            assert!(
                refusal("faults").contains("DEVICE is missing; accepted: faults[,KEY=VALUE]...")
            );
            assert!(refusal("faults:zram").contains("no device 'zram'"));
            assert!(
                refusal("faults,error=2:null").contains("device faults: error=2 is not possible")
            );
            assert!(refusal("faults:null,fast=1").contains("device null: no parameter 'fast'"));
            assert!(refusal("null,fast=1").contains("device null: no parameter 'fast'; accepted:"));
        }
    }
}
