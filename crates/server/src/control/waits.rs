//! Which export waited behind which, as the queues of a server have counted.

use crate::worker::Shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times so far. All of them only grow while counting is on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// In the order of devices, then of groups.
    pub waits: Vec<ExportWait>,
}

/// The time for which I/Os of an export waited behind those of another, or of the same one
/// ([`Queue::waits`](blkmq::Queue::waits)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportWait {
    /// The number of the device, from 1.
    pub device: usize,
    /// The export that waited. `/` stands for exports that are gone.
    pub export: String,
    /// The export that had requests at the device; null while nothing was there.
    pub behind: Option<String>,
    /// Nanoseconds.
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
