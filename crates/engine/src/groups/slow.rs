//! [`SlowIo`]: a request that took long, for reports.

use blkmq_core::{GroupIndex, Instant, Nanos, Op};

/// A request that took longer than [`StatsMode::slow`](super::StatsMode::slow), and where its time went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowIo {
    /// Its group.
    pub group: GroupIndex,
    /// The operation.
    pub op: Op,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
    /// When its completion was found.
    pub completed: Instant,
    /// From the arrival until the request had a slot.
    pub slot: Nanos,
    /// In the scheduler, while it could have been picked.
    pub policy: Nanos,
    /// In the scheduler, while there was no driver tag, budget or room at the device.
    pub tag: Nanos,
    /// At the device.
    pub device: Nanos,
}
