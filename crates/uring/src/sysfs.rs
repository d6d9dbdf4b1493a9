//! Attributes of a device from the kernel's own block layer, in `/sys/dev/block/MAJOR:MINOR/queue`.

use nix::sys::stat::{major, minor};
use std::path::PathBuf;

/// The queue attributes of one block device.
pub(crate) struct Queue(PathBuf);

/// Returns whether the kernel lets nothing be written to block device number `dev`.
pub(crate) fn is_read_only(dev: u64) -> bool {
    let attribute = format!("/sys/dev/block/{}:{}/ro", major(dev), minor(dev));
    std::fs::read_to_string(attribute).is_ok_and(|text| text.trim() == "1")
}

/// Returns whether block device number `dev` has no volatile cache, as the kernel detected it or was configured.
pub(crate) fn writes_through(dev: u64) -> bool {
    let queue = Queue::of(dev);
    queue.and_then(|queue| queue.text("write_cache")).as_deref() == Some("write through")
}

impl Queue {
    /// The attributes of device number `dev`; for a partition, of its disk. `None` if there are none, as for a file
    /// system on no device or on several.
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
