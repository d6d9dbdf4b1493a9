//! A flush in two halves, for drivers in virtual time: a thread that is descheduled at the worst place.

use super::Submitter;
use crate::dispatch::drive::Caller;
use crate::planted::{self, Planted};
use crate::submission::staging::{Own, stage};
use blkmq_core::Instant;

impl<P: Send> Submitter<P> {
    /// The first half of a [`flush`](Self::flush) that finds the elevator taken: leaves the plug in staging and kicks
    /// no runner. [`finish_flush`](Self::finish_flush) must be the next call, however much later. False, without
    /// effect, if the plug is empty or the queue is not accessed by combining.
    ///
    /// For drivers in virtual time, where no thread is interrupted by itself; other programs do not need it.
    #[must_use]
    pub fn begin_flush(&mut self) -> bool {
        if self.plug.is_empty() {
            return false;
        }
        self.catch_up();
        let q = &*self.q;
        if q.is_locked() {
            return false;
        }
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        self.tally.staged.add(1);
        stage(&q.hub.shards[self.shard], own);
        true
    }

    /// The second half: runs the elevator, or leaves a kick to its runner, in the queue as this thread knew it in the
    /// first half.
    pub fn finish_flush(&mut self, now: Instant) {
        let (id, home) = (self.id(), self.lane());
        let by = Caller { id: Some(id), now, home, tally: &self.tally };
        self.q.kick_and_drive(self.shard(), by);
        // As in `flush`, after the staged bios were marked.
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }
}
