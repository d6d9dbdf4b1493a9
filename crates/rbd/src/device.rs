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

    fn open_by(api: &'static Api, spec: &ImageSpec, options: &Options) -> Result<Self, OpenError> {
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
    use crate::sys::fake::{FAKE, OBJECT, Store};
    use blkmq_buf::AlignedBuf;
    use blkmq_core::{Bytes, IoError, Rng};
    use blkmq_engine::Io;
    use blkmq_runtime::{Client, Service};

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

    const BLOCK: usize = 4096;
    const SIZE: usize = 2 << 20;
    const BLOCKS: u64 = (SIZE / BLOCK) as u64;

    fn open(store: &str, options: &str) -> Result<RbdDevice, OpenError> {
        let (spec, options) = Options::parse(&format!("pool/image,conf={store}{options}"))?;
        RbdDevice::open_by(&FAKE, &spec, &options)
    }

    fn start(store: &str, options: &str) -> (RbdDevice, Service<AlignedBuf>) {
        let device = open(store, options).expect("it is there");
        let config = device.config().expect("queues");
        (device, Service::start(config).expect("a service"))
    }

    /// Returns whether the store has no open handles.
    fn is_closed(store: &Store) -> bool {
        store.state().open == [0; 4]
    }

    /// The bytes of block `n` in round `round`.
    fn pattern(n: u64, round: u64) -> AlignedBuf {
        let mut buf = AlignedBuf::new(BLOCK);
        let mut rng = Rng::new(n << 32 | round);
        let words = buf.as_mut_slice().chunks_exact_mut(8);
        words.for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        buf
    }

    /// Writes every block in random order, and reads all of them back, in plugs.
    fn round_trip(client: &mut Client<AlignedBuf>, round: u64, blocks: u64) {
        let mut order = Vec::from_iter(0..blocks);
        let mut rng = Rng::new(round);
        (1..order.len()).rev().for_each(|n| order.swap(n, rng.below(n as u64 + 1) as usize));
        // Neighbouring blocks, which merge into requests of several pieces.
        order[..blocks as usize / 4].sort_unstable();
        for is_write in [true, false] {
            for batch in order.chunks(24) {
                for n in batch {
                    let at = Bytes(n * BLOCK as u64);
                    let io = if is_write {
                        Io::write(at, pattern(*n, round))
                    } else {
                        Io::read(at, AlignedBuf::new(BLOCK))
                    };
                    client.push(io.cookie(*n)).expect("there is credit");
                }
                let all = batch.len() as u32;
                let done = client.wait(all, all, |mut io| {
                    assert_eq!(io.result, Ok(()), "block {}", io.cookie);
                    let mut expected = pattern(io.cookie, round);
                    assert!(io.payload.as_mut_slice() == expected.as_mut_slice(), "{}", io.cookie);
                });
                assert_eq!(done, all);
            }
        }
    }

    #[test]
    fn blocks_come_back_through_one_hardware_queue_and_through_several() {
        for (name, options) in [("one", ""), ("four", ",hw_queues=4,hw_queue_depth=3")] {
            let store = Store::new(name, SIZE);
            let (device, service) = start(name, options);
            for round in 0..2 {
                round_trip(&mut service.client().expect("a client"), round, BLOCKS);
            }
            assert_eq!(store.state().bytes[..BLOCK], *pattern(0, 1).as_mut_slice());
            assert_eq!(device.state().given_up, 0);
            drop(service);
            assert!(is_closed(&store), "{:?}", store.state().open);
        }
    }

    /// A hardware queue is signalled, and its threads wake up, when another queue finds its replies.
    #[test]
    fn replies_reach_the_hardware_queue_that_they_belong_to() {
        let store = Store::new("sorted", SIZE);
        let device = open("sorted", ",hw_queues=4").expect("it is there");
        let mut config = device.config().expect("queues");
        config.submitters = 4;
        let service = Service::<AlignedBuf>::start(config).expect("a service");
        store.state().is_stalled = true;
        std::thread::scope(|scope| {
            for n in 0..4 {
                let mut client = service.client().expect("a client");
                scope.spawn(move || {
                    client.push(Io::write(Bytes(n * 65536), pattern(n, 9))).expect("credit");
                    assert_eq!(client.wait(1, 1, |io| assert_eq!(io.result, Ok(()))), 1);
                });
            }
            while store.waiting() < 4 {
                std::thread::yield_now();
            }
            store.release();
        });
        drop(service);
        assert!(is_closed(&store));
    }

    #[test]
    fn discards_zeroes_and_flushes_reach_the_image() {
        let store = Store::new("others", SIZE);
        store.state().bytes.fill(7);
        let (device, service) = start("others", "");
        let limits = device.shape().limits;
        assert_eq!(
            (limits.chunk_sectors, limits.discard_granularity),
            ((OBJECT / 512) as u32, 65536)
        );
        let mut disk = service.blocking().expect("a client");
        for io in [
            Io::discard(Bytes(0)..Bytes(65536)),
            Io::write_zeroes(Bytes(131_072)..Bytes(135_168)),
            Io::flush(),
            Io::write(Bytes(200_704), pattern(3, 3)).fua(),
        ] {
            assert_eq!(disk.call(io).expect("taken").0, Ok(()));
        }
        let state = store.state();
        let is =
            |range: std::ops::Range<usize>, byte| state.bytes[range].iter().all(|it| *it == byte);
        assert!(is(0..65536, 0) && is(65536..131_072, 7) && is(131_072..135_168, 0));
        assert!(is(135_168..200_704, 7));
        // One explicit flush, and one that makes the last write durable.
        assert_eq!(state.flushes, 2);
    }

    #[test]
    fn errors_keep_their_number_and_free_everything() {
        let store = Store::new("errors", SIZE);
        let (_, service) = start("errors", "");
        let mut disk = service.blocking().expect("a client");
        let mut read = || disk.call(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("taken").0;
        for errno in [libc::ENOENT, libc::ESHUTDOWN, libc::ENOSPC, libc::EPERM] {
            store.state().answers = [errno].into();
            assert_eq!(read(), Err(IoError(errno as u16)));
            store.state().refuses = Some(errno);
            assert_eq!(read(), Err(IoError(errno as u16)));
        }
        assert_eq!(read(), Ok(()));
        drop((disk, service));
        assert!(is_closed(&store));
    }

    #[test]
    fn a_resize_is_noticed_and_the_new_end_is_one() {
        let store = Store::new("resized", SIZE);
        let (device, service) = start("resized", "");
        let mut disk = service.blocking().expect("a client");
        let last = Bytes((SIZE - BLOCK) as u64);
        let mut read = |at| disk.call(Io::read(at, AlignedBuf::new(BLOCK))).expect("taken").0;
        assert_eq!((read(last), device.state().resized), (Ok(()), 0));
        store.resize(SIZE / 2);
        assert_eq!(device.state().resized, 1, "no I/O is needed for that");
        assert_eq!((read(Bytes(0)), read(last)), (Ok(()), Err(IoError::INVALID)));
        let state = device.state();
        assert_eq!((state.size, state.resized), (SIZE as u64 / 2, 1));
        assert!(device.queues::<AlignedBuf>().is_err(), "it has become smaller");
        drop(service);
        store.resize(SIZE * 2);
        assert_eq!(device.queues::<AlignedBuf>().expect("larger").len(), 1);
    }

    /// Requests in flight when the service ends are returned, with their memory, when the cluster answers.
    #[test]
    fn the_end_waits_for_what_is_in_flight() {
        let store = Store::new("ending", SIZE);
        let (device, service) = start("ending", "");
        let mut client = service.client().expect("a client");
        store.state().is_stalled = true;
        for n in 0..8 {
            client.push(Io::read(Bytes(n * 65536), AlignedBuf::new(BLOCK))).expect("credit");
        }
        client.flush();
        assert!(store.waiting() > 0);
        drop(client);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(service));
            while store.waiting() < 8 {
                std::thread::yield_now();
            }
            store.release();
        });
        assert_eq!(device.state().given_up, 0);
        assert!(is_closed(&store), "{:?}", store.state().open);
    }

    /// An unresponsive cluster does not keep a program from ending. Memory that the cluster may still write to is
    /// leaked.
    #[test]
    fn the_end_does_not_wait_for_ever() {
        let store = Store::new("gone", SIZE);
        let (device, service) = start("gone", "");
        let mut client = service.client().expect("a client");
        store.state().is_stalled = true;
        client.push(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("credit");
        client.flush();
        drop((client, service));
        assert_eq!(device.state().given_up, 1);
        assert_eq!(store.state().open, [1; 4]);
        // Too late, but the memory still exists.
        store.state().bytes.fill(1);
        store.release();
    }

    /// The loss of one image does not affect another.
    #[test]
    fn a_stalled_image_does_not_touch_another() {
        let (stalled, sound) = (Store::new("stalled", SIZE), Store::new("sound", SIZE));
        let (_, first) = start("stalled", "");
        let (_, second) = start("sound", "");
        stalled.state().is_stalled = true;
        let mut client = first.client().expect("a client");
        client.push(Io::read(Bytes(0), AlignedBuf::new(BLOCK))).expect("credit");
        client.flush();
        round_trip(&mut second.client().expect("a client"), 1, 64);
        drop(second);
        assert!(is_closed(&sound));
        stalled.release();
        assert_eq!(client.wait(1, 1, |io| assert_eq!(io.result, Ok(()))), 1);
    }

    #[test]
    fn a_snapshot_and_a_device_that_may_not_write_refuse_to() {
        let _store = Store::new("readonly", SIZE);
        let snapshot = ImageSpec { snapshot: Some("s".into()), ..spec("pool/image") };
        let options = Options { conf: Some("readonly".into()), ..Options::default() };
        let snapshot = RbdDevice::open_by(&FAKE, &snapshot, &options).expect("a snapshot");
        for device in [snapshot, open("readonly", ",readonly=1").expect("it is there")] {
            let service = Service::start(device.config().expect("queues")).expect("a service");
            let mut disk = service.blocking().expect("a client");
            let write = disk.call(Io::write(Bytes(0), pattern(0, 0))).expect("taken").0;
            assert_eq!(write, Err(IoError(libc::EROFS as u16)));
            assert_eq!(disk.call(Io::flush()).expect("taken").0, Ok(()));
        }
    }

    fn spec(text: &str) -> ImageSpec {
        ImageSpec::parse(text).expect(text)
    }

    #[test]
    fn what_is_not_there_is_named_and_leaves_nothing_open() {
        let store = Store::new("refusals", SIZE);
        let open = |name: &str, conf: Option<&str>| {
            let options = Options { conf: conf.map(str::to_owned), ..Options::default() };
            RbdDevice::open_by(&FAKE, &spec(name), &options).expect_err(name).to_string()
        };
        let conf = Some("refusals");
        assert_eq!(open("pond/image", conf), "the cluster has no pool 'pond'");
        assert_eq!(open("pool/imago", conf), "there is no image 'pool/imago'");
        assert!(open("pool/image", Some("/nowhere")).starts_with("/nowhere: No such file"));
        assert!(open("pool/image", None).contains("accepted: conf=PATH"));
        assert!(is_closed(&store));
        store.resize(100);
        assert!(open("pool/image", conf).contains("the image has 100 bytes"));
        assert!(is_closed(&store));
    }

    #[test]
    fn the_cache_and_the_times_are_settings_of_the_client() {
        let store = Store::new("settings", SIZE);
        let device =
            open("settings", ",cache=writeback,timeout=7,connect_timeout=9").expect("there");
        let of = |name: &str| {
            let found = store.state().settings.iter().find(|(it, _)| it == name).cloned();
            found.expect(name).1
        };
        assert_eq!((of("rbd_cache"), of("rbd_cache_policy")), ("true".into(), "writeback".into()));
        // Opening an image has its own time limit, however long an I/O may take.
        assert_eq!(
            (of("client_mount_timeout"), of("rados_osd_op_timeout")),
            ("9".into(), "9".into())
        );
        let queues = device.queues::<AlignedBuf>().expect("queues");
        assert_eq!(of("rados_osd_op_timeout"), "7");
        drop(queues);
        let _: Arc<Store> = store;
    }
}
