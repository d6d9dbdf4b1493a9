//! [`UringDevice`]: an open file with its limits, from which hardware queues are made. [`JoinedFiles`]: several files
//! as one device, with a ring for each client that has all of them. [`Requests`]: requests as work for the threads of
//! `blkmq-threads`, where io_uring is forbidden.

use crate::OpenError;
use crate::file::{self, FileState};
use crate::options::{DEFAULT_THREADS, Options};
use crate::parts::{self, Files, Kind, Order, Part, ZeroBy};
use crate::queue::{Origin, UringQueue};
use crate::request::Request;
use crate::ring::Ring;
use crate::target::{self, Target};
use blkmq_buf::{BufferPool, IoBuf};
use blkmq_core::{Extent, IoResult, SECTOR_SIZE};
use blkmq_engine::{
    BioTable, BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape, Inflight, Join,
};
use blkmq_threads::{Pool, Source, Step, ThreadQueue, Work};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An open file or block device.
///
/// # How to use it
///
/// [`open`](Self::open) it, give it the pools of buffers that the kernel should map in advance
/// ([`register`](Self::register)), then build queues around its [`queues`](Self::queues) and [`shape`](Self::shape),
/// one after another or at the same time.
#[derive(Clone, Debug)]
pub struct UringDevice {
    /// The properties that the engine must know.
    pub shape: DeviceShape,
    /// Deviations from the options, a sentence each, for the user.
    pub notes: Vec<String>,
    /// In the order of their places; at least one.
    parts: Vec<Part>,
    options: Options,
    pools: Vec<BufferPool>,
}

impl UringDevice {
    /// Opens a file or block device. Where io_uring is forbidden, missing or too old, or there is no memory for a ring,
    /// threads do the I/O, and a note names the cause. If `options.size_bytes` is given, creates or extends the file
    /// first.
    ///
    /// A block device that is opened for writing is claimed. That fails while it is mounted or another program has
    /// claimed it, and a claimed device cannot be mounted. A regular file is locked as QEMU locks images, for one
    /// writer at a time, unless `options.locking` is off.
    ///
    /// # Errors
    /// If there is no such file, it is neither file nor block device, is empty, is in use ([`OpenError::InUse`]),
    /// cannot be opened or extended, or io_uring is available and fails.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        let mut options = options.clone();
        let mut notes = Vec::new();
        if options.threads.is_none()
            && let Err(why) = Self::check()
        {
            if options.iopoll || !why.leaves_threads() {
                return Err(why);
            }
            options.threads = Some(DEFAULT_THREADS);
            notes.push(format!(
                "{DEFAULT_THREADS} threads do the I/O (threads:PATH), which takes more CPU: {why}"
            ));
        }
        let target = Target::open(path.as_ref(), &options)?;
        let shape = DeviceShape {
            hw_queues: options.hw_queues.unwrap_or(1),
            hw_queue_depth: options.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: target.limits,
            cache: target.cache,
            timeout: DEFAULT_TIMEOUT,
        };
        notes.extend(target.notes.iter().cloned());
        let pools = Vec::new();
        Ok(Self { shape, notes, parts: vec![Part::whole(0, target)], options, pools })
    }

    /// Returns the name of the format if `path` is an image of another format than raw, which is opened only with
    /// [`raw`](Options::raw).
    #[must_use]
    pub fn image_format(path: impl AsRef<Path>) -> Option<&'static str> {
        file::format_of(path.as_ref())
    }

    /// Checks that io_uring is available.
    ///
    /// # Errors
    /// If it is not, or is too old ([`OpenError::is_unavailable`]).
    pub fn check() -> Result<(), OpenError> {
        Ring::new(1).map(|_| ())
    }

    /// Creates or extends the file as [`open`](Self::open) does, which then finds it large enough. If `stop` is set
    /// during that, the file is restored, and the error is that of a cancelled operation.
    ///
    /// # Errors
    /// As [`open`](Self::open), as far as they concern the file itself.
    pub fn lay_out(
        path: impl AsRef<Path>,
        options: &Options,
        stop: &AtomicBool,
    ) -> Result<(), OpenError> {
        target::prepare(path.as_ref(), options, stop).map(|_| ())
    }

    /// One device of several files. Each of `files` has the byte of the device at which it begins, and the bytes
    /// between files hold no data. The limits suit all of the files, and the options are those of the first one. A
    /// flush goes to all files, one after the other.
    ///
    /// # Panics
    /// If there is no file, one of `files` is such a device, a place is no multiple of 4096 bytes, or there is not at
    /// least a sector between the end of a file and the next one, in the order of `files`: requests to two files would
    /// merge.
    #[must_use]
    pub fn joined(files: Vec<(u64, Self)>) -> Self {
        let mut files = files.into_iter();
        let (first, mut joined) = files.next().expect("a device has at least one file");
        joined.parts[0].start = sector(first);
        for (at, file) in files {
            assert!(file.parts.len() == 1, "a device of several files within another one");
            let part = Part::whole(sector(at), file.parts[0].target.clone());
            let end = joined.parts.last().map_or(0, Part::end);
            assert!(part.start > end, "a file at sector {} behind one to {end}", part.start);
            joined.parts.push(part);
            for note in file.notes {
                if !joined.notes.contains(&note) {
                    joined.notes.push(note);
                }
            }
        }
        joined.shape.limits = parts::limits(&joined.parts);
        joined.shape.cache = parts::cache(&joined.parts);
        joined
    }

    /// Returns whether threads do the I/O, without io_uring.
    #[must_use]
    pub fn has_threads(&self) -> bool {
        self.options.threads.is_some()
    }

    /// Opens the device that `text` describes, `PATH[,KEY=VALUE]...`, with the parameters of [`URING`].
    ///
    /// # Errors
    /// If `text` is no such description, and as [`open`](Self::open).
    ///
    /// [`URING`]: crate::URING
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (path, options) = Options::parse(text)?;
        Self::open(path, &options)
    }

    /// Opens the device that `text` describes, `uring:PATH[,KEY=VALUE]...` or `threads:PATH[,KEY=VALUE]...`; `None` if
    /// it is another kind of device.
    ///
    /// # Errors
    /// If `text` is no valid description, and as [`open`](Self::open).
    #[must_use]
    pub fn described(text: &str) -> Option<Result<Self, OpenError>> {
        let (path, options) = match Options::described(text)? {
            Ok(described) => described,
            Err(refused) => return Some(Err(refused.into())),
        };
        Some(Self::open(path, &options))
    }

    /// The options in force: those of [`open`](Self::open), with `threads` where io_uring cannot be used.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns whether the device bypasses the page cache. A device of several files does if all of them do.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.parts.iter().all(|part| part.target.is_direct)
    }

    /// The alignment that buffers need in memory, in bytes; 1 for none.
    #[must_use]
    pub fn memory_alignment(&self) -> u32 {
        parts::alignment(&self.parts).memory
    }

    /// Returns the present state of the device, which other programs may change. Some system calls for each file.
    #[must_use]
    pub fn state(&self) -> FileState {
        let mut all = FileState {
            bytes: 0,
            is_read_only: false,
            is_removed: false,
            has_volatile_cache: false,
        };
        let mut is_short = false;
        for part in &self.parts {
            let part_now = part.target.present.look();
            let bytes = part_now.bytes;
            // The device ends at the end of the first file that is too short.
            if !is_short {
                all.bytes = part.start * u64::from(SECTOR_SIZE) + bytes;
            }
            is_short |= bytes < part.target.limits.capacity * u64::from(SECTOR_SIZE);
            all.is_read_only |= part_now.is_read_only;
            all.is_removed |= part_now.is_removed;
            all.has_volatile_cache |= part_now.has_volatile_cache;
        }
        all
    }

    /// Returns whether zeroes can be written without being sent to the device, so that it takes less time than other
    /// writes of as many bytes.
    #[must_use]
    pub fn has_fast_zeroes(&self) -> bool {
        self.parts.iter().all(|part| part.target.has_fast_zeroes)
    }

    /// Lets queues that are made later register the memory of `pool` with the kernel. It is then mapped as long as they
    /// exist, which counts towards `RLIMIT_MEMLOCK`. Buffers of other memory can be used as well. Without effect with
    /// [`fixed`](Options::fixed) off.
    pub fn register(&mut self, pool: &BufferPool) {
        if !self.pools.iter().any(|known| known.is_same(pool)) {
            self.pools.push(pool.clone());
        }
    }

    /// The stored and unstored stretches of `range`, in bytes: at least one, at most `most`, so perhaps not all of it.
    /// A block device, and a file system without holes, report that all of it is stored. O(`most`) system calls.
    ///
    /// # Errors
    /// If the kernel refuses to search the file.
    pub fn extents(&self, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
        let bytes = |sectors: u64| sectors * u64::from(SECTOR_SIZE);
        // The last file may have grown.
        let (last, others) = self.parts.split_last().expect("a device has a file");
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end && found.len() < most.max(1) {
            let part = &self.parts[others.partition_point(|part| bytes(part.end()) <= at)];
            let start = bytes(part.start).min(range.end);
            if start > at {
                // Between two files.
                Extent::append(&mut found, Extent { end: start, is_hole: true });
                at = start;
                continue;
            }
            let is_last = std::ptr::eq(part, last);
            let end = if is_last { range.end } else { bytes(part.end()).min(range.end) };
            let left = most.max(1) - found.len();
            let block = part.target.alignment.block;
            let inside = at - start..end - start;
            for extent in file::extents(&part.target.file, inside, block, left)? {
                at = start + extent.end;
                Extent::append(&mut found, Extent { end: at, ..extent });
            }
        }
        Ok(found)
    }

    /// Makes the `shape.hw_queues` hardware queues, each with a ring of its own, or all with one pool of threads.
    ///
    /// # Errors
    /// If there is no memory for the rings, if the rings and the registered buffers exceed the limit of locked memory,
    /// or if the system refuses a thread or a descriptor.
    pub fn queues<P: IoBuf>(&self) -> Result<DeviceQueues<P>, OpenError> {
        if let Some(threads) = self.options.threads {
            return self.thread_queues(threads).map_err(OpenError::ring("start threads"));
        }
        let origin = Arc::new(Origin {
            parts: self.parts.clone(),
            order: Order::Sequence,
            options: self.options.clone(),
            pools: self.pools.clone(),
        });
        let queue = |_| Ok(Box::new(UringQueue::new(Arc::clone(&origin))?) as _);
        (0..self.shape.hw_queues).map(queue).collect()
    }
}

impl UringDevice {
    fn thread_queues<P: IoBuf>(&self, threads: u16) -> io::Result<DeviceQueues<P>> {
        let pool = Pool::new(threads, Opened::new(&self.parts))?;
        let depth = self.options.hw_queue_depth;
        let queue = |_| {
            let queue = ThreadQueue::new(Arc::clone(&pool), Requests::new(&self.parts), depth)?;
            Ok(Box::new(queue) as _)
        };
        (0..self.shape.hw_queues).map(queue).collect()
    }
}

/// The sector at byte `place` of a device. Panics unless `place` is a multiple of 4096.
fn sector(place: u64) -> u64 {
    // The largest logical block that a file can have here.
    assert!(place.is_multiple_of(4096), "a file at byte {place}");
    place / u64::from(SECTOR_SIZE)
}

impl<P: IoBuf> BlockDevice<P> for UringDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(self.queues()?)
    }

    /// Files with a ring for each client.
    fn join(all: &[(&Self, u64)], by: Join) -> Option<Box<dyn BlockDevice<P>>> {
        let mut legs = Vec::new();
        for (Self { parts, options, pools, .. }, sectors) in all {
            let [Part { target, .. }] = &**parts else { return None };
            legs.push(Leg { target, options, pools, sectors: *sectors });
        }
        Some(Box::new(JoinedFiles::new(&legs, by)?))
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The most requests in flight, unless the first file alone may have more. Each client has a ring with so many entries.
const MOST: u32 = 1024;

struct JoinedFiles {
    shape: DeviceShape,
    origin: Arc<Origin>,
}

/// One of the files.
struct Leg<'a> {
    target: &'a Target,
    options: &'a Options,
    pools: &'a [BufferPool],
    /// The number of sectors from its start that are used.
    sectors: u64,
}

impl JoinedFiles {
    /// Joins files in this order, with the sum of their depths. `None` if one of them has no ring for each client.
    fn new(legs: &[Leg<'_>], by: Join) -> Option<Self> {
        let mut options = legs.first()?.options.clone();
        let is_alike = |leg: &Leg<'_>| {
            let Options { threads, hw_queues, iopoll, fixed, .. } = *leg.options;
            threads.is_none() && hw_queues.is_none() && !iopoll && fixed == options.fixed
        };
        if !legs.iter().all(is_alike) {
            return None;
        }
        let (mut parts, mut start, mut pools) = (Vec::new(), 0_u64, Vec::<BufferPool>::new());
        for Leg { target, sectors, pools: own, .. } in legs {
            parts.push(Part { start, sectors: *sectors, target: (*target).clone() });
            start = start.checked_add(*sectors)?;
            for pool in *own {
                if !pools.iter().any(|known| known.is_same(pool)) {
                    pools.push(pool.clone());
                }
            }
        }
        let depth: u32 = legs.iter().map(|leg| leg.options.hw_queue_depth).sum();
        options.hw_queue_depth = depth.min(MOST.max(options.hw_queue_depth));
        let mut limits = parts::limits(&parts);
        let order = match by {
            Join::Concat => Order::Sequence,
            Join::Stripe { chunk } => {
                limits.chunk_sectors = chunk;
                Order::Stripe(chunk.into())
            }
        };
        let shape = DeviceShape {
            hw_queues: 1,
            hw_queue_depth: options.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits,
            cache: parts::cache(&parts),
            timeout: DEFAULT_TIMEOUT,
        };
        Some(Self { shape, origin: Arc::new(Origin { parts, order, options, pools }) })
    }
}

impl<P: IoBuf> BlockDevice<P> for JoinedFiles {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        Ok(vec![Box::new(UringQueue::new(Arc::clone(&self.origin))?)])
    }
}

/// The capacity that the list of a free request keeps at most, in pieces of memory of 16 bytes.
const KEPT: usize = 64;

/// The files of a device, as its threads use them.
pub(crate) struct Opened {
    files: Files,
    /// The logical block size.
    block: u32,
}

impl Opened {
    pub(crate) fn new(parts: &[Part]) -> Self {
        let files = Files::new(parts, Order::Sequence, false);
        Self { files, block: parts::alignment(parts).block }
    }
}

impl Work for Request {
    type Files = Opened;

    fn token(&self) -> Option<&Inflight> {
        self.rq.as_ref()
    }

    fn token_mut(&mut self) -> &mut Option<Inflight> {
        &mut self.rq
    }

    fn perform(&mut self, opened: &Opened) -> Step {
        self.perform(&opened.files, opened.block)
    }

    fn rest(&mut self) {
        self.count();
        if self.counted() > KEPT {
            self.forget_list();
        }
    }
}

/// Makes the work of a hardware queue.
struct Requests {
    files: Files,
    alignment: u32,
    zero: ZeroBy,
}

impl Requests {
    fn new(parts: &[Part]) -> Self {
        let alignment = parts::alignment(parts).memory;
        let files = Files::new(parts, Order::Sequence, false);
        Self { files, alignment, zero: parts::zeroes(parts) }
    }
}

impl Source for Requests {
    type Work = Request;

    fn blank(&self) -> Request {
        Request::new()
    }

    fn begin<P: IoBuf>(&self, work: &mut Request, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        let kind = Kind::of(rq, self.zero);
        work.begin(rq, kind, self.files.admit(rq, kind)?);
        if kind.moves_data() { work.gather(bios, rq, self.alignment) } else { Ok(()) }
    }

    fn failed(&self, work: &Request) {
        self.files.at(work.file()).present.find_end();
    }
}
