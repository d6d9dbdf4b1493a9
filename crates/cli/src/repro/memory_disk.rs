//! A disk in memory behind io_uring: a file read through the page cache, created for the runs of one command and
//! removed after them.
//!
//! On any machine, this comes closest to the virtual disk of seed 002: its threads sleep on descriptors, so each
//! unnecessary wake-up is a system call. If io_uring is unavailable, the null device is used instead.

use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};

/// In MiB; entirely in the page cache, and half the size of `/dev/shm` usual in containers.
#[cfg(target_os = "linux")]
const SIZE: u64 = 32;

/// The device that runs of `kick` read from, with 8 hardware queues of depth 16.
pub struct MemoryDisk {
    path: Option<PathBuf>,
    /// The value of `--device`.
    device: String,
    /// A note about it.
    note: Option<String>,
}

impl MemoryDisk {
    /// A device that can be read from.
    pub fn new() -> Self {
        match Self::make() {
            Ok(disk) => disk,
            Err(why) => Self {
                path: None,
                device: "null,irqmode=2,completion_nsec=10000,submit_queues=8,hw_queue_depth=16"
                    .into(),
                note: Some(format!(
                    "There is no disk in memory here ({why}), so kick is shown on the null device: waking a thread that \
                     is awake costs next to nothing there."
                )),
            },
        }
    }

    #[cfg(target_os = "linux")]
    fn make() -> Result<Self, String> {
        // `/dev/shm` is always memory.
        let folder = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        // Each disk of a process has its own file.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("blkmq-repro-{}-{nth}", std::process::id()));
        let words = format!("{},size={SIZE},direct=0", path.display());
        let device = format!("uring:{words},hw_queues=8,hw_queue_depth=16");
        let disk = Self { path: Some(path), device, note: None };
        let opened = blkmq_uring::UringDevice::parse(&words).map_err(|error| error.to_string())?;
        opened.queues::<blkmq_buf::AlignedBuf>().map_err(|error| error.to_string())?;
        Ok(disk)
    }

    #[cfg(not(target_os = "linux"))]
    fn make() -> Result<Self, String> {
        Err("io_uring is Linux's".into())
    }

    /// The value of `--device`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Why the disk is not in memory, if it is not.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The file may not have been created.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_with_whoever_made_it() {
        let disk = MemoryDisk::new();
        assert_eq!(disk.path.is_some(), disk.note().is_none());
        let path = disk.path.clone();
        assert!(path.as_ref().is_none_or(|path| path.is_file()));
        drop(disk);
        assert!(path.is_none_or(|path| !path.exists()));
    }
}
