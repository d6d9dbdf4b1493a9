//! [`RbdDevice`]: an image of a cluster, from which hardware queues are made.

use crate::OpenError;
use crate::options::Options;
use crate::queue::RbdQueue;
use crate::replies::{Mine, Replies, TICKETS};
use crate::shape;
use crate::spec::ImageSpec;
use crate::state::{ImageState, Watched};
use crate::sys::{Api, Flight, Image};
use blkmq_buf::IoBuf;
use blkmq_core::Nanos;
use blkmq_engine::{BlockDevice, DeviceQueue, DeviceQueues, DeviceShape};
use std::ffi::CStr;
use std::io;
use std::sync::Arc;

/// An image of a Ceph cluster.
///
/// [`queues`](BlockDevice::queues) makes a connection to the cluster and opens the image, once for all hardware queues.
/// `doc/rbd.md` has the parameters, and the promises when the cluster stalls.
#[derive(Clone, Debug)]
pub struct RbdDevice {
    api: Functions,
    spec: ImageSpec,
    options: Options,
    shape: DeviceShape,
    notes: Vec<String>,
    watched: Arc<Watched>,
}

#[derive(Clone, Copy)]
struct Functions(&'static Api);

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("librbd")
    }
}

impl RbdDevice {
    /// Opens the image that `text` describes: `POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and for a word that is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (spec, options) = Options::parse(text)?;
        Self::open(&spec, &options)
    }

    /// Connects to the cluster, looks at the image, and disconnects. Blocks, as long as `connect_timeout` allows.
    ///
    /// # Errors
    /// If this machine has no librbd, or the cluster cannot be reached or has no such image.
    pub fn open(spec: &ImageSpec, options: &Options) -> Result<Self, OpenError> {
        Self::open_by(Api::get()?, spec, options)
    }

    pub(crate) fn open_by(
        api: &'static Api,
        spec: &ImageSpec,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let mut options = options.clone();
        options.readonly |= spec.snapshot.is_some();
        // OSDs that are away must not keep a program from starting.
        let looking = Options { timeout: Some(options.connect_timeout), ..options.clone() };
        let facts = connect(api, spec, &looking)?.facts()?;
        let (shape, notes) = shape::of(&facts, &options)?;
        let watched = Arc::new(Watched::new(facts.size));
        Ok(Self { api: Functions(api), spec: spec.clone(), options, shape, notes, watched })
    }

    /// The properties of the image that the engine must know.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Deviations from the description: one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether nothing can be written: the image is a snapshot, or was opened for reading.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Changes and stalls of the image since it was opened. Where librbd has noted a change, it is asked for the new size,
    /// which may wait for the cluster; a hardware queue never waits for that.
    #[must_use]
    pub fn state(&self) -> ImageState {
        self.watched.read()
    }

    /// Connects to the cluster, opens the image, and makes its hardware queues.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the image has become smaller since.
    pub fn queues<P: IoBuf>(&self) -> io::Result<DeviceQueues<P>> {
        let image = connect(self.api.0, &self.spec, &self.options).map_err(io::Error::other)?;
        let facts = image.facts().map_err(io::Error::other)?;
        if facts.size >> 9 < self.shape.limits.capacity {
            let text = format!("the image {} has become smaller since it was opened", self.spec);
            return Err(io::Error::other(OpenError::Unfit(text)));
        }
        let image = Arc::new(image);
        self.watched.add(&image);
        let replies = Replies::new(Arc::clone(&image), self.shape.hw_queues)?;
        let queue = |number: u16| -> io::Result<Box<dyn DeviceQueue<P>>> {
            let number = usize::from(number);
            let flight =
                Flight::new(Arc::clone(&image), self.options.hw_queue_depth, number * TICKETS);
            let (mine, watched) = (Mine::new(&replies, number)?, Arc::clone(&self.watched));
            Ok(Box::new(RbdQueue::new(flight, mine, self.options.readonly, watched)))
        };
        (0..self.shape.hw_queues).map(queue).collect()
    }
}

/// Opens the image with the settings that `options` stand for.
fn connect(api: &'static Api, spec: &ImageSpec, options: &Options) -> Result<Image, OpenError> {
    let (has_cache, policy) = options.cache.settings();
    let seconds = |time: Nanos| (time.0 / 1_000_000_000).to_string();
    let settings: [(&'static CStr, String); 4] = [
        (c"rbd_cache", has_cache.to_owned()),
        (c"rbd_cache_policy", policy.to_owned()),
        (c"client_mount_timeout", seconds(options.connect_timeout)),
        (c"rados_osd_op_timeout", options.timeout.map_or_else(|| "0".to_owned(), seconds)),
    ];
    let login = (options.id.as_str(), options.conf.as_deref());
    Image::open(api, spec, login, &settings, options.readonly)
}

impl<P: IoBuf> BlockDevice<P> for RbdDevice {
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
