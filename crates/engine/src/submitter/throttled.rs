//! What a report says of a submitter: what it holds back for the limits of groups, and what it has had back.

use super::Submitter;
use blkmq_core::Instant;

impl<P> Submitter<P> {
    /// I/Os that wait for the limits of their groups, and when the first of them may go. O(groups that wait).
    #[must_use]
    pub fn throttled(&self) -> (u32, Option<Instant>) {
        (self.throttle.len(), self.throttle.deadline())
    }

    /// I/Os, and parts of divided ones, that have been taken back by submitters of this number so far.
    #[must_use]
    pub fn taken_back(&self) -> u64 {
        self.tally.completed.get()
    }
}
