//! A submitter in reports: the I/Os that it holds back for the limits of groups, and the bios that it has reaped.

use super::Submitter;
use blkmq_core::{GroupId, Instant, Op};

impl<P> Submitter<P> {
    /// I/Os that wait for the limits of their groups, and the earliest time at which one may go. O(groups that wait).
    #[must_use]
    pub fn throttled(&self) -> (u32, Option<Instant>) {
        (self.throttle.len(), self.throttle.deadline())
    }

    /// Returns whether I/Os of `group`, in the direction of `op`, wait for a limit here, behind which another one would wait.
    /// Reads are one direction, all else is the other. O(groups that wait).
    #[must_use]
    #[inline]
    pub fn is_throttled(&self, group: GroupId, op: Op) -> bool {
        !self.throttle.is_empty() && self.throttle.waits(group.index(), op)
    }

    /// I/Os, and parts of divided ones, that submitters of this number have reaped so far.
    #[must_use]
    pub fn taken_back(&self) -> u64 {
        self.tally.completed.get()
    }
}
