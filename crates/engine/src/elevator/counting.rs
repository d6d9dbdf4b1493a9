//! Statistics of groups under a policy that keeps none itself: requests merged and completed, as iostat counts them
//! for a device.

use super::{Cx, Done, Elevator};
use blkmq_core::{IoFlags, IoMeta, SECTOR_SIZE};
use blkmq_sched::{About, Event, Facts, StatsLevel};

/// Returns whether the engine counts, for a policy with these properties at this level.
pub(super) fn counts(facts: &Facts, level: StatsLevel) -> bool {
    level > StatsLevel::Off && !facts.notes_groups
}

/// The group of an I/O, its direction, and whether its submitter waits for it, by bfq's rule.
#[inline]
fn about(meta: &IoMeta) -> About {
    let waits = meta.flags.intersects(IoFlags::SYNC | IoFlags::FUA | IoFlags::PREFLUSH);
    About::new(meta.group, meta.op, waits)
}

impl Elevator {
    /// Counts a request that has joined another.
    #[inline]
    pub(super) fn count_merged(&mut self, meta: &IoMeta) {
        if self.counts_groups {
            Cx::new(self.now, &self.requests, &self.env).note(about(meta), Event::Merged);
        }
    }

    /// Counts a request that has finished, all at once: its pick is not counted by itself.
    #[inline]
    pub(super) fn count_done(&mut self, done: &Done) {
        if self.counts_groups {
            self.count_whole(done);
        }
    }

    #[inline(never)]
    fn count_whole(&mut self, done: &Done) {
        let meta = self.requests.get(done.rq);
        let bytes = meta.sectors.saturating_mul(SECTOR_SIZE);
        let wait = done.issued.since(meta.arrived);
        let service = done.completed.since(done.issued);
        self.env.count_whole(about(meta), bytes, wait, service);
    }
}
