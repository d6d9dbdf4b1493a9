//! Which export waited behind which, as counted by the queues of a server.

use crate::worker::Shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times so far, which only grow while counting is on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// Sorted by device, then by group.
    pub waits: Vec<ExportWait>,
}

/// The time for which I/Os of an export waited behind I/Os of another export, or of the same one
/// ([`Queue::waits`](blkmq::Queue::waits)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportWait {
    /// The number of the device, from 1.
    pub device: usize,
    /// The export that waited. `/` stands for removed exports.
    pub export: String,
    /// The export that had requests at the device; `None` while the device was idle.
    pub behind: Option<String>,
    /// The duration in nanoseconds.
    pub time: u64,
}

/// The times so far.
pub(crate) fn waits(shared: &Shared) -> Waits {
    let mut found = Waits::default();
    let exports = shared.exports.now();
    for (at, disk) in shared.disks.iter().enumerate() {
        let of_disk = exports.all().filter(|export| export.disk == at);
        let named = of_disk.map(|export| (export.group.id().index(), export.info.name.as_str()));
        let names: BTreeMap<_, _> = named.collect();
        let name = |group| names.get(&group).map_or("/", |name| *name).to_owned();
        let waits = disk.service().queue().waits().into_iter();
        found.waits.extend(waits.map(|wait| ExportWait {
            device: at + 1,
            export: name(wait.waiting),
            behind: wait.behind.map(name),
            time: wait.time.0,
        }));
        found.at = disk.service().clock().now().as_nanos();
    }
    found
}
