//! [`Present`]: the present state of an open file. Only this module queries the kernel again about an open file.
//!
//! Another program may make the file shorter or longer, remove it, or take away a disk's write access. The kernel fails
//! reads then. Writes would make a short file long again, with a hole where there was data, so they are checked against
//! the end that was seen last.

use nix::sys::stat::{major, minor};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    BlockDevice,
}

/// The present state of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState {
    /// The length of the file in bytes, in whole blocks.
    pub bytes: u64,
    /// Writes are refused: the file was opened for reading, or the block device takes no writes.
    pub is_read_only: bool,
    /// The file was removed or replaced, has no name, and is freed when it is closed.
    pub is_removed: bool,
    /// Writes wait in a volatile cache, of the kernel or of the disk, until a flush.
    pub has_volatile_cache: bool,
}

/// An open file, and its end at the last query.
#[derive(Debug)]
pub(crate) struct Present {
    file: Arc<File>,
    kind: Kind,
    block: u32,
    readonly: bool,
    is_direct: bool,
    /// The end in bytes, a hint for writes. No other data is published with it.
    end: AtomicU64,
}

/// The length of a file, in bytes.
pub(crate) fn bytes(mut file: &File, kind: Kind) -> io::Result<u64> {
    match kind {
        Kind::File => Ok(file.metadata()?.len()),
        Kind::BlockDevice => file.seek(SeekFrom::End(0)),
    }
}

/// Returns whether the kernel refuses writes to the device, however it was opened.
pub(crate) fn is_read_only(file: &File, kind: Kind) -> bool {
    kind == Kind::BlockDevice && file.metadata().is_ok_and(|meta| is_disk_read_only(meta.rdev()))
}

impl Present {
    /// The state of `file`. It may be open for reading only (`readonly`), and past the page cache (`is_direct`).
    pub(crate) fn new(
        file: &Arc<File>,
        kind: Kind,
        block: u32,
        (readonly, is_direct): (bool, bool),
    ) -> Self {
        let (file, end) = (Arc::clone(file), AtomicU64::new(0));
        let present = Self { file, kind, block, readonly, is_direct, end };
        present.find_end();
        present
    }

    /// Queries the end of the file, in bytes of whole blocks; 0 if the query fails. One system call.
    pub(crate) fn find_end(&self) -> u64 {
        let bytes = bytes(&self.file, self.kind).unwrap_or(0);
        let bytes = bytes - bytes % u64::from(self.block);
        self.end.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// Queries the whole state.
    pub(crate) fn look(&self) -> FileState {
        let bytes = self.find_end();
        let has_no_name = || self.file.metadata().is_ok_and(|meta| meta.nlink() == 0);
        FileState {
            bytes,
            is_read_only: self.readonly || is_read_only(&self.file, self.kind),
            is_removed: self.kind == Kind::File && has_no_name(),
            has_volatile_cache: !self.writes_through(),
        }
    }

    /// Returns whether written data needs no flush. A regular file has metadata to flush, and data written through the
    /// page cache is in memory.
    fn writes_through(&self) -> bool {
        self.kind == Kind::BlockDevice
            && self.is_direct
            && self.file.metadata().is_ok_and(|meta| writes_through(meta.rdev()))
    }

    /// Returns whether the file has bytes up to `end`. If it seems shorter, its end is queried again.
    #[inline]
    pub(crate) fn reaches(&self, end: u64) -> bool {
        end <= self.end.load(Ordering::Relaxed) || end <= self.find_end()
    }
}

/// The queue attributes of one block device.
pub(crate) struct Queue(PathBuf);

/// Returns whether the kernel refuses writes to block device number `dev`.
fn is_disk_read_only(dev: u64) -> bool {
    let attribute = format!("/sys/dev/block/{}:{}/ro", major(dev), minor(dev));
    std::fs::read_to_string(attribute).is_ok_and(|text| text.trim() == "1")
}

/// Returns whether block device number `dev` has no volatile cache, as the kernel detected it or was configured.
fn writes_through(dev: u64) -> bool {
    let queue = Queue::of(dev);
    queue.and_then(|queue| queue.text("write_cache")).as_deref() == Some("write through")
}

impl Queue {
    /// The attributes of device number `dev`, and for a partition those of its disk. `None` without attributes, as for
    /// a file system on no device or on several.
    pub(crate) fn of(dev: u64) -> Option<Self> {
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
        let places = [device.join("queue"), device.join("../queue")];
        places.into_iter().find(|place| place.is_dir()).map(Self)
    }

    /// The attributes in a folder.
    #[cfg(test)]
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(crate) fn text(&self, attribute: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(attribute)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(crate) fn number(&self, attribute: &str) -> Option<u64> {
        self.text(attribute)?.parse().ok()
    }

    pub(crate) fn is_set(&self, attribute: &str) -> bool {
        self.number(attribute).is_some_and(|n| n != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_it_was_at_the_last_look_or_longer() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        file.set_len(8192 + 100).expect("it can be extended");
        let present = Present::new(&file, Kind::File, 512, (false, true));
        assert!(present.reaches(8192) && !present.reaches(8704), "whole blocks");
        file.set_len(4096).expect("it can be cut");
        assert!(present.reaches(8192), "a hint");
        let state = present.look();
        assert_eq!((state.bytes, state.is_read_only), (4096, false));
        assert!(state.is_removed && state.has_volatile_cache, "a temporary file has no name");
        assert!(!present.reaches(8192));
        file.set_len(1 << 20).expect("it can be extended");
        assert!(present.reaches(8192), "it is long again");
    }
}
