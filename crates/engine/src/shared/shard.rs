//! The words that the threads of one elevator share. The elevator itself is behind a gate of the engine.

#[cfg(feature = "compare")]
use crate::compare::words::ShardModes;
use crate::shared::prospect::Prospect;
use crate::shared::stats::ElevatorCounters;
use crate::submission::follow::Lead;
use crate::sync::{Arc, Pending, Sleepers};
use blkmq_core::SubmitterId;
use crossbeam_utils::CachePadded;

/// The words of one elevator.
pub(crate) struct Shard {
    /// Submitters that staged bios since their rings were last drained, and the leader: the submitter that has been
    /// running the elevator lately.
    pub(crate) pending: Pending<Lead>,
    /// Submitters that asked for an I/O to be cancelled. Apart from `pending`, so that a pass which finds no ask has
    /// only read a line that is not written.
    pub(crate) asked: Pending,
    /// Lanes with finished or requeued requests that no pass has taken back. Not kept for a single lane, which every pass
    /// looks at.
    pub(crate) returned: Pending,
    /// How many of the submitters sleep.
    pub(crate) sleepers: Sleepers,
    /// The words of the comparison modes.
    #[cfg(feature = "compare")]
    pub(crate) modes: ShardModes,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    pub(crate) first_hw: u16,
    /// Lanes: as many as hardware queues, or as submitters where each has its own.
    pub(crate) lanes: u16,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
    /// The forecast for new I/Os, if there is one.
    pub(crate) prospect: Option<Arc<Prospect>>,
}

impl Shard {
    /// The leader: the submitter that has been running the elevator lately.
    #[inline]
    pub(crate) fn lead(&self) -> &Lead {
        self.pending.beside()
    }

    /// The lanes that this elevator serves: those of its hardware queues, by their numbers, or those of its submitters.
    pub(crate) fn hws(&self) -> std::ops::Range<u16> {
        self.first_hw..self.first_hw + self.lanes
    }
}
