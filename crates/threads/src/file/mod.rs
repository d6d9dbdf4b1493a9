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
use std::fmt;
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
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The parameter does not exist, or does not accept the value.
    Parameter(PairError),
    /// The given word is not of the form `PATH[,KEY=VALUE]...`. The word is empty if the path is missing.
    Syntax(String),
    /// The system refused an operation on the file.
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The path does not name a regular file.
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than one sector.
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(e) => e.fmt(f),
            Self::Syntax(word) => {
                write!(f, "'{word}' is not understood; accepted: PATH[,KEY=VALUE]...")
            }
            Self::File { path, why } => write!(f, "cannot open {}: {why}", path.display()),
            Self::NotAFile { path } => write!(f, "{} is no regular file", path.display()),
            Self::Empty { path } => {
                write!(f, "{} has not room for 512 bytes; size=16m makes it larger", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Parameter(e) => Some(e),
            Self::File { why, .. } => Some(why),
            Self::Syntax(_) | Self::NotAFile { .. } | Self::Empty { .. } => None,
        }
    }
}

impl From<PairError> for OpenError {
    fn from(e: PairError) -> Self {
        Self::Parameter(e)
    }
}

#[cfg(test)]
mod tests;
