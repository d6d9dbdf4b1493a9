//! A submitter in reports: the I/Os that it holds back for the limits of groups, and the bios that it has reaped.

use super::Submitter;
use blkmq_core::Instant;

impl<P> Submitter<P> {
    /// I/Os that wait for the limits of their groups, and the earliest time at which one may go. O(groups that wait).
    #[must_use]
    pub fn throttled(&self) -> (u32, Option<Instant>) {
        (self.throttle.len(), self.throttle.deadline())
    }

    /// I/Os, and parts of divided ones, that submitters of this number have reaped so far.
    #[must_use]
    pub fn taken_back(&self) -> u64 {
        self.tally.completed.get()
    }
}
