//! [`FileDevice`]: a regular file as a device, accessed through the page cache with the portable part of the standard
//! library; its [`Options`], and the reasons why it cannot be opened.
//!
//! The file is not locked against other programs, and holes cannot be punched in it.

mod request;

use crate::{Pool, ThreadQueue};
use blkmq_buf::IoBuf;
use blkmq_core::{Given, Limits, PairError, Parameter, RealDevice, SECTOR_SIZE, Unit};
use blkmq_engine::{
    BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape, MAX_HW_QUEUE_DEPTH, WriteCache,
};
use request::Requests;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open regular file.
#[derive(Clone, Debug)]
pub struct FileDevice {
    /// The properties that the engine must know.
    pub shape: DeviceShape,
    /// Deviations from the options: one sentence each, for the user.
    pub notes: Vec<String>,
    file: Arc<File>,
    options: Options,
}

impl FileDevice {
    /// Opens the file at `path`. With [`size_bytes`](Options::size_bytes), first creates or extends the file; the new
    /// part is a hole if the file system supports holes.
    ///
    /// # Errors
    /// If the system refuses, the path does not name a regular file, or the file is shorter than one sector.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let refused = |why| OpenError::File { path: path.into(), why };
        let wanted = options.size_bytes.filter(|_| !options.readonly);
        let mut open = File::options();
        open.read(true).write(!options.readonly).create(wanted.is_some()).truncate(false);
        let file = open.open(path).map_err(refused)?;
        let meta = file.metadata().map_err(refused)?;
        if !meta.is_file() {
            return Err(OpenError::NotAFile { path: path.into() });
        }
        let bytes = wanted.unwrap_or(0).max(meta.len());
        if bytes > meta.len() {
            file.set_len(bytes).map_err(refused)?;
        }
        let rest = bytes % u64::from(SECTOR_SIZE);
        if bytes == rest {
            return Err(OpenError::Empty { path: path.into() });
        }
        let mut notes = Vec::new();
        if rest > 0 {
            notes.push(format!("the last {rest} bytes are no whole block and are left alone"));
        }
        let shape = DeviceShape {
            hw_queues: options.hw_queues,
            hw_queue_depth: options.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: Limits { capacity: bytes / u64::from(SECTOR_SIZE), ..Limits::default() },
            cache: WriteCache::Back { fua: true },
            timeout: DEFAULT_TIMEOUT,
        };
        Ok(Self { shape, notes, file: Arc::new(file), options: options.clone() })
    }

    /// Opens the file that `text` describes, `threads:PATH[,KEY=VALUE]...`. Returns `None` if `text` describes another
    /// kind of device.
    ///
    /// # Errors
    /// If `text` cannot be parsed, or as for [`open`](Self::open).
    #[must_use]
    pub fn described(text: &str) -> Option<Result<Self, OpenError>> {
        let opened = Options::parse(FILE.description(text)?);
        Some(opened.and_then(|(path, options)| Self::open(path, &options)))
    }

    /// The present size of the file in bytes, rounded down to whole sectors. If the system does not answer, returns the
    /// size at opening.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let opened = self.shape.limits.capacity * u64::from(SECTOR_SIZE);
        let now = self.file.metadata().map_or(opened, |meta| meta.len());
        now - now % u64::from(SECTOR_SIZE)
    }

    /// Returns whether it was opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }
}

impl<P: IoBuf> BlockDevice<P> for FileDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    /// Fails if the system refuses the first thread.
    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        let pool = Pool::new(self.options.threads, Arc::clone(&self.file))?;
        let queue = |_| {
            let source = Requests { readonly: self.options.readonly };
            let queue = ThreadQueue::new(Arc::clone(&pool), source, self.shape.hw_queue_depth)?;
            Ok(Box::new(queue) as _)
        };
        (0..self.shape.hw_queues).map(queue).collect()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The most requests in progress: enough for a busy disk, and below the thread limit of most systems.
const MOST: u16 = 1024;
/// The largest file: 2^63 bytes, the limit of offsets, in whole MiB.
const MAX_BYTES: u64 = ((1 << 43) - 1) << 20;

/// The options for opening a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Requests in progress at a time, 1 to 1024.
    pub threads: u16,
    /// Hardware queues, 1 to 1024.
    pub hw_queues: u16,
    /// Requests in flight per hardware queue, 1 to [`MAX_HW_QUEUE_DEPTH`].
    pub hw_queue_depth: u32,
    /// Create or extend the file to at least this many bytes.
    pub size_bytes: Option<u64>,
    /// Open for reading only.
    pub readonly: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 16, hw_queues: 1, hw_queue_depth: 128, size_bytes: None, readonly: false }
    }
}

impl Options {
    /// Parses `PATH[,KEY=VALUE]...` with the parameters of [`FILE`].
    ///
    /// # Errors
    /// For the first word that is not a pair, or that has an unknown name or an invalid value.
    pub fn parse(text: &str) -> Result<(PathBuf, Self), OpenError> {
        let mut words = text.split(',').map(str::trim);
        let path = words.next().unwrap_or_default();
        if path.is_empty() {
            return Err(OpenError::Syntax(String::new()));
        }
        let mut options = Self::default();
        for word in words.filter(|word| !word.is_empty()) {
            let pair = word.split_once('=').ok_or_else(|| OpenError::Syntax(word.into()))?;
            let given = Given::find(FILE.parameters, pair.0.trim(), pair.1.trim())?;
            match given.name {
                "threads" => options.threads = given.number(1..=MOST)?,
                "hw_queues" => options.hw_queues = given.number(1..=MOST)?,
                "hw_queue_depth" => {
                    options.hw_queue_depth = given.number(1..=MAX_HW_QUEUE_DEPTH)?;
                }
                "size" => options.size_bytes = Some(given.bytes(Unit::MIB, MAX_BYTES)?),
                _ => options.readonly = given.flag()?,
            }
        }
        Ok((path.into(), options))
    }
}

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

/// The description for programs that offer devices by name. Linux uses the crate `blkmq-uring` instead.
pub const FILE: RealDevice = RealDevice {
    name: "threads",
    target: "PATH",
    summary: "a file by threads that read and write",
    parameters: &[
        parameter("threads", "16", "requests that are done at a time, each by a thread, 1 to 1024"),
        parameter("hw_queues", "1", "hardware queues, which share the threads, 1 to 1024"),
        parameter("hw_queue_depth", "128", "requests in flight per hardware queue, 1 to 10240"),
        parameter("size", "", "create or extend the file to at least so many MiB (or 16m, 1g)"),
        parameter("readonly", "0", "open for reading; everything else is answered with EROFS"),
    ],
};

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The parameter does not exist, or does not accept the value.
    #[error("{0}")]
    Parameter(#[from] PairError),
    /// The given word is not of the form `PATH[,KEY=VALUE]...`. The word is empty if the path is missing.
    #[error("'{0}' is not understood; accepted: PATH[,KEY=VALUE]...")]
    Syntax(String),
    /// The system refused an operation on the file.
    #[error("cannot open {}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        why: io::Error,
    },
    /// The path does not name a regular file.
    #[error("{} is no regular file", .path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than one sector.
    #[error("{} has not room for 512 bytes; size=16m makes it larger", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::request::Request;
    use super::*;
    use blkmq_buf::{AlignedBuf, BufList};
    use blkmq_core::{Instant, IoError, IoResult, Nanos, Op, Sectors};
    use blkmq_engine::{Config, Io, Queue, Submitter};
    use blkmq_runtime::Service;

    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 64;

    /// A queue around a file of zeroes, and its pool of at most `threads`.
    fn queue(timeout: Nanos, threads: u16) -> (Queue<AlignedBuf>, Arc<Pool<Request>>) {
        let file = tempfile::NamedTempFile::new().expect("a folder for files");
        file.as_file().set_len(BLOCKS * BLOCK as u64).expect("a small file");
        let device = FileDevice::open(file.path(), &Options::default()).expect("it opens");
        let shape = DeviceShape { hw_queue_depth: 64, timeout, ..device.shape };
        let pool = Pool::new(threads, Arc::clone(&device.file)).expect("one thread");
        let source = Requests { readonly: false };
        let queue = ThreadQueue::new(Arc::clone(&pool), source, 64).expect("a descriptor");
        (Queue::new(Config::new(shape, vec![Box::new(queue)])).expect("valid"), pool)
    }

    fn read(submitter: &mut Submitter<AlignedBuf>, now: Instant, n: u64) {
        let io = Io::new(Op::Read, n * 8, 8, n, AlignedBuf::new(BLOCK));
        submitter.push(now, io.with(blkmq_core::IoFlags::NOMERGE)).expect("there is credit");
    }

    /// Polls at `now` until `count` reads have ended; a real disk takes real time.
    fn results(submitter: &mut Submitter<AlignedBuf>, now: Instant, count: usize) -> Vec<IoResult> {
        let mut results = Vec::new();
        for _ in 0..50_000_000_u64 {
            submitter.poll(now);
            submitter.reap(u32::MAX, |done| results.push(done.result));
            if results.len() == count {
                return results;
            }
            std::thread::yield_now();
        }
        panic!("{} of {count} reads have ended", results.len());
    }

    #[test]
    fn there_are_as_many_threads_as_allowed_and_as_needed() {
        for (most, at_once, expected) in [(1, 32, 1..=1), (3, 64, 2..=3), (16, 1, 1..=2)] {
            let (queue, pool) = queue(Nanos(u64::MAX), most);
            let mut submitter = queue.submitter().expect("one was asked for");
            for round in 0..8 {
                let now = Instant::ZERO + Nanos(round);
                (0..at_once).for_each(|n| read(&mut submitter, now, n));
                submitter.flush(now);
                assert!(results(&mut submitter, now, at_once as usize).iter().all(Result::is_ok));
            }
            assert!(expected.contains(&pool.threads()), "{} of {most}", pool.threads());
        }
    }

    #[test]
    fn what_no_thread_begins_is_given_back_when_its_time_is_over() {
        let (queue, pool) = queue(Nanos::from_secs(1), 4);
        pool.close();
        let mut submitter = queue.submitter().expect("one was asked for");
        (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
        submitter.flush(Instant::ZERO);
        submitter.poll(Instant::ZERO + Nanos::from_millis(999));
        assert_eq!(submitter.reap(u32::MAX, |_| {}), 0, "in time");
        let late = Instant::ZERO + Nanos::from_secs(2);
        assert_eq!(results(&mut submitter, late, 4), [Err(IoError::TIMED_OUT); 4]);
    }

    #[test]
    fn what_no_thread_begins_is_given_back_when_the_queue_ends() {
        let leaked = blkmq_engine::leaked_bios();
        let (queue, pool) = queue(Nanos(u64::MAX), 4);
        pool.close();
        let mut submitter = queue.submitter().expect("one was asked for");
        (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
        submitter.flush(Instant::ZERO);
        drop((submitter, queue));
        assert_eq!(blkmq_engine::leaked_bios(), leaked, "every token came back");
    }

    #[test]
    fn what_is_written_is_read_in_one_buffer_or_several_and_is_in_the_file() {
        let folder = tempfile::tempdir().expect("a folder for files");
        let path = folder.path().join("a");
        let device = FileDevice::described(&format!("threads:{},size=1,threads=3", path.display()));
        let device = device.expect("of this kind").expect("it is made");
        let service =
            Service::<BufList>::start(device.config().expect("a thread")).expect("it starts");
        let mut disk = service.blocking().expect("a client");
        let block = |byte: u8| AlignedBuf::copy_of(&[byte; 1024]);
        for at in 0..16 {
            let list = BufList::new(vec![block(at), block(at + 100)]).expect("a few");
            let io = Io::write(Sectors(u64::from(at) * 4), list).with(blkmq_core::IoFlags::FUA);
            assert_eq!(disk.call(io).expect("it is taken").0, Ok(()));
        }
        let bytes = std::fs::read(&path).expect("it is there");
        assert_eq!((bytes.len(), bytes[15 * 2048], bytes[15 * 2048 + 1024]), (1 << 20, 15, 115));
        let list = BufList::new(vec![block(0), block(0), block(0)]).expect("a few");
        let (result, mut list) = disk.call(Io::read(Sectors(2), list)).expect("it is taken");
        assert_eq!(result, Ok(()));
        assert!(list.slices_mut().map(|bytes| bytes[9]).eq([100, 1, 101]));
        disk.flush().expect("it is done");
    }

    #[test]
    fn a_short_file_and_a_device_for_reading_answer_with_errors() {
        let file = tempfile::NamedTempFile::new().expect("a folder for files");
        let open =
            |text: &str| FileDevice::described(&format!("threads:{}{text}", file.path().display()));
        let refused = open("").expect("of this kind").expect_err("it is empty");
        assert!(refused.to_string().ends_with("size=16m makes it larger"));
        file.as_file().set_len(1 << 20).expect("a small file");
        let device = open(",readonly=1").expect("of this kind").expect("it opens");
        let service = Service::start(device.config().expect("a thread")).expect("it starts");
        let mut disk = service.blocking().expect("a client");
        let buf = || AlignedBuf::new(BLOCK);
        assert_eq!(disk.write(Sectors(0), buf()).expect("it is taken").0, Err(request::READ_ONLY));
        assert_eq!(disk.read(Sectors(8), buf()).expect("it is taken").0, Ok(()));
        file.as_file().set_len(8192).expect("it is cut short");
        assert_eq!(disk.read(Sectors(8), buf()).expect("it is taken").0, Ok(()));
        assert_eq!(disk.read(Sectors(16), buf()).expect("it is taken").0, Err(IoError::IO));
        assert_eq!((device.bytes(), device.is_read_only()), (8192, true));
        let folder = tempfile::tempdir().expect("a folder");
        let refused = FileDevice::open(folder.path(), &Options::default()).expect_err("a folder");
        assert!(!refused.to_string().is_empty());
    }

    #[test]
    fn every_parameter_is_read_and_has_its_default() {
        let text = "/a, threads=3,hw_queues=2,hw_queue_depth=8,size=7,readonly=y";
        let (path, options) = Options::parse(text).expect("valid");
        let expected = Options {
            threads: 3,
            hw_queues: 2,
            hw_queue_depth: 8,
            size_bytes: Some(7 << 20),
            readonly: true,
        };
        assert_eq!((path, options), (PathBuf::from("/a"), expected));
        let given = FILE.parameters.iter().filter(|parameter| !parameter.default.is_empty());
        let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
        let (_, options) = Options::parse(&format!("x,{}", words.join(","))).expect("valid");
        assert_eq!(options, Options::default());
        assert_eq!(FILE.undocumented(include_str!("../../doc/file.md")), None);
    }

    #[test]
    fn refusals_list_what_is_accepted() {
        let refusal = |text| Options::parse(text).expect_err("refused").to_string();
        assert!(refusal("").ends_with("accepted: PATH[,KEY=VALUE]..."));
        assert!(refusal("a,fast").starts_with("'fast' is not understood"));
        assert!(refusal("a,direct=1").contains("accepted: threads, hw_queues, hw_queue_depth"));
        assert!(refusal("a,threads=0").contains("a whole number from 1 to 1024"));
    }
}
