//! [`Opened`]: the queries that an open device answers, whatever its kind and the payloads of its I/Os.

use blkmq_buf::BufferPool;
use blkmq_core::{Extent, Finding};
use std::io;
use std::ops::Range;

/// The current state of a device; see [`Device::state`](crate::Device::state).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// The size in bytes.
    pub bytes: u64,
    /// The device is read-only, because of a parameter, the block device, the server or the cluster.
    pub is_read_only: bool,
    /// The device is a file that was removed or replaced: its data is lost when the last program closes it.
    pub is_removed: bool,
    /// Writes wait in a volatile cache until a flush.
    pub has_volatile_cache: bool,
}

/// How a device writes zeroes; see [`Device::zeroing`](crate::Device::zeroing).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// Zeroing takes less time than writing as many bytes.
    pub is_fast: bool,
    /// The device can zero without leaving a hole ([`IoFlags::NOUNMAP`](blkmq_core::IoFlags::NOUNMAP)). If the file
    /// system cannot, the I/O ends with EOPNOTSUPP.
    pub keeps_room: bool,
}

/// The methods are documented at the methods of [`Device`](crate::Device) with the same names. The defaults here are
/// for a device that nothing else changes.
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
