//! [`NbdDevice`]: an export of a server, from which hardware queues are made.

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
/// Each hardware queue has a connection of its own, which is made anew when it is lost. That of the first one has opened
/// the device; the others are made by [`queues`](BlockDevice::queues). `doc/nbd.md` has the parameters, and the
/// promises for a server that goes away.
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
    /// As [`open`](Self::open), and for a word that is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (uri, options) = Options::parse(text)?;
        Self::open(&uri, &options)
    }

    /// Connects to the server and agrees on the export. The first hardware queue takes the connection over. Blocks, 10 seconds at most for each answer of the
    /// server, and as long as it takes to look up the name of a host.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or has an export that cannot be a device.
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

    /// The properties of the export that the engine must know.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Deviations from the description: one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether nothing can be written: the server says so, or the description did.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Returns whether the server writes zeroes in less time than other bytes.
    #[must_use]
    pub fn has_fast_zeroes(&self) -> bool {
        self.target.agreed.details.flags.contains(TransmissionFlags::SEND_FAST_ZERO)
    }

    /// The connections that were lost so far, of all queues around this device.
    #[must_use]
    pub fn outages(&self) -> Outages {
        self.target.outages.read()
    }

    /// The stored and unstored stretches of `range`, which is in bytes and in the export: at least one, at most `most`, and
    /// so perhaps not all of it. The first question makes a connection for those to come. Blocks until the server has
    /// answered, or has been silent for a second; all of the range is stored if it does not tell, or if another
    /// connection's writes might be unknown to the one that is asked (no multi-conn).
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<Extent> {
        let stored = || vec![Extent { end: range.end, is_hole: false }];
        self.holes.find(&self.target, range.clone(), most).unwrap_or_else(stored)
    }

    /// A connection for each hardware queue.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or no longer has the export that was opened.
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
