//! [`RbdDevice`]: an image of a cluster, which makes hardware queues, and the properties of the image that the engine
//! needs.

use crate::OpenError;
use crate::options::{ImageSpec, Options};
use crate::queue::{ImageState, Mine, RbdQueue, Replies, TICKETS, Watched};
use crate::sys::{Api, Facts, Flight, Image};
use blkmq_buf::IoBuf;
use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{
    BlockDevice, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues, DeviceShape, WriteCache,
};
use std::ffi::CStr;
use std::io;
use std::sync::Arc;

/// An image of a Ceph cluster.
///
/// [`queues`](BlockDevice::queues) connects to the cluster and opens the image, once for all hardware queues.
/// `doc/rbd.md` describes the parameters, and the behaviour when the cluster stalls.
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
    /// See [`open`](Self::open); also if a word is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (spec, options) = Options::parse(text)?;
        Self::open(&spec, &options)
    }

    /// Connects to the cluster, reads the properties of the image, and disconnects. Blocks for at most
    /// `connect_timeout`.
    ///
    /// # Errors
    /// If librbd is not installed, or the cluster cannot be reached or has no such image.
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
        // OSDs that are down must not keep a program from starting.
        let looking = Options { timeout: Some(options.connect_timeout), ..options.clone() };
        let facts = connect(api, spec, &looking)?.facts()?;
        let (shape, notes) = of(&facts, &options)?;
        let watched = Arc::new(Watched::new(facts.size));
        Ok(Self { api: Functions(api), spec: spec.clone(), options, shape, notes, watched })
    }

    /// The properties of the image that the engine needs.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Returns deviations from the description, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether the device is read-only: the image is a snapshot, or was opened read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Returns changes and stalls of the image since it was opened. If librbd has reported a change, the call asks for
    /// the new size, which may wait for the cluster; hardware queues do not wait for that.
    #[must_use]
    pub fn state(&self) -> ImageState {
        self.watched.read()
    }

    /// Connects to the cluster, opens the image, and makes its hardware queues.
    ///
    /// # Errors
    /// See [`open`](Self::open); also if the image has become smaller since.
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

/// Opens the image with the settings given by `options`.
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

/// The maximum length of a read or write in bytes, if objects are longer: more merging gains nothing and costs latency.
const LONGEST: u64 = 4 << 20;
/// The maximum length of a discard or a range of zeroes in bytes, if the objects of a stripe are longer.
const LONGEST_RANGE: u64 = 1 << 30;
/// The maximum number of memory segments of a request, `IOV_MAX`.
const SEGMENTS: u16 = 1024;

/// The shape of the device, and notes for the user.
///
/// # Errors
/// If the image is shorter than a sector.
pub(crate) fn of(
    facts: &Facts,
    options: &Options,
) -> Result<(DeviceShape, Vec<String>), OpenError> {
    let sector = u64::from(SECTOR_SIZE);
    let mut notes = Vec::new();
    let rest = facts.size % sector;
    if facts.size == rest {
        return Err(OpenError::Unfit(format!(
            "the image has {} bytes; accepted: at least a sector of {sector}",
            facts.size
        )));
    }
    if rest > 0 {
        notes.push(format!("the last {rest} bytes are no whole sector and are left alone"));
    }
    // A request goes to one OSD, unless it crosses the boundary of an object or a stripe unit.
    let stripe = if facts.stripe_count > 1 { facts.stripe_unit } else { facts.object_size };
    let stripe = if stripe.is_power_of_two() && stripe >= 4096 { stripe } else { 0 };
    // Linux's rbd driver accepts as much in one request.
    let set = facts.object_size.saturating_mul(facts.stripe_count.max(1)).max(sector);
    let sectors = |bytes: u64| (bytes / sector) as u32;
    let granularity = facts.discard_granularity.min(facts.object_size);
    let limits = Limits {
        // Drives in use write this unit without reading it first.
        physical_block_size: 4096,
        max_sectors: sectors(set.min(LONGEST)),
        max_discard_sectors: sectors(set.min(LONGEST_RANGE)),
        discard_granularity: (granularity / sector * sector).max(sector) as u32,
        max_write_zeroes_sectors: sectors(set.min(LONGEST_RANGE)),
        max_segments: SEGMENTS,
        max_segment_size: LONGEST as u32,
        chunk_sectors: u32::try_from(stripe / sector).unwrap_or(0),
        capacity: facts.size / sector,
        ..Limits::default()
    };
    let shape = DeviceShape {
        hw_queues: options.hw_queues,
        hw_queue_depth: options.hw_queue_depth,
        shared_tags: false,
        budget: None,
        limits,
        // Always a write-back cache, whatever `cache` says: the configuration of an image or a pool may enable the
        // cache, and without one a flush costs librbd nothing. Librbd has no FUA.
        cache: WriteCache::Back { fua: false },
        timeout: DEFAULT_TIMEOUT,
    };
    Ok((shape, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        size: 1 << 30,
        object_size: 4 << 20,
        stripe_unit: 4 << 20,
        stripe_count: 1,
        discard_granularity: 65536,
    };

    fn limits(facts: Facts) -> Limits {
        of(&facts, &Options::default()).expect("an image").0.limits
    }

    #[test]
    fn limits_come_from_objects() {
        let plain = limits(FACTS);
        assert_eq!(
            (plain.chunk_sectors, plain.max_sectors, plain.max_discard_sectors),
            (8192, 8192, 8192)
        );
        assert_eq!((plain.discard_granularity, plain.capacity), (65536, 1 << 21));
        let small = limits(Facts { object_size: 8192, stripe_unit: 8192, ..FACTS });
        assert_eq!(
            (small.chunk_sectors, small.max_sectors, small.discard_granularity),
            (16, 16, 8192)
        );
        let striped = limits(Facts { stripe_unit: 65536, stripe_count: 16, ..FACTS });
        assert_eq!((striped.chunk_sectors, striped.max_discard_sectors), (128, 16 * 8192));
        for limits in [plain, small, striped] {
            assert_eq!(limits.validate(), Ok(()));
        }
    }

    #[test]
    fn a_part_of_a_sector_is_left_alone() {
        let facts = Facts { size: 1000, ..FACTS };
        let (shape, notes) = of(&facts, &Options::default()).expect("a sector");
        assert_eq!((shape.limits.capacity, notes.len()), (1, 1));
        assert!(of(&Facts { size: 500, ..FACTS }, &Options::default()).is_err());
    }
}
