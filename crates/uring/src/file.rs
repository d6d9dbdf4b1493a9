//! The file of a device: locks on it, its present state, and its contents before it is a device.
//!
//! The locks are those of QEMU, so that two programs do not write to one file by mistake, and its tools and this crate
//! exclude each other: open-file-description locks on single bytes of the file. A program that needs a permission holds
//! a read lock on byte 100 plus the permission's number. A program that does not tolerate the permission in others
//! holds a read lock on byte 200 plus the number. Read locks never exclude each other, so each program first takes its
//! own and then checks for a lock of the other kind. Of two programs that begin at the same time, both may refuse, but
//! never both continue. The kernel drops the locks when the last descriptor of the open file is closed, however the
//! program ends.
//!
//! [`Present`] is the state of an open file. Only it queries the kernel again about an open file. Another program may
//! make the file shorter or longer, remove it, or take away a disk's write access. The kernel fails reads then. Writes
//! would make a short file long again, with a hole where there was data, so they are checked against the end that was
//! seen last.
//!
//! A file of a given size is laid out as by fio: written in full, not sparse, because a hole is read without access to
//! the disk. Holes are those of SEEK_HOLE and SEEK_DATA. Behind the end of a file that has become shorter there is no
//! hole, so that a reader meets the error. Images are recognized by the first bytes of their formats. Such a file holds
//! a disk in another form: a guest would find no partition in it, and a write would ruin the image.

use crate::OpenError;
use blkmq_core::{Extent, Rng};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::{major, minor};
use nix::unistd::{Whence, lseek64};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// First byte of the permissions in use.
const USED: i64 = 100;
/// First byte of the permissions that others must not have.
const UNSHARED: i64 = 200;

/// A permission on an image. The discriminants are QEMU's numbers. Two more are not needed here: writing unchanged data
/// (2) and changing the graph of images (4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Permission {
    /// Reading consistent data.
    Read = 0,
    /// Writing.
    Write = 1,
    /// Changing the size.
    Resize = 3,
}

/// The intended access to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    Resize,
}

/// The conflict that prevents opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// Another open of the file uses this permission, which the intended access does not tolerate.
    Used(Permission),
    /// Another open of the file does not tolerate this permission, which is needed.
    Unshared(Permission),
}

/// The reason why a file is not locked.
#[derive(Debug)]
pub(crate) enum LockError {
    Conflict(Conflict),
    /// The file system has no locks.
    Unsupported,
    Io(io::Error),
}

impl Access {
    /// The permissions that it uses.
    fn uses(self) -> &'static [Permission] {
        match self {
            Self::Read => &[Permission::Read],
            Self::Write => &[Permission::Read, Permission::Write],
            Self::Resize => &[Permission::Read, Permission::Write, Permission::Resize],
        }
    }

    /// The permissions that others must not use during this access.
    fn bars(self) -> &'static [Permission] {
        match self {
            Self::Read => &[],
            Self::Write | Self::Resize => &[Permission::Write, Permission::Resize],
        }
    }
}

/// Locks an open file for as long as it is open. It must be open for reading.
///
/// After an error some locks may be held, so the caller must close the file.
pub(crate) fn lock(file: &File, access: Access) -> Result<(), LockError> {
    let used = access.uses().iter().map(|p| (Conflict::Unshared(*p), USED, UNSHARED, *p));
    let barred = access.bars().iter().map(|p| (Conflict::Used(*p), UNSHARED, USED, *p));
    // A conflict about a permission that the other program uses is reported before one about a permission that it bars.
    let all = Vec::from_iter(barred.chain(used));
    for (conflict, own, _, permission) in &all {
        match hold(file, own + i64::from(*permission as u8)) {
            // A write lock of another program excludes read locks.
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(LockError::Conflict(*conflict)),
            done => done?,
        }
    }
    for (conflict, _, others, permission) in all {
        if is_held(file, others + i64::from(permission as u8))? {
            return Err(LockError::Conflict(conflict));
        }
    }
    Ok(())
}

fn byte(kind: i32, at: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: 1,
        // The lock is of an open file, not of a process.
        l_pid: 0,
    }
}

/// Holds a read lock on one byte.
fn hold(file: &File, at: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, at))).map(|_| ())
}

/// Returns whether another open file holds a lock on this byte.
fn is_held(file: &File, at: i64) -> Result<bool, Errno> {
    // Every lock conflicts with a write lock.
    let mut found = byte(libc::F_WRLCK, at);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

impl From<Errno> for LockError {
    fn from(errno: Errno) -> Self {
        match errno {
            // The errors of network file systems, and of kernels before Linux 3.15.
            Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL => Self::Unsupported,
            errno => Self::Io(errno.into()),
        }
    }
}

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
pub(crate) fn length(mut file: &File, kind: Kind) -> io::Result<u64> {
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
        let bytes = length(&self.file, self.kind).unwrap_or(0);
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
pub(crate) struct QueueAttributes(PathBuf);

/// Returns whether the kernel refuses writes to block device number `dev`.
fn is_disk_read_only(dev: u64) -> bool {
    let attribute = format!("/sys/dev/block/{}:{}/ro", major(dev), minor(dev));
    std::fs::read_to_string(attribute).is_ok_and(|text| text.trim() == "1")
}

/// Returns whether block device number `dev` has no volatile cache, as the kernel detected it or was configured.
fn writes_through(dev: u64) -> bool {
    let queue = QueueAttributes::of(dev);
    queue.and_then(|queue| queue.text("write_cache")).as_deref() == Some("write through")
}

impl QueueAttributes {
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

const MIB: u64 = 1 << 20;

/// Creates `path`, or extends it, to at least `bytes`, and waits until the added part is on the disk. No effect if it
/// is large enough. A file that cannot be extended is restored, and removed if this call created it.
///
/// With `locking`, no other program may write to it during the call. If `stop` is set, the call ends as if the disk
/// were full.
pub(crate) fn extend(
    path: &Path,
    bytes: u64,
    locking: bool,
    stop: &AtomicBool,
) -> Result<(), OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let (opened, is_new) = match options.clone().create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (options.open(path), false),
        created => (created, true),
    };
    let mut file = opened.map_err(OpenError::file(path, "create"))?;
    if locking {
        match lock(&file, Access::Resize) {
            // Unsupported locks are reported when the file is opened for I/O.
            Ok(()) | Err(LockError::Unsupported) => {}
            Err(why) => return Err(OpenError::locked(path, Access::Resize, why)),
        }
    }
    let before = file.seek(SeekFrom::End(0)).map_err(OpenError::file(path, "look at"))?;
    fill(&mut file, before, bytes, stop).map_err(|e| {
        // Frees the space again on a full disk. The first error is the one reported.
        let _ = if is_new { std::fs::remove_file(path) } else { file.set_len(before) };
        OpenError::file(path, "extend")(e)
    })
}

/// Writes random bytes from `at` to `size`, so that neither the file system nor the disk can store less than that.
fn fill(file: &mut File, mut at: u64, size: u64, stop: &AtomicBool) -> io::Result<()> {
    if at >= size {
        return Ok(());
    }
    reserve(file, at, size - at, stop)?;
    let mut rng = Rng::new(size);
    let mut chunk = vec![0; MIB as usize];
    while at < size {
        go_on(stop)?;
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let len = (size - at).min(MIB);
        file.write_all(&chunk[..len as usize])?;
        at += len;
    }
    file.sync_data()
}

/// # Errors
/// `ECANCELED` if `stop` is set.
fn go_on(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Errno::ECANCELED.into()) } else { Ok(()) }
}

/// Reserves the space in the file system, where possible, so that a disk with too little space is not filled first. The
/// file does not become longer by this, so an interrupted fill leaves no file that looks complete.
fn reserve(file: &File, at: u64, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
    loop {
        go_on(stop)?;
        match allocate(file, libc::FALLOC_FL_KEEP_SIZE, at, bytes) {
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(()),
            done => return Ok(done?),
        }
    }
}

/// The offset in `file` that lseek(2) finds with `whence`, from `at` on.
pub(crate) fn seek(file: &File, at: u64, whence: Whence) -> nix::Result<u64> {
    let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
    lseek64(file, at, whence).map(|found| found as u64)
}

/// The stretches of `range`: at least one, at most `most`. The last hole of the file ends at its last whole `block`.
pub(crate) fn extents(
    file: &File,
    range: Range<u64>,
    block: u32,
    most: usize,
) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = range.start;
    while at < range.end && extents.len() < most.max(1) {
        let data = match seek(file, at, Whence::SeekData) {
            Ok(data) => data.min(range.end),
            // There is no data behind: a hole up to the end of the file.
            Err(Errno::ENXIO) => {
                let end = seek(file, 0, Whence::SeekEnd)?;
                let end = end - end % u64::from(block);
                if end <= at {
                    Extent::append(&mut extents, Extent { end: range.end, is_hole: false });
                    break;
                }
                end.min(range.end)
            }
            // The file system has no holes.
            Err(Errno::EINVAL) => at,
            Err(error) => return Err(error.into()),
        };
        if data > at {
            Extent::append(&mut extents, Extent { end: data, is_hole: true });
            at = data;
            continue;
        }
        let hole = match seek(file, at, Whence::SeekHole) {
            Ok(hole) if hole > at => hole.min(range.end),
            Ok(_) | Err(Errno::EINVAL | Errno::ENXIO) => range.end,
            Err(error) => return Err(error.into()),
        };
        Extent::append(&mut extents, Extent { end: hole, is_hole: false });
        at = hole;
    }
    Ok(extents)
}

/// Formats: name, offset of the magic bytes, and these bytes.
const FORMATS: [(&str, usize, &[u8]); 9] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
    ("Parallels", 0, b"WithoutFreeSpace"),
];

/// The length of the footer of a VHD, in bytes. A VHD of a fixed size has its magic bytes only there.
const FOOTER: u64 = 512;

/// The name of the format of the image at `path`; `None` for every other file.
pub(crate) fn format_of(path: &Path) -> Option<&'static str> {
    let mut file = File::open(path).ok()?;
    let bytes = file.seek(SeekFrom::End(0)).ok()?;
    format(&file, bytes)
}

/// The name of the format of an image; `None` for any other file, and for one that cannot be read.
fn format(file: &File, bytes: u64) -> Option<&'static str> {
    let mut head = [0; 512];
    let read = file.read_at(&mut head, 0).ok()?;
    let starts = |(_, at, mark): &(&str, usize, &[u8])| {
        head[..read].get(*at..).is_some_and(|rest| rest.starts_with(mark))
    };
    if let Some((name, ..)) = FORMATS.iter().find(|format| starts(format)) {
        return Some(name);
    }
    let mut footer = [0; 8];
    file.read_exact_at(&mut footer, bytes.checked_sub(FOOTER)?).ok()?;
    (&footer == b"conectix").then_some("VHD")
}

/// Calls fallocate(2) with these flags for `len` bytes at `at`.
pub(crate) fn allocate(file: &File, mode: i32, at: u64, len: u64) -> nix::Result<()> {
    let wide = |n| i64::try_from(n).map_err(|_| Errno::EINVAL);
    let (at, len) = (wide(at)?, wide(len)?);
    // SAFETY: no memory is passed.
    Errno::result(unsafe { libc::fallocate64(file.as_raw_fd(), mode, at, len) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, Resize, Write};
    use std::io::Write as _;
    use std::os::unix::fs::FileExt;

    /// Opens a file for the first access, and then for the second; returns the result.
    fn both(test: &str, first: Access, second: Access) -> Result<(), Conflict> {
        let path = std::env::temp_dir().join(format!("blkmq-{test}-{}", std::process::id()));
        std::fs::write(&path, [0; 512]).expect("a small file");
        let open = || {
            let options = OpenOptions::new().read(true).write(true).open(&path);
            options.expect("it is there")
        };
        let (one, two) = (open(), open());
        let _ = std::fs::remove_file(&path);
        let conflict = |locked| match locked {
            Ok(()) => Ok(()),
            Err(LockError::Conflict(conflict)) => Err(conflict),
            Err(other) => panic!("{other:?}"),
        };
        conflict(lock(&one, first)).expect("the first one");
        conflict(lock(&one, first)).expect("its own locks do not stand against it");
        let result = conflict(lock(&two, second));
        drop(one);
        conflict(lock(&two, second)).expect("the first one's locks have gone with it");
        result
    }

    /// Like a reading virtual machine, which bars writing without writing.
    #[test]
    fn what_others_bar_is_respected() {
        let path = std::env::temp_dir().join(format!("blkmq-barred-{}", std::process::id()));
        std::fs::write(&path, [0; 512]).expect("a small file");
        let open = || File::open(&path).expect("it is there");
        for permission in [Permission::Read, Permission::Write, Permission::Resize] {
            let other = open();
            hold(&other, UNSHARED + i64::from(permission as u8)).expect("it is free");
            for access in [Read, Write, Resize] {
                let found = match lock(&open(), access) {
                    Ok(()) => None,
                    Err(LockError::Conflict(conflict)) => Some(conflict),
                    Err(other) => panic!("{other:?}"),
                };
                let barred = access.uses().contains(&permission);
                let expected = barred.then_some(Conflict::Unshared(permission));
                assert_eq!(found, expected, "{access:?} while {permission:?} is barred");
            }
        }
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn readers_share_and_writers_are_alone() {
        let both = |first, second| both("readers_share_and_writers_are_alone", first, second);
        assert_eq!([both(Read, Read), both(Read, Write), both(Write, Read)], [Ok(()); 3]);
        for (first, second) in [(Write, Write), (Write, Resize), (Resize, Write), (Resize, Resize)]
        {
            let conflict = Err(Conflict::Used(Permission::Write));
            assert_eq!(both(first, second), conflict, "{second:?} after {first:?}");
        }
    }

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

    const KIB: u64 = 1024;

    #[test]
    fn holes_are_found_where_the_file_system_has_them() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1024 * KIB).expect("it can be extended");
        file.write_all_at(&[1; 65536], 256 * KIB).expect("it can be written");
        let all = extents(&file, 0..1024 * KIB, 512, 9).expect("it can be asked");
        if all == [Extent { end: 1024 * KIB, is_hole: false }] {
            // The file system has no holes.
            return;
        }
        let expected = [(256 * KIB, true), (320 * KIB, false), (1024 * KIB, true)];
        assert_eq!(all.iter().map(|it| (it.end, it.is_hole)).collect::<Vec<_>>(), expected);
        assert_eq!(extents(&file, 0..1024 * KIB, 512, 2).expect("likewise"), all[..2]);
        let inside = extents(&file, 300 * KIB..310 * KIB, 512, 9).expect("likewise");
        assert_eq!(inside, [Extent { end: 310 * KIB, is_hole: false }]);
    }

    /// Behind the end of a file that was truncated there is no hole.
    #[test]
    fn a_hole_ends_with_the_file() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * KIB + 700).expect("it can be extended");
        let stored = [Extent { end: 256 * KIB, is_hole: false }];
        let hole = [Extent { end: 64 * KIB, is_hole: true }, stored[0]];
        let all = extents(&file, 0..256 * KIB, 4096, 9).expect("it can be asked");
        assert!(all == hole || all == stored, "{all:?}");
        assert_eq!(extents(&file, 64 * KIB..256 * KIB, 4096, 9).expect("likewise"), stored);
        assert_eq!(extents(&file, 128 * KIB..256 * KIB, 512, 9).expect("likewise"), stored);
    }

    #[test]
    fn what_has_no_holes_is_all_stored() {
        let zero = File::open("/dev/zero").expect("it is everywhere");
        let all = extents(&zero, 512..4096, 512, 9).expect("it says that it cannot");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].end, 4096);
    }

    fn format_of(parts: &[&[u8]]) -> Option<&'static str> {
        let mut file = tempfile::tempfile().expect("a file");
        parts.iter().for_each(|part| file.write_all(part).expect("there is room"));
        let bytes = file.metadata().expect("it is open").len();
        format(&file, bytes)
    }

    #[test]
    fn each_format_is_known_by_its_mark() {
        for (name, at, mark) in FORMATS {
            assert_eq!(format_of(&[&vec![0; at], mark, &[0; 4096]]), Some(name));
            assert_eq!(format_of(&[&vec![0; at + 1], mark, &[0; 4096]]), None, "{name}, moved");
        }
        assert_eq!(format_of(&[&[0; 4096], b"conectix", &[0; 504]]), Some("VHD"));
    }

    #[test]
    fn disks_and_short_files_are_no_images() {
        assert_eq!(format_of(&[]), None);
        assert_eq!(format_of(&[b"QFI"]), None);
        assert_eq!(format_of(&[&[0; 510], b"\x55\xaa"]), None);
    }
}
