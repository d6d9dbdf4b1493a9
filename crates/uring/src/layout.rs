//! Lays out a file of a given size, as fio does: written through, not left sparse, because a hole is read without
//! access to the disk.

use crate::lock::{Access, LockError, lock};
use crate::{OpenError, sys};
use blkmq_core::Rng;
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

/// Creates `path`, or extends it, so that it has at least `bytes`, and waits until the added part is on the disk.
/// Does nothing if it is large enough. A file that cannot be extended is restored, and one that was created by this
/// call is removed.
///
/// With `locking`, no other program may write to it during the call. Once `stop` is set, it ends as if the disk were
/// full.
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
            // If locks are unsupported, the later open of the file reports it.
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

/// Writes random bytes from `at` on, so that neither the file system nor the disk can store less than was requested.
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
/// If the caller has asked for the end.
fn go_on(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Errno::ECANCELED.into()) } else { Ok(()) }
}

/// Reserves the space in the file system, where possible: a disk that has too little is not filled up first. The file
/// does not become longer by this, so that an interrupted fill leaves no file that looks complete.
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
