//! [`Layers`]: a real or layered device, and the fault layers around it. Independent of the parameters of both.

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
    pub(crate) device: D,
    /// The outermost layer first.
    faults: Vec<FaultsParams>,
    pub(crate) shape: DeviceShape,
    pub(crate) notes: Vec<String>,
}

/// The fault layers at the beginning of a description, and the description inside them.
pub(crate) struct Wrapped<'a> {
    faults: Vec<FaultsParams>,
    notes: Vec<String>,
    pub(crate) inside: &'a str,
}

impl<'a> Wrapped<'a> {
    /// Reads the fault layers of `text`.
    ///
    /// # Errors
    /// If one of them has a parameter that does not exist, or an impossible value.
    pub(crate) fn parse(text: &'a str) -> Result<Self, DeviceError> {
        let (mut faults, mut notes, mut inside) = (Vec::new(), Vec::new(), text.trim());
        while let Some(around) = Around::parse(inside)? {
            faults.push(around.params);
            notes.extend(around.notes);
            inside = around.inside.trim();
        }
        Ok(Self { faults, notes, inside })
    }

    /// The layers around `device`.
    pub(crate) fn around<D: BlockDevice<AlignedBuf>>(&self, device: D) -> Layers<D> {
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
