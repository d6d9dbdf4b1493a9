//! Making a file of a given size, as fio lays out its files: written through, not left sparse, because a hole
//! is read without asking the disk.

use crate::OpenError;
use crate::lock::{Access, LockError, lock};
use blkmq_core::Rng;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Creates `path`, or extends it, so that it has at least `mib` MiB, and waits until what was added is on the
/// disk. Does nothing if it is large enough. A file that cannot be extended is left as it was, and one that was
/// created for this is removed.
///
/// With `locking`, no other program may write to it meanwhile.
pub(crate) fn extend(path: &Path, mib: u64, locking: bool) -> Result<(), OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let (opened, is_new) = match options.clone().create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (options.open(path), false),
        created => (created, true),
    };
    let mut file = opened.map_err(OpenError::file(path, "create"))?;
    if locking {
        match lock(&file, Access::Resize) {
            // What that means is said when the file is opened for good.
            Ok(()) | Err(LockError::Unsupported) => {}
            Err(why) => return Err(OpenError::locked(path, Access::Resize, why)),
        }
    }
    let before = file.seek(SeekFrom::End(0)).map_err(OpenError::file(path, "look at"))?;
    fill(&mut file, before, mib * MIB).map_err(|e| {
        // So that a full disk is as full as before. What went wrong first is what is reported.
        let _ = if is_new { std::fs::remove_file(path) } else { file.set_len(before) };
        OpenError::file(path, "extend")(e)
    })
}

/// Random bytes from `at` on, so that no file system and no disk can store less than what was asked for.
fn fill(file: &mut File, mut at: u64, size: u64) -> io::Result<()> {
    if at >= size {
        return Ok(());
    }
    reserve(file, at, size - at)?;
    let mut rng = Rng::new(size);
    let mut chunk = vec![0; MIB as usize];
    while at < size {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let len = (size - at).min(MIB);
        file.write_all(&chunk[..len as usize])?;
        at += len;
    }
    file.sync_data()
}

/// Has the file system set the room aside, where it can: a disk that has not enough is not written full first. The
/// file is no longer for that, so that one whose filling is interrupted does not look as if it was filled.
fn reserve(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            done => return Ok(done?),
        }
    }
}
