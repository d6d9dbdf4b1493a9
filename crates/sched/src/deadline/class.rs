//! Priority classes and directions, the mapping from requests to them, and the per-class state.

use blkmq_core::{Class, IoMeta};

/// A priority class, in order of precedence (`spec/mq-deadline.md` section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rank {
    Realtime = 0,
    /// Also for requests without a class.
    BestEffort = 1,
    Idle = 2,
}

impl Rank {
    /// Highest first.
    pub(super) const ALL: [Self; 3] = [Self::Realtime, Self::BestEffort, Self::Idle];
    /// The classes that have a higher one above them, highest first.
    pub(super) const LOWER: [Self; 2] = [Self::BestEffort, Self::Idle];
}

/// A direction. Every operation that changes the device is a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dir {
    Read = 0,
    Write = 1,
}

/// A class and a direction: each pair has a sector order and a FIFO of its own. A lane has the same number in both
/// indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane {
    pub(super) rank: Rank,
    pub(super) dir: Dir,
}

impl Lane {
    pub(super) const COUNT: usize = 6;

    pub(super) fn of(meta: &IoMeta) -> Self {
        let rank = match meta.ioprio.class() {
            Class::Realtime => Rank::Realtime,
            Class::None | Class::BestEffort => Rank::BestEffort,
            Class::Idle => Rank::Idle,
        };
        Self { rank, dir: if meta.op.is_write() { Dir::Write } else { Dir::Read } }
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.rank as usize * 2 + self.dir as usize
    }
}

/// The state of one class.
#[derive(Clone, Copy, Default)]
pub(super) struct PerClass {
    /// Requests inserted and not yet completed, merged away or withdrawn; requests in the device count. While it is
    /// not zero, lower classes wait.
    pub(super) queued: u32,
    /// Requests inserted and not yet picked.
    pub(super) held: u32,
    /// The start sector of the last dispatched request of each direction; the sector order continues there.
    pub(super) latest_pos: [u64; 2],
    /// Insertions, without requeues.
    pub(super) inserted: u64,
    /// Requests that were fused into others.
    pub(super) merged: u64,
    /// Picks, including those after a requeue.
    pub(super) dispatched: u64,
    /// Completions at the device.
    pub(super) completed: u64,
}
