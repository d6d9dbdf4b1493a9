//! What the kernel's own block layer says about a device, in `/sys/dev/block/MAJOR:MINOR/queue`.

use rustix::fs::{major, minor};
use std::path::PathBuf;

/// The queue attributes of one block device.
pub(crate) struct Queue(PathBuf);

impl Queue {
    /// Of the device numbered `dev`; of a partition, its disk's. `None` where there is no such thing, as behind
    /// a file system that has no device or several.
    pub(crate) fn of(dev: u64) -> Option<Self> {
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
        let places = [device.join("queue"), device.join("../queue")];
        places.into_iter().find(|place| place.is_dir()).map(Self)
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
