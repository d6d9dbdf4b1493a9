//! [`Store`]: the events of the store behind a disk, another server or a cluster: lost connections, new ones, another size.
//!
//! A thread looks now and then, and each change is logged once.

use crate::disk::Disk;
use blkmq::remote::Outages;

/// The last look at a store.
#[derive(Debug)]
pub(crate) struct Store {
    bytes: u64,
    outages: Outages,
}

impl Store {
    pub(crate) fn new(disk: &Disk) -> Self {
        let outages = disk.device().outages().unwrap_or_default();
        Self { bytes: disk.device().bytes_now(), outages }
    }

    /// Logs the changes since the last look.
    pub(crate) fn look(&mut self, disk: &Disk) {
        let (name, device) = (disk.name(), disk.device());
        if let Some(outages) = device.outages() {
            for line in connections(&self.outages, &outages) {
                tracing::warn!("{name}: {line}");
            }
            self.outages = outages;
        }
        let bytes = device.bytes_now();
        if bytes != self.bytes {
            tracing::warn!("{name}: {}", resized(self.bytes, bytes, device.bytes()));
            self.bytes = bytes;
        }
    }
}

/// The losses and returns of connections between two looks.
fn connections(before: &Outages, now: &Outages) -> Vec<String> {
    let mut lines = Vec::new();
    if now.lost > before.lost {
        let why = now.last.as_deref().unwrap_or("no reason");
        let count = now.lost - before.lost;
        lines.push(format!("{count} connections to its server are lost: {why}"));
    }
    if now.restored > before.restored {
        let count = now.restored - before.restored;
        lines.push(format!(
            "{count} connections to its server are made anew, and requests sent again"
        ));
    }
    lines
}

/// A size that has become another, on a disk that began with `served` bytes.
fn resized(before: u64, now: u64, served: u64) -> String {
    let what = format!("its store has been resized from {before} to {now} bytes");
    if now < served {
        format!(
            "{what}; I/O beyond that fails, and exports keep their size of {served} bytes in all"
        )
    } else {
        format!("{what}; exports keep their size until the server is started anew")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outages(lost: u64, restored: u64) -> Outages {
        let mut outages = Outages::default();
        (outages.lost, outages.restored, outages.last) =
            (lost, restored, Some("closed".to_owned()));
        outages
    }

    #[test]
    fn each_change_is_said_once() {
        let lines = connections(&outages(1, 1), &outages(3, 2));
        assert_eq!(
            lines,
            [
                "2 connections to its server are lost: closed",
                "1 connections to its server are made anew, and requests sent again",
            ]
        );
        assert_eq!(connections(&outages(3, 2), &outages(3, 2)), Vec::<String>::new());
    }

    #[test]
    fn a_smaller_store_fails_and_a_larger_one_waits() {
        assert!(resized(100, 50, 100).contains("from 100 to 50 bytes; I/O beyond that fails"));
        assert!(resized(50, 100, 100).ends_with("until the server is started anew"));
    }
}
