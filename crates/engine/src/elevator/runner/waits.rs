//! The first thing in a pass: the time since the last one is accounted for, by the groups that waited
//! (`elevator/waits.rs`).

use super::Runner;
use blkmq_core::Instant;

impl Runner {
    /// Accounts for the time from the last pass to `now`, in which nothing has changed here. A branch where nothing is
    /// counted.
    #[inline]
    pub(crate) fn account_waits(&mut self, now: Instant) {
        if self.elevator.is_watched() {
            self.account_some(now);
        }
    }

    #[inline(never)]
    fn account_some(&mut self, now: Instant) {
        let Self { elevator, blocked, staging, .. } = self;
        elevator.account_waits(now, !blocked.is_empty(), |show| {
            // Of those that wait in staging, only the first of each submitter is looked at.
            for id in blocked {
                let ring = staging[usize::from(id.0)].as_mut();
                if let Some(first) = ring.and_then(|staging| staging.protos.peek()) {
                    show(first.meta.group);
                }
            }
        });
    }
}
