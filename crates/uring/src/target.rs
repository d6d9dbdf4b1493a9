//! Opens a file or block device, and determines its limits.
//!
//! This module knows no rings. Deviations from the options are reported in notes.

use crate::file::{self, Access, Kind, LockError, Present, QueueAttributes, lock, seek};
use crate::{OpenError, Options};
use blkmq_buf::{AlignedBuf, PAGE};
use blkmq_core::{Limits, SECTOR_SIZE};
use blkmq_engine::WriteCache;
use nix::errno::Errno;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::Whence;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The most pieces of memory that one call takes.
const IOV_MAX: u64 = 1024;
/// Sectors in a page.
const PAGE_SECTORS: u64 = PAGE as u64 / SECTOR_SIZE as u64;
/// The largest logical block of the block layer.
const MAX_BLOCK: u32 = 4096;
/// The most sectors in one discard or one write of zeroes: their bytes fit into 32 bits.
const MAX_HOLE_SECTORS: u64 = (u32::MAX >> 9) as u64;

/// The unit of an I/O, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Alignment {
    /// In the file: its logical block size.
    pub(crate) block: u32,
    /// In memory; 1 for none.
    pub(crate) memory: u32,
}

/// An open file with its limits.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) file: Arc<File>,
    pub(crate) alignment: Alignment,
    pub(crate) limits: Limits,
    pub(crate) cache: WriteCache,
    pub(crate) readonly: bool,
    /// The device writes zeroes without a transfer.
    pub(crate) has_fast_zeroes: bool,
    pub(crate) present: Arc<Present>,
    pub(crate) is_direct: bool,
    /// The file system has no disk below and no asynchronous I/O: the kernel passes each I/O of a ring to a thread.
    pub(crate) is_in_memory: bool,
    pub(crate) notes: Vec<String>,
}

impl Target {
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let kind = prepare(path, options, &AtomicBool::new(false))?;
        let mut notes = Vec::new();
        let opened = open_direct(path, kind, options, &mut notes)?;
        let is_direct = opened.is_some();
        let (file, alignment) = match opened {
            Some(opened) => opened,
            None => {
                let file =
                    open_file(path, kind, options, 0).map_err(OpenError::file(path, "open"))?;
                let block = block_size(&file, kind).unwrap_or(SECTOR_SIZE);
                (file, Alignment { block, memory: 1 })
            }
        };
        keep_out(path, &file, kind, options, &mut notes)?;
        let about = |e| OpenError::file(path, "look at")(e);
        let meta = file.metadata().map_err(about)?;
        let bytes = file::length(&file, kind).map_err(about)?;
        let readonly = options.readonly || file::is_read_only(&file, kind);
        let rest = bytes % u64::from(alignment.block);
        if bytes == rest {
            return Err(OpenError::Empty { path: path.into(), block: alignment.block });
        }
        if rest > 0 {
            notes.push(format!("the last {rest} bytes are no whole block and are left alone"));
        }
        let queue = QueueAttributes::of(if kind == Kind::File { meta.dev() } else { meta.rdev() });
        if options.iopoll && !(is_direct && has_polls(queue.as_ref())) {
            return Err(OpenError::NotPolled { path: path.into() });
        }
        // The kernel demands whole blocks of each of several ranges, but takes a part of one at the end of a file.
        let range_alignment = if is_direct { alignment.memory.max(1) } else { 0 };
        let units = (alignment.block, range_alignment);
        let mut limits = limits(queue.as_ref(), units, bytes - rest);
        limits.rotational = queue.as_ref().is_some_and(|queue| queue.is_set("rotational"));
        let zeroes = queue.as_ref().and_then(|queue| queue.number("write_zeroes_max_bytes"));
        let has_fast_zeroes = kind == Kind::File || zeroes.is_some_and(|bytes| bytes > 0);
        // To a device without such an operation, the kernel writes zeroes at the rate of other writes. On a device that
        // is opened for reading, such I/Os are answered like writes.
        limits.max_write_zeroes_sectors = whole(MAX_HOLE_SECTORS, alignment.block);
        if !readonly {
            let about = (kind, &file, meta.blksize(), bytes);
            hole_limits(&mut limits, about, queue.as_ref(), &mut notes);
        } else if !options.readonly {
            notes.push("the block device is read-only".into());
        }
        let file = Arc::new(file);
        let access = (readonly, is_direct);
        let present = Arc::new(Present::new(&file, kind, alignment.block, access));
        let cache = if present.look().has_volatile_cache {
            // If the device has no durable writes, the kernel makes a write durable by a flush.
            let is_device = kind == Kind::BlockDevice && is_direct;
            let has_fua = queue.as_ref().is_some_and(|queue| queue.is_set("fua"));
            WriteCache::Back { fua: has_fua || !is_device }
        } else {
            WriteCache::Through
        };
        Ok(Self {
            is_in_memory: is_in_memory(kind, &file),
            file,
            alignment,
            limits,
            cache,
            readonly,
            has_fast_zeroes,
            present,
            is_direct,
            notes,
        })
    }
}

/// Returns whether the disk has queues for polling.
fn has_polls(queue: Option<&QueueAttributes>) -> bool {
    queue.is_some_and(|queue| queue.is_set("io_poll"))
}

/// Returns whether it is a regular file of tmpfs. The node of a block device may be in tmpfs, whatever the device.
fn is_in_memory(kind: Kind, file: &File) -> bool {
    kind == Kind::File && fstatfs(file).is_ok_and(|it| it.filesystem_type() == TMPFS_MAGIC)
}

/// Sets the limits of discards, and for a file those of zeroes.
fn hole_limits(
    limits: &mut Limits,
    (kind, file, preferred, bytes): (Kind, &File, u64, u64),
    queue: Option<&QueueAttributes>,
    notes: &mut Vec<String>,
) {
    let block = limits.logical_block_size;
    let (most, unit) = match kind {
        Kind::File => (holes_of_file(file, bytes), Some(preferred)),
        Kind::BlockDevice => {
            let unit = queue.and_then(|queue| queue.number("discard_granularity"));
            (discard_of_device(queue, notes), unit)
        }
    };
    limits.max_discard_sectors = whole(most, block);
    limits.discard_granularity = granularity(unit, block);
    if kind == Kind::File {
        // A file system that zeroes in place has holes, too.
        limits.max_write_zeroes_sectors = limits.max_discard_sectors;
    }
}

/// Rounds `sectors` down to whole blocks.
fn whole(sectors: u64, block: u32) -> u32 {
    let block = u64::from(block / SECTOR_SIZE);
    (sectors / block * block) as u32
}

/// The unit of discards in bytes; 0 if it is unknown or no multiple of a block.
fn granularity(bytes: Option<u64>, block: u32) -> u32 {
    let unit = bytes.filter(|bytes| bytes.is_multiple_of(block.into()));
    unit.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
}

/// Makes the file as large as requested, and returns its type. An image of another format is refused, unchanged.
pub(crate) fn prepare(
    path: &Path,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Kind, OpenError> {
    let found = match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && options.size_bytes.is_some() => None,
        found => Some(found.map_err(OpenError::file(path, "open"))?),
    };
    let kind = match found.as_ref().map(std::fs::Metadata::file_type) {
        Some(file_type) if file_type.is_block_device() => Kind::BlockDevice,
        Some(file_type) if !file_type.is_file() => {
            return Err(OpenError::NotStorage { path: path.into() });
        }
        _ => Kind::File,
    };
    if !options.raw
        && let Some(format) = file::format_of(path)
    {
        return Err(OpenError::Image { path: path.into(), format });
    }
    let Some(bytes) = options.size_bytes else { return Ok(kind) };
    let refuse = |why| Err(OpenError::NotExtended { path: path.into(), why });
    let is_large_enough = found.is_some_and(|found| found.len() >= bytes);
    match kind {
        Kind::BlockDevice => return refuse("a block device has the size that it has"),
        Kind::File if is_large_enough => {}
        Kind::File if options.readonly => return refuse("it is to be opened with readonly=1"),
        Kind::File => file::extend(path, bytes, options.locking, stop)?,
    }
    Ok(kind)
}

fn open_file(path: &Path, kind: Kind, options: &Options, flags: i32) -> io::Result<File> {
    // A device that is mounted, or that another program has claimed, must not be written to.
    let claim = kind == Kind::BlockDevice && !options.readonly;
    let flags = if claim { flags | libc::O_EXCL } else { flags };
    OpenOptions::new().read(true).write(!options.readonly).custom_flags(flags).open(path)
}

/// Keeps other programs that lock images from using the file in conflicting ways.
fn keep_out(
    path: &Path,
    file: &File,
    kind: Kind,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(), OpenError> {
    match (kind, options.locking) {
        (Kind::File, true) => {}
        (Kind::File, false) | (Kind::BlockDevice, true) => return Ok(()),
        (Kind::BlockDevice, false) => {
            notes.push("locking=0 has no effect on a block device, which is claimed".into());
            return Ok(());
        }
    }
    let access = if options.readonly { Access::Read } else { Access::Write };
    match lock(file, access) {
        Ok(()) => Ok(()),
        Err(LockError::Unsupported) => {
            notes.push(
                "the file system has no locks; other programs are not kept from writing to the file"
                    .into(),
            );
            Ok(())
        }
        Err(why) => Err(OpenError::locked(path, access, why)),
    }
}

/// Opens the file for direct I/O with its alignment. `None` if that is not wanted, or not possible (with a note).
fn open_direct(
    path: &Path,
    kind: Kind,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Option<(File, Alignment)>, OpenError> {
    if !options.direct {
        return Ok(None);
    }
    let file = match open_file(path, kind, options, libc::O_DIRECT) {
        Ok(file) => file,
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            notes.push(
                "the file system has no direct I/O; it is done through the page cache".into(),
            );
            return Ok(None);
        }
        Err(e) => return Err(OpenError::file(path, "open")(e)),
    };
    match direct_alignment(&file, kind) {
        Some(alignment) if alignment.block <= MAX_BLOCK => Ok(Some((file, alignment))),
        Some(Alignment { block, .. }) => {
            notes.push(format!(
                "direct I/O needs blocks of {block} bytes there, and {MAX_BLOCK} is the most here; it is \
                 done through the page cache"
            ));
            Ok(None)
        }
        None => {
            notes.push("this file has no direct I/O; it is done through the page cache".into());
            Ok(None)
        }
    }
}

/// The alignment for direct I/O: from statx since Linux 6.1, and on older kernels the logical block size of a device,
/// or the block size of a file by trial. `None` if the file has no direct I/O.
fn direct_alignment(file: &File, kind: Kind) -> Option<Alignment> {
    if let Some((block, memory)) = reported_alignment(file) {
        let has_direct = block > 0 && memory > 0;
        return has_direct.then(|| Alignment { block: block.max(SECTOR_SIZE), memory });
    }
    let block = block_size(file, kind).or_else(|| smallest_read(file))?;
    Some(Alignment { block, memory: block })
}

/// The logical block size of a device.
fn block_size(file: &File, kind: Kind) -> Option<u32> {
    (kind == Kind::BlockDevice).then(|| logical_block_size(file)).flatten()
}

/// The alignment of direct I/O in the file and in memory, in bytes, as statx reports it since Linux 6.1: zero if there
/// is no direct I/O, `None` if unknown.
fn reported_alignment(file: &File) -> Option<(u32, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (fd, wanted) = (file.as_raw_fd(), libc::STATX_DIOALIGN);
    // SAFETY: the path is a string, and the kernel writes to `stat` during the call only.
    let asked =
        unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, wanted, stat.as_mut_ptr()) };
    // SAFETY: its fields are integers, for which zero is a value.
    let stat = unsafe { stat.assume_init() };
    let is_known = asked == 0 && stat.stx_mask & wanted != 0;
    is_known.then_some((stat.stx_dio_offset_align, stat.stx_dio_mem_align))
}

/// The logical block size of a block device, in bytes; `None` if the device does not report it.
fn logical_block_size(device: &File) -> Option<u32> {
    let mut bytes = 0_i32;
    // SAFETY: the kernel writes an int, during the call only.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) };
    if asked == 0 { u32::try_from(bytes).ok() } else { None }
}

/// The smallest block that can be read, as a direct read of less is refused; `None` if no read succeeds.
fn smallest_read(file: &File) -> Option<u32> {
    let mut page = AlignedBuf::new(PAGE);
    [SECTOR_SIZE, MAX_BLOCK].into_iter().find(|block| {
        let bytes = &mut page.as_mut_slice()[..*block as usize];
        file.read_at(bytes, 0).is_ok()
    })
}

/// The limits of a file of `bytes` bytes. `alignment` is that of each range of a list, 0 through the page cache.
fn limits(queue: Option<&QueueAttributes>, (block, alignment): (u32, u32), bytes: u64) -> Limits {
    let default = Limits::default();
    let number = |attribute| queue.and_then(|queue| queue.number(attribute));
    let blocks = |sectors: u64| sectors / u64::from(block / SECTOR_SIZE);
    let segments = number("max_segments").map(|n| n.clamp(1, IOV_MAX));
    let max_sectors = number("max_sectors_kb").map_or(default.max_sectors.into(), |kb| kb * 2);
    // Pages of a process are seldom adjacent in memory, so each is a segment for the disk. The kernel would divide a
    // request with more pages into several commands, which the queue does not order or count.
    let max_sectors = segments.map_or(max_sectors, |n| max_sectors.min(n * PAGE_SECTORS));
    let max_blocks = blocks(max_sectors).clamp(1, blocks(u64::from(u32::MAX >> 9)));
    let physical = number("physical_block_size").and_then(|bytes| u32::try_from(bytes).ok());
    Limits {
        logical_block_size: block,
        physical_block_size: physical.filter(|bytes| bytes.is_power_of_two()).unwrap_or(block),
        max_sectors: max_blocks as u32 * (block / SECTOR_SIZE),
        max_segments: segments.unwrap_or(IOV_MAX) as u16,
        // The kernel divides I/Os that cross a chunk.
        max_segment_size: u32::MAX,
        range_alignment: alignment,
        capacity: bytes / u64::from(SECTOR_SIZE),
        ..default
    }
}

/// The most sectors in one hole; 0 if the file system makes none. The trial is behind the end of the file, where no
/// data is lost, or in an existing hole if no file can be longer.
fn holes_of_file(file: &File, bytes: u64) -> u64 {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let page = PAGE as u64;
    let punch = |at| file::allocate(file, mode, at, page);
    let can = match punch(bytes.checked_next_multiple_of(page).unwrap_or(bytes)) {
        Err(Errno::EFBIG | Errno::EINVAL) => {
            page_of_hole(file, bytes).is_some_and(|at| punch(at).is_ok())
        }
        punched => punched.is_ok(),
    };
    if can { MAX_HOLE_SECTORS } else { 0 }
}

/// The place of a page in the first hole of the file; `None` if that is too small, or there is no hole.
fn page_of_hole(file: &File, bytes: u64) -> Option<u64> {
    let page = PAGE as u64;
    let at = seek(file, 0, Whence::SeekHole).ok()?.checked_next_multiple_of(page)?;
    let is_free = match seek(file, at, Whence::SeekData) {
        Ok(data) => at + page <= data,
        Err(error) => error == Errno::ENXIO,
    };
    (is_free && at.checked_add(page)? <= bytes).then_some(at)
}

/// The most sectors in one discard; 0 if the device has none. A hole in a device is a write of zeroes that it unmaps,
/// so the device must have both.
fn discard_of_device(queue: Option<&QueueAttributes>, notes: &mut Vec<String>) -> u64 {
    let sectors = |attribute| {
        let bytes = queue.and_then(|queue| queue.number(attribute)).unwrap_or(0);
        (bytes / u64::from(SECTOR_SIZE)).min(MAX_HOLE_SECTORS)
    };
    let (discard, zeroes) = (sectors("discard_max_bytes"), sectors("write_zeroes_max_bytes"));
    if discard > 0 && zeroes == 0 {
        notes.push(
            "the device discards, but not so that zeroes are left; no discards are sent".into(),
        );
    }
    discard.min(zeroes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of block devices are in a file system like tmpfs. Block devices must not be read and written in the call
    /// for that, a request at a time.
    #[test]
    fn a_block_device_is_not_in_the_memory_that_its_node_is_in() {
        let node = File::open("/dev/null").expect("it is in the folder of block devices");
        assert!(!is_in_memory(Kind::BlockDevice, &node));
        let file = tempfile::tempfile_in("/dev/shm").expect("tmpfs");
        assert!(is_in_memory(Kind::File, &file));
    }

    fn limits_of(attributes: &[(&str, u32)]) -> Limits {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in attributes {
            std::fs::write(folder.path().join(name), format!("{value}\n")).unwrap();
        }
        limits(Some(&QueueAttributes::at(folder.path().into())), (512, 4), 1 << 30)
    }

    /// A loop device reports 1280 KiB and 128 segments, so a request of 1 MiB would be two or three commands.
    #[test]
    fn a_request_is_one_command_where_each_page_is_a_segment() {
        let limits = limits_of(&[("max_sectors_kb", 1280), ("max_segments", 128)]);
        assert_eq!((limits.max_sectors, limits.max_segments), (1024, 128));
        assert_eq!(limits_of(&[("max_sectors_kb", 128), ("max_segments", 168)]).max_sectors, 256);
        assert_eq!(limits_of(&[("max_sectors_kb", 1280)]).max_sectors, 2560);
    }
}
