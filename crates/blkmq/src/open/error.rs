//! Why a device was not opened, or its service not started.

use blkmq_core::DeviceError;
use blkmq_engine::AUTO;
use blkmq_runtime::ServiceError;
#[cfg(all(not(target_os = "linux"), feature = "uring"))]
use blkmq_threads::OpenError as FileError;
#[cfg(all(target_os = "linux", feature = "uring"))]
use blkmq_uring::OpenError as FileError;
use std::error::Error;
use std::{fmt, io};

/// Why a device could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The description names an unknown device, one that this build is without, or a parameter that the device does not
    /// have; the text lists the accepted names.
    Description(DeviceError),
    /// The file or block device cannot be opened.
    #[cfg(feature = "uring")]
    File(FileError),
    /// The export of an NBD server cannot be opened.
    #[cfg(all(target_os = "linux", feature = "nbd"))]
    Nbd(blkmq_remote::OpenError),
    /// The image of a Ceph cluster cannot be opened.
    #[cfg(all(target_os = "linux", feature = "rbd"))]
    Rbd(blkmq_rbd::OpenError),
    /// The description of a layer is wrong.
    #[cfg(feature = "layers")]
    Layer(blkmq_layer::KindError),
    /// The layer does not accept these devices.
    #[cfg(feature = "layers")]
    Stack(blkmq_layer::StackError),
}

/// The error of a kind of device.
pub(super) trait Cause: Error {
    fn is_unavailable(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        false
    }
}

impl Cause for DeviceError {}

impl OpenError {
    fn cause(&self) -> &(dyn Cause + 'static) {
        match self {
            Self::Description(e) => e,
            #[cfg(feature = "uring")]
            Self::File(e) => e,
            #[cfg(all(target_os = "linux", feature = "nbd"))]
            Self::Nbd(e) => e,
            #[cfg(all(target_os = "linux", feature = "rbd"))]
            Self::Rbd(e) => e,
            #[cfg(feature = "layers")]
            Self::Layer(e) => e,
            #[cfg(feature = "layers")]
            Self::Stack(e) => e,
        }
    }

    /// Returns true if this machine or container offers no io_uring, or none that is recent enough.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.cause().is_unavailable()
    }

    /// Returns true if the file or block device is in use elsewhere, so that it may open later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.cause().is_busy()
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause())
    }
}

impl From<DeviceError> for OpenError {
    fn from(e: DeviceError) -> Self {
        Self::Description(e)
    }
}

/// Why [`Device::start`](crate::Device::start) did not start a service, or [`scheduler`](crate::scheduler()) found none.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// There is no scheduler of this name, or this build is without it; the text names the feature that adds it.
    Scheduler(String),
    /// The hardware queues of the device cannot be created.
    Queues(io::Error),
    /// The service cannot start.
    Service(ServiceError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(name) => f.write_str(&blkmq_sched::registry::refusal(name, &[AUTO])),
            Self::Queues(e) => e.fmt(f),
            Self::Service(e) => e.fmt(f),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Scheduler(_) => None,
            Self::Queues(e) => Some(e),
            Self::Service(e) => Some(e),
        }
    }
}
