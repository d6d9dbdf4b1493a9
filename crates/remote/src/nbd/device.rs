//! [`NbdDevice`]: an export of a server, which makes hardware queues.

use super::error::OpenError;
use super::holes::Holes;
use super::link::Link;
use super::options::Options;
use super::queue::NbdQueue;
use super::shape;
use super::target::{Outages, Target};
use super::uri::Uri;
use blkmq_buf::IoBuf;
use blkmq_core::Extent;
use blkmq_engine::{BlockDevice, DeviceQueue, DeviceQueues, DeviceShape};
use blkmq_nbd::TransmissionFlags;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// An export of an NBD server.
///
/// Each hardware queue has its own connection, which is re-established when it is lost. The first queue takes over the
/// connection that opened the device; [`queues`](BlockDevice::queues) makes the others. `doc/nbd.md` describes the
/// parameters, and the guarantees if the server goes away.
#[derive(Clone, Debug)]
pub struct NbdDevice {
    target: Arc<Target>,
    holes: Arc<Holes>,
    options: Options,
    shape: DeviceShape,
    notes: Vec<String>,
}

impl NbdDevice {
    /// Opens the export that `text` describes: `URI[,KEY=VALUE]...`.
    ///
    /// # Errors
    /// See [`open`](Self::open); also if a word is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (uri, options) = Options::parse(text)?;
        Self::open(&uri, &options)
    }

    /// Connects to the server and negotiates the export. The first hardware queue takes over the connection. Blocks for
    /// the lookup of the host name, and for at most 10 seconds for each answer of the server.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or the export cannot be a device.
    pub fn open(uri: &Uri, options: &Options) -> Result<Self, OpenError> {
        if uri.tls && cfg!(not(feature = "tls")) {
            return Err(OpenError::NoTls);
        }
        let target = Target::find(uri)?;
        let (shape, notes) = shape::of(&target.agreed, options)?;
        let mut options = options.clone();
        options.readonly |= target.agreed.details.flags.contains(TransmissionFlags::READ_ONLY);
        Ok(Self { target: Arc::new(target), holes: Arc::default(), options, shape, notes })
    }

    /// The properties of the export that the engine needs.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Returns deviations from the description, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether the device is read-only, by the server or by the description.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Returns whether the server writes zeroes faster than data.
    #[must_use]
    pub fn has_fast_zeroes(&self) -> bool {
        self.target.agreed.details.flags.contains(TransmissionFlags::SEND_FAST_ZERO)
    }

    /// The lost connections so far, over all queues of this device.
    #[must_use]
    pub fn outages(&self) -> Outages {
        self.target.outages.read()
    }

    /// The allocation of `range`, a range of bytes within the export, as at least one and at most `most` extents, which
    /// may end before the range. The first call makes a connection for all calls. Blocks until the server has answered,
    /// or has been silent for a second. The whole range is reported as stored if the server does not answer, or if it
    /// does not promise that writes on other connections are visible (multi-conn).
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<Extent> {
        let stored = || vec![Extent { end: range.end, is_hole: false }];
        self.holes.find(&self.target, range.clone(), most).unwrap_or_else(stored)
    }

    /// Makes a connection for each hardware queue.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or no longer has the export as it was opened.
    pub fn queues<P: IoBuf>(&self) -> io::Result<DeviceQueues<P>> {
        let queue = |_| -> Result<Box<dyn DeviceQueue<P>>, OpenError> {
            let welcome = self.target.connect_queue()?;
            shape::check_same(&self.target.agreed, &welcome.agreed)?;
            let style = welcome.agreed.style;
            let link = Link::new(Arc::clone(&self.target), welcome)?;
            Ok(Box::new(NbdQueue::new(link, style, &self.options)))
        };
        (0..self.shape.hw_queues).map(queue).collect::<Result<_, _>>().map_err(io::Error::other)
    }
}

impl<P: IoBuf> BlockDevice<P> for NbdDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        self.queues()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
