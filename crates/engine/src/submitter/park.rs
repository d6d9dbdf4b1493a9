//! Going to sleep: a thread that has nothing to do may, once it has said so and looked again.
//!
//! How it sleeps and who wakes it is the host's; whom to wake is decided in `drive.rs`.

use super::Submitter;
use crate::sync::{Ordering, fence};
use blkmq_core::Instant;

impl<P: Send> Submitter<P> {
    /// May the thread park? If so it must, until [`Host::wake_submitter`](crate::Host::wake_submitter) names
    /// it or [`next_deadline`](Self::next_deadline) passes, and then call [`unpark`](Self::unpark). Not
    /// allowed while there is something to reap or to do, or to flush.
    #[must_use]
    pub fn prepare_park(&mut self, now: Instant) -> bool {
        self.rise();
        self.catch_up();
        if self.is_poisoned() {
            return false;
        }
        let to_do = !self.plug.is_empty() || self.throttle.is_due(now);
        if to_do || self.parts().receiver.reaches(1) {
            return false;
        }
        self.shard().sleepers.lie_down();
        self.is_counted = true;
        let mut parks = self.parts().receiver.prepare_park();
        if parks {
            // Pairs with `find_parked`: the marks are set, then looked for what is due; there it is the other way
            // round, so one of both sees the other. Likewise whoever rebuilds the queue.
            fence(Ordering::SeqCst);
            parks = self.is_current() && !self.q.is_due(self.shard(), now);
        }
        if !parks {
            self.unpark();
        }
        parks
    }

    /// After parking, however it ended.
    pub fn unpark(&mut self) {
        self.parts().receiver.cancel_park();
        self.rise();
    }

    /// Is none of its shard's sleepers any more.
    fn rise(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.shard().sleepers.get_up();
        }
    }

    /// When something will be due without anybody asking again, and should be polled for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.q.deadline(self.shard()), self.throttle.deadline()].into_iter().flatten().min()
    }
}
