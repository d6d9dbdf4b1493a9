//! [`Opened`]: the questions that an open device answers, whatever its kind and the payloads of its I/Os.

use blkmq_buf::BufferPool;
use blkmq_core::{Extent, Finding};
use std::io;
use std::ops::Range;

/// A device as it is by now; see [`Device::state`](crate::Device::state).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// Its size.
    pub bytes: u64,
    /// Nothing can be changed, whatever the reason: a parameter, the block device, the server or the cluster.
    pub is_read_only: bool,
    /// It is a file that was removed or replaced: data written to it is lost with the last program that has it open.
    pub is_removed: bool,
    /// Writes wait in a volatile cache until a flush.
    pub has_volatile_cache: bool,
}

/// How a device writes zeroes; see [`Device::zeroing`](crate::Device::zeroing).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// It takes less time than to write as many bytes.
    pub is_fast: bool,
    /// It can be asked to leave no hole ([`IoFlags::NOUNMAP`](blkmq_core::IoFlags::NOUNMAP)). Where the file system cannot,
    /// the answer is EOPNOTSUPP.
    pub keeps_room: bool,
}

/// The answers are documented where [`Device`](crate::Device) has methods of these names; those given here are of a device
/// that nothing else changes.
pub(super) trait Opened {
    fn state(&self, as_opened: DeviceState) -> DeviceState {
        as_opened
    }

    fn zeroing(&self) -> Zeroing {
        Zeroing { is_fast: true, keeps_room: false }
    }

    fn extents(&self, range: Range<u64>, _most: usize) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { end: range.end, is_hole: false }])
    }

    fn asks_for_extents(&self) -> bool {
        false
    }

    fn moves_data(&self) -> bool {
        true
    }

    fn take_findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn register(&mut self, _pool: &BufferPool) {}
}
