//! The fault layers of a build without the feature `models`: there are none.

use blkmq_core::DeviceError;
use blkmq_engine::{DeviceQueues, DeviceShape};

#[derive(Clone, Debug)]
pub(crate) enum FaultsParams {}

pub(crate) struct Around<'a> {
    pub(crate) params: FaultsParams,
    pub(crate) notes: Vec<String>,
    pub(crate) inside: &'a str,
}

impl FaultsParams {
    pub(crate) fn shape(&self, _: &DeviceShape) -> DeviceShape {
        match *self {}
    }

    pub(crate) fn wrap<P>(&self, _: &DeviceShape, _: DeviceQueues<P>) -> DeviceQueues<P> {
        match *self {}
    }
}

impl Around<'_> {
    /// Returns `None`: `faults` is the name of a device that is left out.
    pub(crate) fn parse(_: &str) -> Result<Option<Self>, DeviceError> {
        Ok(None)
    }
}
