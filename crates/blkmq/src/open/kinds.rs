//! The kinds of devices, each in a module of the feature that adds it: how it is opened, and the queries that it
//! answers. [`Layers`] is a real or layered device, and the fault layers around it, independent of the parameters of
//! both.

use blkmq_buf::{AlignedBuf, IoBuf};
use blkmq_core::DeviceError;
#[cfg(feature = "models")]
use blkmq_device::{
    faults::{FaultsParams, Faulty},
    registry::Around,
};
use blkmq_engine::{BlockDevice, DeviceQueues, DeviceShape, Join};
#[cfg(not(feature = "models"))]
use no_faults::{Around, FaultsParams, FaultsParams as Faulty};
use std::io;

/// A device that is not in the registry of virtual devices, and the fault layers around it.
#[derive(Clone, Debug)]
pub struct Layers<D> {
    device: D,
    /// The outermost layer first.
    faults: Vec<FaultsParams>,
    pub(super) shape: DeviceShape,
    pub(super) notes: Vec<String>,
}

/// The fault layers at the beginning of a description, and the description inside them.
pub(super) struct Wrapped<'a> {
    faults: Vec<FaultsParams>,
    notes: Vec<String>,
    pub(super) inside: &'a str,
}

impl<'a> Wrapped<'a> {
    /// Reads the fault layers of `text`.
    ///
    /// # Errors
    /// If one of them has a parameter that does not exist, or an impossible value.
    pub(super) fn parse(text: &'a str) -> Result<Self, DeviceError> {
        let (mut faults, mut notes, mut inside) = (Vec::new(), Vec::new(), text.trim());
        while let Some(around) = Around::parse(inside)? {
            faults.push(around.params);
            notes.extend(around.notes);
            inside = around.inside.trim();
        }
        Ok(Self { faults, notes, inside })
    }

    /// The layers around `device`.
    fn around<D: BlockDevice<AlignedBuf>>(&self, device: D) -> Layers<D> {
        let (faults, mut notes) = (self.faults.clone(), self.notes.clone());
        notes.extend(device.notes().iter().cloned());
        let inner = device.shape();
        let shape = faults.iter().rev().fold(inner, |shape, params| params.shape(&shape));
        Layers { device, faults, shape, notes }
    }
}

impl<D: BlockDevice<AlignedBuf>> From<D> for Layers<D> {
    /// The device itself, without a layer around it.
    fn from(device: D) -> Self {
        Wrapped { faults: Vec::new(), notes: Vec::new(), inside: "" }.around(device)
    }
}

impl<D> Layers<D> {
    /// Returns the device itself, without the fault layers around it.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<P: IoBuf, D: BlockDevice<P>> BlockDevice<P> for Layers<D> {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        // A fault layer reads only fields of the shape that no fault layer changes, so all take the outer shape.
        let around = |queues, params| Faulty::wrap(params, &self.shape, queues);
        Ok(self.faults.iter().rev().fold(self.device.queues()?, around))
    }

    /// Joins no device that has a fault layer.
    fn join(all: &[(&Self, u64)], by: Join) -> Option<Box<dyn BlockDevice<P>>> {
        if all.iter().any(|(it, _)| !it.faults.is_empty()) {
            return None;
        }
        D::join(&Vec::from_iter(all.iter().map(|(it, sectors)| (&it.device, *sectors))), by)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The fault layers of a build without the feature `models`: there are none.
#[cfg(not(feature = "models"))]
mod no_faults {
    use blkmq_core::DeviceError;
    use blkmq_engine::{DeviceQueues, DeviceShape};

    #[derive(Clone, Debug)]
    pub(super) enum FaultsParams {}

    pub(super) struct Around<'a> {
        pub(super) params: FaultsParams,
        pub(super) notes: Vec<String>,
        pub(super) inside: &'a str,
    }

    impl FaultsParams {
        pub(super) fn shape(&self, _: &DeviceShape) -> DeviceShape {
            match *self {}
        }

        pub(super) fn wrap<P>(&self, _: &DeviceShape, _: DeviceQueues<P>) -> DeviceQueues<P> {
            match *self {}
        }
    }

    impl Around<'_> {
        /// Returns `None`: `faults` is the name of a device that is left out.
        pub(super) fn parse(_: &str) -> Result<Option<Self>, DeviceError> {
            Ok(None)
        }
    }
}

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
    use super::Layers;
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
    use super::Layers;
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
    use super::Layers;
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
    use super::Layers;
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
    use super::Layers;
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
