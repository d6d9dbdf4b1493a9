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
            self.account_stretch(now);
        }
    }

    #[inline(never)]
    fn account_stretch(&mut self, now: Instant) {
        if let Some(time) = self.elevator.stretch(now, !self.blocked.is_empty()) {
            self.look_at_groups(time);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_groups(&mut self, time: u64) {
        let Self { elevator, blocked, staging, .. } = self;
        elevator.account_waits(time, |show| {
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
