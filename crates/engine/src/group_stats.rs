//! Reading the statistics of groups.

use crate::Queue;
use blkmq_core::{GroupId, GroupIndex};
use blkmq_sched::{GroupIo, Reading};

impl<P: Send + 'static> Queue<P> {
    /// The I/O of a group and of all groups below it: requests, bytes, merges and times, as iostat has them for a
    /// device, under every scheduler. `None` if there is no such group.
    ///
    /// Counted only while [`Plan::stats`](crate::Plan::stats) wants it, and only requests that went through an
    /// elevator: bare flushes are not in it. Notes that a running elevator has not handed over yet are missing; it
    /// hands them over every few passes, and at rest none is missing. O(groups).
    #[must_use]
    pub fn group_io(&self, group: GroupId) -> Option<GroupIo> {
        self.count_notes();
        self.root.lasting.ledger.io(self.index_of(group)?)
    }

    /// A statistic of a group, by its name in `blkio.bfq`, as [`GroupStats::read`](blkmq_sched::GroupStats::read) has
    /// them: `io_serviced`, `time`, `io_wait_time_recursive` and so on. `None` if there is no such name or group.
    ///
    /// Counted as for [`group_io`](Self::group_io). Only schedulers that share by group know turns and queue lengths;
    /// under other schedulers these stay at 0.
    #[must_use]
    pub fn group_stat(&self, group: GroupId, name: &str) -> Option<Reading> {
        self.count_notes();
        self.root.lasting.ledger.read(self.index_of(group)?, name)
    }

    /// The index of a group, unless another has it by now.
    fn index_of(&self, group: GroupId) -> Option<GroupIndex> {
        let is_current = group == GroupId::ROOT || self.root.lasting.meters.knows(group);
        is_current.then(|| group.index())
    }

    /// Counts the notes of all elevators that can be entered.
    fn count_notes(&self) {
        // Held because elevators are entered here under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        let q = self.root.current();
        // Elevators are entered before the ledger is opened: a thread that runs an elevator may be waiting for the
        // ledger.
        for shard in &q.hub.shards {
            if let Some(mut runner) = q.enter_elevator(shard) {
                // The policy has not been told of the last completions if the elevator waited for none.
                if runner.take_returns(&q.hub, shard) {
                    let _ = q.gate(shard).kick();
                }
                let mut wakes = Vec::new();
                q.carry_out(q.gate(shard), &mut runner.duties, &mut wakes);
                let mut notes = runner.elevator.env.leftover_notes();
                #[cfg(feature = "compare")]
                runner.publish(shard);
                drop(runner);
                q.wake(&wakes);
                q.hub.lasting.ledger.count(&mut notes);
            }
        }
    }
}
