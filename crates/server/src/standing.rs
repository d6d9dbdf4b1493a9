//! [`Standing`]: the last known state of a disk's device. Each change is logged once.
//!
//! A thread polls the device: a file may be truncated or removed, a block device may lose write access, an image may be
//! resized, a server may lose its connections. Workers use the access mode as a hint for clients.

use crate::disk::Disk;
use blkmq::Finding;
use blkmq::remote::Outages;
use blkmq::{DeviceState, Nanos};

/// The maximum time for which I/O is held back to change the size.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// The number of polls to skip after an attempt that took longer.
const REST: u32 = 60;

/// The state at the last poll.
#[derive(Debug)]
pub(crate) struct Standing {
    state: DeviceState,
    outages: Outages,
    /// The number of polls before the next attempt to extend the queue of a grown device.
    rest: u32,
}

impl Standing {
    pub(crate) fn new(disk: &Disk) -> Self {
        let outages = disk.device().outages().unwrap_or_default();
        // A file that has become shorter since it was opened is reported at the first poll.
        let state = DeviceState { bytes: disk.seen().bytes(), ..disk.look() };
        Self { state, outages, rest: 0 }
    }

    /// Logs the changes since the last poll.
    pub(crate) fn look(&mut self, disk: &Disk) {
        let (name, device) = (disk.name(), disk.device());
        if let Some(outages) = device.outages() {
            for line in connections(&self.outages, &outages) {
                tracing::warn!("{name}: {line}");
            }
            self.outages = outages;
        }
        for finding in device.take_findings() {
            match finding {
                Finding::Fault(_) => tracing::error!("{name}: {finding}"),
                Finding::Progress(_) => tracing::info!("{name}: {finding}"),
            }
        }
        let state = disk.look();
        for line in changes(&self.state, &state, disk.seen().bytes()) {
            tracing::warn!("{name}: {line}");
        }
        self.follow_end(disk, state.bytes);
        self.state = state;
    }

    /// Extends the queue to a device of `bytes` bytes, if that is more than before.
    fn follow_end(&mut self, disk: &Disk, bytes: u64) {
        let block = u64::from(disk.device().shape().limits.logical_block_size);
        if bytes / block * block <= disk.seen().bytes() {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let (name, clock) = (disk.name(), disk.service().clock());
        let until = clock.now() + PATIENCE;
        match disk.grow(bytes, &|| clock.now() < until) {
            Ok(()) => {
                let bytes = disk.seen().bytes();
                tracing::info!(bytes, "{name}: exports that end with it have its new size");
            }
            Err(error) => {
                self.rest = REST;
                tracing::warn!("{name}: exports keep their size for another minute: {error}");
            }
        }
    }
}

/// Describes the losses and re-establishments of connections between two polls, and the requests given up.
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
    if now.given_up > before.given_up {
        let last = now.last_given_up.as_deref().unwrap_or("unknown");
        let count = now.given_up - before.given_up;
        lines.push(format!(
            "{count} requests have failed, since their connections were lost again and again; the last one: {last}"
        ));
    }
    lines
}

/// Describes the changes of a device of which `served` bytes are served.
fn changes(before: &DeviceState, now: &DeviceState, served: u64) -> Vec<String> {
    let mut lines = Vec::new();
    if now.bytes != before.bytes {
        lines.push(resized(before.bytes, now.bytes, served));
    }
    if now.is_removed && !before.is_removed {
        lines.push(
            "its file has been removed or replaced; exports keep the old one, which is lost when the server ends"
                .to_owned(),
        );
    }
    match (before.is_read_only, now.is_read_only) {
        (false, true) => {
            lines.push("it takes no writes any more; new connections are read-only".to_owned());
        }
        (true, false) => lines.push(
            "it takes writes by now; exports can be written to once the server is started anew"
                .to_owned(),
        ),
        _ => {}
    }
    if now.has_volatile_cache && !before.has_volatile_cache {
        lines.push(
            "its write cache has been switched on; flushes are sent to it once the server is started anew, and until then \
             a flush makes nothing durable"
                .to_owned(),
        );
    }
    lines
}

/// Describes a change of size of a device of which `served` bytes are served.
fn resized(before: u64, now: u64, served: u64) -> String {
    let what = format!("its store has been resized from {before} to {now} bytes");
    if now < served {
        format!(
            "{what}; I/O beyond that fails, and exports keep their size of {served} bytes in all"
        )
    } else if now == served {
        format!("{what}, the size that exports have")
    } else {
        format!(
            "{what}; new clients of its exports get that, and block devices when the server is started anew"
        )
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
    fn a_request_that_is_given_up_is_named() {
        let mut now = outages(3, 3);
        (now.given_up, now.last_given_up) = (1, Some("write of 512 bytes at 0".to_owned()));
        let lines = connections(&outages(3, 3), &now);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("the last one: write of 512 bytes at 0"), "{lines:?}");
    }

    #[test]
    fn a_smaller_store_fails_and_a_larger_one_waits() {
        assert!(resized(100, 50, 100).contains("from 100 to 50 bytes; I/O beyond that fails"));
        assert!(resized(50, 100, 100).ends_with("the size that exports have"));
        assert!(resized(100, 200, 100).contains("new clients of its exports get that"));
    }

    #[test]
    fn what_a_device_loses_is_told_of() {
        let before = DeviceState {
            bytes: 100,
            is_read_only: false,
            is_removed: false,
            has_volatile_cache: false,
        };
        let now = DeviceState {
            is_read_only: true,
            is_removed: true,
            has_volatile_cache: true,
            ..before
        };
        let lines = changes(&before, &now, 100);
        assert!(lines[0].contains("removed or replaced"), "{lines:?}");
        assert!(lines[1].contains("new connections are read-only"), "{lines:?}");
        assert!(lines[2].contains("write cache has been switched on"), "{lines:?}");
        assert_eq!(changes(&now, &now, 100), Vec::<String>::new());
    }
}
