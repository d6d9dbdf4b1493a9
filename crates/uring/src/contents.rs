//! The contents of a file before it is a device: laying it out, its holes, and the images of virtual machines.
//!
//! A file of a given size is laid out as by fio: written in full, not sparse, because a hole is read without access to
//! the disk. Holes are those of SEEK_HOLE and SEEK_DATA. Behind the end of a file that has become shorter there is no
//! hole, so that a reader meets the error. Images are recognized by the first bytes of their formats. Such a file holds
//! a disk in another form: a guest would find no partition in it, and a write would ruin the image.

use crate::lock::{Access, LockError, lock};
use crate::{OpenError, sys};
use blkmq_core::{Extent, Rng};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

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
        match sys::allocate(file, libc::FALLOC_FL_KEEP_SIZE, at, bytes) {
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
pub(crate) fn of_file(
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const KIB: u64 = 1024;

    #[test]
    fn holes_are_found_where_the_file_system_has_them() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1024 * KIB).expect("it can be extended");
        file.write_all_at(&[1; 65536], 256 * KIB).expect("it can be written");
        let all = of_file(&file, 0..1024 * KIB, 512, 9).expect("it can be asked");
        if all == [Extent { end: 1024 * KIB, is_hole: false }] {
            // The file system has no holes.
            return;
        }
        let expected = [(256 * KIB, true), (320 * KIB, false), (1024 * KIB, true)];
        assert_eq!(all.iter().map(|it| (it.end, it.is_hole)).collect::<Vec<_>>(), expected);
        assert_eq!(of_file(&file, 0..1024 * KIB, 512, 2).expect("likewise"), all[..2]);
        let inside = of_file(&file, 300 * KIB..310 * KIB, 512, 9).expect("likewise");
        assert_eq!(inside, [Extent { end: 310 * KIB, is_hole: false }]);
    }

    /// Behind the end of a file that was truncated there is no hole.
    #[test]
    fn a_hole_ends_with_the_file() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * KIB + 700).expect("it can be extended");
        let stored = [Extent { end: 256 * KIB, is_hole: false }];
        let hole = [Extent { end: 64 * KIB, is_hole: true }, stored[0]];
        let all = of_file(&file, 0..256 * KIB, 4096, 9).expect("it can be asked");
        assert!(all == hole || all == stored, "{all:?}");
        assert_eq!(of_file(&file, 64 * KIB..256 * KIB, 4096, 9).expect("likewise"), stored);
        assert_eq!(of_file(&file, 128 * KIB..256 * KIB, 512, 9).expect("likewise"), stored);
    }

    #[test]
    fn what_has_no_holes_is_all_stored() {
        let zero = File::open("/dev/zero").expect("it is everywhere");
        let all = of_file(&zero, 512..4096, 512, 9).expect("it says that it cannot");
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
