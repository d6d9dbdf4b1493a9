//! The kinds of devices, each in a module of the feature that adds it: how it is opened, and the queries that it
//! answers.

/// Devices that exist only in this program, and faults around any device, which the feature `models` adds.
#[cfg(feature = "models")]
pub(super) mod virtual_device {
    use crate::open::Opened;
    use crate::open::{Device, Opener};
    use blkmq_core::{DeviceError, Extent};
    use blkmq_device::registry;
    use std::io;
    use std::ops::Range;

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || registry::ALL.iter().map(|factory| factory.name).collect(),
        open: |text, _, machine| match registry::parse(text, machine) {
            Err(DeviceError::Unknown { .. }) => Ok(None),
            device => Ok(Some(Device::Virtual(device?))),
        },
    };

    impl Opened for blkmq_device::Device {
        fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
            Ok(match self.memory() {
                Some(store) => store.extents(range, most),
                None => vec![Extent { end: range.end, is_hole: false }],
            })
        }

        fn moves_data(&self) -> bool {
            self.memory().is_some()
        }
    }
}

/// Files and block devices on Linux, which the feature `uring` adds.
#[cfg(all(target_os = "linux", feature = "uring"))]
pub(super) mod file {
    use crate::Layers;
    use crate::open::Cause;
    use crate::open::Opened;
    use crate::open::{Device, DeviceState, OpenError, Opener, Zeroing};
    use blkmq_buf::BufferPool;
    use blkmq_core::Extent;
    use blkmq_uring::UringDevice;
    use std::io;
    use std::ops::Range;

    /// A file or block device, and the fault layers around it.
    pub type FileDevice = Layers<UringDevice>;

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || vec![blkmq_uring::URING.name, blkmq_uring::THREADS.name],
        open: |_, wrapped, _| {
            let file =
                UringDevice::described(wrapped.inside).transpose().map_err(OpenError::File)?;
            Ok(file.map(|file| Device::File(wrapped.around(file))))
        },
    };

    impl Opened for FileDevice {
        fn state(&self, _: DeviceState) -> DeviceState {
            let now = self.device.state();
            DeviceState {
                bytes: now.bytes,
                is_read_only: now.is_read_only,
                is_removed: now.is_removed,
                has_volatile_cache: now.has_volatile_cache,
            }
        }

        fn zeroing(&self) -> Zeroing {
            Zeroing { is_fast: self.device.has_fast_zeroes(), keeps_room: true }
        }

        fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
            self.device.extents(range, most)
        }

        fn register(&mut self, pool: &BufferPool) {
            self.device.register(pool);
        }
    }

    impl Cause for blkmq_uring::OpenError {
        fn is_unavailable(&self) -> bool {
            self.is_unavailable()
        }

        fn is_busy(&self) -> bool {
            self.is_busy()
        }
    }
}

/// Files on systems other than Linux, which the feature `uring` adds. Without io_uring, `uring:PATH` does not exist
/// there.
#[cfg(all(not(target_os = "linux"), feature = "uring"))]
pub(super) mod file {
    use crate::Layers;
    use crate::open::Cause;
    use crate::open::Opened;
    use crate::open::{Device, DeviceState, OpenError, Opener, Zeroing};

    /// A file, and the fault layers around it.
    pub type FileDevice = Layers<blkmq_threads::FileDevice>;

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || vec![blkmq_threads::FILE.name],
        open: |_, wrapped, _| {
            let file = blkmq_threads::FileDevice::described(wrapped.inside)
                .transpose()
                .map_err(OpenError::File)?;
            Ok(file.map(|file| Device::File(wrapped.around(file))))
        },
    };

    impl Opened for FileDevice {
        fn state(&self, as_opened: DeviceState) -> DeviceState {
            let (bytes, is_read_only) = (self.device.bytes(), self.device.is_read_only());
            DeviceState { bytes, is_read_only, ..as_opened }
        }

        fn zeroing(&self) -> Zeroing {
            Zeroing { is_fast: false, keeps_room: false }
        }
    }

    impl Cause for blkmq_threads::OpenError {}
}

/// Exports of NBD servers, which the feature `nbd` adds.
#[cfg(all(target_os = "linux", feature = "nbd"))]
pub(super) mod nbd {
    use crate::Layers;
    use crate::open::Cause;
    use crate::open::Opened;
    use crate::open::{Device, DeviceState, OpenError, Opener, Zeroing};
    use blkmq_core::Extent;
    use blkmq_remote::NbdDevice;
    use std::io;
    use std::ops::Range;

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || vec![blkmq_remote::NBD.name],
        open: |_, wrapped, _| {
            let Some(export) = blkmq_remote::description(wrapped.inside) else { return Ok(None) };
            let export = NbdDevice::parse(export).map_err(OpenError::Nbd)?;
            Ok(Some(Device::Nbd(wrapped.around(export))))
        },
    };

    impl Opened for Layers<NbdDevice> {
        fn state(&self, as_opened: DeviceState) -> DeviceState {
            DeviceState { is_read_only: self.device.is_read_only(), ..as_opened }
        }

        fn zeroing(&self) -> Zeroing {
            Zeroing { is_fast: self.device.has_fast_zeroes(), keeps_room: false }
        }

        fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
            Ok(self.device.extents(range, most))
        }

        fn asks_for_extents(&self) -> bool {
            true
        }
    }

    impl Device {
        /// Returns how many connections to the server have been lost and replaced; `None` if the device is not an NBD
        /// export.
        #[must_use]
        pub fn outages(&self) -> Option<blkmq_remote::Outages> {
            match self {
                Self::Nbd(export) => Some(export.device.outages()),
                // Other features add further variants.
                #[allow(unreachable_patterns)]
                _ => None,
            }
        }
    }

    impl Cause for blkmq_remote::OpenError {}
}

/// Images of Ceph clusters, which the feature `rbd` adds.
#[cfg(all(target_os = "linux", feature = "rbd"))]
pub(super) mod rbd {
    use crate::Layers;
    use crate::open::Cause;
    use crate::open::Opened;
    use crate::open::{Device, DeviceState, OpenError, Opener};
    use blkmq_rbd::{RBD, RbdDevice};

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || vec![RBD.name],
        open: |_, wrapped, _| {
            let Some(image) = RBD.description(wrapped.inside) else { return Ok(None) };
            let image = RbdDevice::parse(image).map_err(OpenError::Rbd)?;
            Ok(Some(Device::Rbd(wrapped.around(image))))
        },
    };

    impl Opened for Layers<RbdDevice> {
        fn state(&self, as_opened: DeviceState) -> DeviceState {
            let (bytes, is_read_only) = (self.device.state().size, self.device.is_read_only());
            DeviceState { bytes, is_read_only, ..as_opened }
        }
    }

    impl Cause for blkmq_rbd::OpenError {}
}

/// Devices made of others, which the feature `layers` adds.
#[cfg(feature = "layers")]
pub(super) mod stack {
    use crate::Layers;
    use crate::open::Cause;
    use crate::open::Opened;
    use crate::open::{Device, DeviceState, OpenError, Opener, Zeroing, open_on};
    use blkmq_buf::BufferPool;
    use blkmq_core::Finding;
    use blkmq_layer::{Kind, KindError, Stack, StackError};

    pub(in crate::open) const OPENER: Opener = Opener {
        names: || Kind::ALL.map(|kind| kind.name).into(),
        open: |_, wrapped, machine| {
            let Some(described) = Kind::parse(wrapped.inside) else { return Ok(None) };
            let (kind, legs) = described.map_err(OpenError::Layer)?;
            let legs = legs.into_iter().enumerate().filter(|(leg, _)| kind.has(*leg));
            let legs = legs.map(|(_, leg)| open_on(leg, machine)).collect::<Result<_, _>>()?;
            let stack = Stack::new(kind, legs).map_err(OpenError::Stack)?;
            Ok(Some(Device::Stack(wrapped.around(stack))))
        },
    };

    impl Opened for Layers<Stack<Device>> {
        fn state(&self, as_opened: DeviceState) -> DeviceState {
            let legs = self.device.legs();
            let any = |one: fn(&DeviceState) -> bool| legs.iter().any(|leg| one(&leg.state()));
            DeviceState {
                bytes: self.device.bytes_left(|leg| leg.state().bytes),
                is_read_only: any(|leg| leg.is_read_only),
                is_removed: any(|leg| leg.is_removed),
                ..as_opened
            }
        }

        fn zeroing(&self) -> Zeroing {
            let legs = self.device.legs();
            let all = |one: fn(&Zeroing) -> bool| legs.iter().all(|leg| one(&leg.zeroing()));
            Zeroing { is_fast: all(|leg| leg.is_fast), keeps_room: all(|leg| leg.keeps_room) }
        }

        fn moves_data(&self) -> bool {
            self.device.legs().iter().all(Device::moves_data)
        }

        fn take_findings(&self) -> Vec<Finding> {
            let mut found = self.device.take_findings();
            for (number, leg) in self.device.legs().iter().enumerate() {
                found.extend(leg.take_findings().into_iter().map(|it| it.of_leg(number)));
            }
            found
        }

        fn register(&mut self, pool: &BufferPool) {
            self.device.legs_mut().iter_mut().for_each(|leg| leg.register(pool));
        }
    }

    impl Cause for KindError {}
    impl Cause for StackError {}
}
