//! [`NextIo`]: an I/O that a thread of a job issues.

use blkmq_core::{IoFlags, IoPrio, Op};

/// The next I/O of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextIo {
    /// The operation. A [`Op::Flush`] carries no sectors.
    pub op: Op,
    /// Sync for reads, and for writes of `direct` and `sync` jobs; FUA for writes of `sync` jobs.
    pub flags: IoFlags,
    /// The job's priority, or that of `cmdprio`.
    pub prio: IoPrio,
    /// Length in sectors.
    pub sectors: u32,
    /// First sector.
    pub sector: u64,
}

impl NextIo {
    /// A flush of the device's cache, which a thread waits for.
    pub(super) fn flush(prio: IoPrio) -> Self {
        Self { op: Op::Flush, flags: IoFlags::SYNC, prio, sectors: 0, sector: 0 }
    }
}
