//! [`FileDevice`]: a regular file as a device, accessed through the page cache with the portable part of the standard
//! library.
//!
//! The file is not locked against other programs, and holes cannot be punched in it.

mod error;
mod options;
mod position;
mod request;

pub use error::OpenError;
pub use options::{FILE, Options};

use crate::{Pool, ThreadQueue};
use blkmq_buf::IoBuf;
use blkmq_core::{Limits, SECTOR_SIZE};
use blkmq_engine::{BlockDevice, DEFAULT_TIMEOUT, DeviceQueues, DeviceShape, WriteCache};
use request::Requests;
use std::fs::File;
use std::io;
use std::path::Path;
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

#[cfg(test)]
mod tests;
