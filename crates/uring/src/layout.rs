//! Making a file of a given size, as fio lays out its files: written through, not left sparse, because a hole
//! is read without asking the disk.

use crate::OpenError;
use blkmq_core::Rng;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Creates `path`, or extends it, so that it has at least `mib` MiB, and waits until what was added is on the
/// disk. Does nothing if it is large enough.
pub(crate) fn extend(path: &Path, mib: u64) -> Result<(), OpenError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(OpenError::file(path, "create"))?;
    fill(&mut file, mib * MIB).map_err(OpenError::file(path, "extend"))
}

/// Random bytes, so that no file system and no disk can store less than what was asked for.
fn fill(file: &mut File, size: u64) -> std::io::Result<()> {
    let mut at = file.seek(SeekFrom::End(0))?;
    if at >= size {
        return Ok(());
    }
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
