//! Reading what is counted about groups.

use crate::Queue;
use blkmq_core::GroupId;
use blkmq_sched::{GroupIo, Reading};

impl<P: Send + 'static> Queue<P> {
    /// What a group, and all below it, has done: requests, bytes, merges and times, as iostat has them for a device,
    /// under every scheduler. `None` if there is no such group.
    ///
    /// Counted only while [`Plan::stats`](crate::Plan::stats) wants it, and only requests that went through an elevator:
    /// bare flushes are not in it. What an elevator that is being run has not given away yet is missing, which it gives
    /// away every few passes; at rest, everything is there. O(groups).
    #[must_use]
    pub fn group_io(&self, group: GroupId) -> Option<GroupIo> {
        self.count_notes();
        self.root.lasting.ledger.io(group)
    }

    /// A statistic of a group, by its name in `blkio.bfq`, as [`GroupStats::read`](blkmq_sched::GroupStats::read) has
    /// them: `io_serviced`, `time`, `io_wait_time_recursive` and so on. `None` if there is no such name or group.
    ///
    /// As [`group_io`](Self::group_io); what schedulers other than those that share by group do not know, turns and
    /// queue lengths, stays at 0 under them.
    #[must_use]
    pub fn group_stat(&self, group: GroupId, name: &str) -> Option<Reading> {
        self.count_notes();
        self.root.lasting.ledger.read(group, name)
    }

    /// Counts what elevators have noted down, as far as they can be entered.
    fn count_notes(&self) {
        // As for a change, in whose name elevators are entered here.
        let _desk = self.root.desk();
        let q = self.root.current();
        // Before the ledger is opened: the thread that runs an elevator may be waiting for it.
        for shard in &q.shards {
            if let Some(mut runner) = q.enter_elevator(shard) {
                // What came back last nobody has told the policy, if nobody waited for it.
                if runner.take_returns(&q) {
                    let _ = shard.gate.kick();
                }
                let wakes = std::mem::take(&mut runner.wakes);
                let mut notes = runner.elevator.outside.leftover_notes();
                runner.publish(shard);
                drop(runner);
                q.wake(&wakes);
                q.lasting.ledger.count(&mut notes);
            }
        }
    }
}
