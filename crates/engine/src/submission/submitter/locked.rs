//! A push where the elevator is behind a lock, for comparison.

use super::Submitter;
use crate::submission::plugged::PluggedRequest;
use blkmq_core::Instant;

impl<P: Send> Submitter<P> {
    /// As in the kernel, the lock is taken for the merge attempt of each bio.
    pub(super) fn push_locked(&mut self, now: Instant, proto: PluggedRequest) {
        let who = self.id();
        if let Err(proto) = self.q.locked_merge(self.shard(), who, now, proto) {
            self.make_room(now);
            self.plug.append(proto);
        }
    }
}
