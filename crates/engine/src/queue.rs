//! The handle to a block queue.
//!
//! A queue is passive: it starts no thread, reads no clock and never blocks. The folders follow the life of an I/O:
//! `submission`, `elevator`, `dispatch`. `shared` has the words that the threads of a queue share, and
//! `reconfiguration` builds and changes a queue.

use crate::GoalsStatus;
use crate::dispatch::compare::Run;
use crate::dispatch::visit::{Outstanding, QueueTimes, SALVAGE_AGAIN};
use crate::groups::{SlowIo, Wait};
use crate::shared::stats::Board;
use crate::shared::stats::QueueStats;
use crate::submission::Root;
use crate::submission::submitter::Submitter;
use crate::sync::Arc;
use blkmq_core::{GroupId, GroupIndex, HwQueue, Instant};
use blkmq_sched::{GroupIo, Reading};
use std::fmt;

/// A block queue around a device. Cheap to clone; all clones are the same queue.
///
/// # How to drive it
///
/// Register a [`Submitter`] per thread. It pushes I/Os into its plug, flushes the plug, and reaps its completions. In
/// between it calls [`Submitter::poll`] with the time, which does the work that is due. Without work it may park, if
/// [`Submitter::prepare_park`] agrees. The given time need not be exact, and may differ between threads, but elevators
/// never see it run backwards.
pub struct Queue<P> {
    pub(crate) root: Arc<Root<P>>,
}

impl<P> Clone for Queue<P> {
    fn clone(&self) -> Self {
        Self { root: Arc::clone(&self.root) }
    }
}

impl<P> fmt::Debug for Queue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let q = self.root.current();
        f.debug_struct("Queue")
            .field("hw_queues", &q.hub.hctxs.len())
            .field("elevators", &q.hub.shards.len())
            .finish_non_exhaustive()
    }
}

/// All submitters that the queue was built for are registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "all {submitters} submitters of the queue are registered; Config::submitters says how many \
     there may be"
)]
pub struct NoSubmitterLeft {
    /// The number of submitters.
    pub submitters: u16,
}

impl<P: Send + 'static> Queue<P> {
    /// Registers a submitter: one per thread, like the kernel's software queues. It maps to a hardware queue;
    /// consecutive submitters map to consecutive hardware queues. A submitter that was dropped with I/Os in flight
    /// counts as registered until these are done.
    ///
    /// # Errors
    /// If as many submitters are registered as the queue was built for.
    pub fn submitter(&self) -> Result<Submitter<P>, NoSubmitterLeft> {
        let lasting = &self.root.lasting;
        match lasting.seats.take(&lasting.table) {
            Some(parts) => Ok(Submitter::new(Arc::clone(&self.root), parts)),
            None => Err(NoSubmitterLeft { submitters: self.root.lasting.senders.len() as u16 }),
        }
    }

    /// Runs the pump of `hw` and the work that follows: the body of a pump thread's loop. Returns the time at which it
    /// must be called again, if the thread is not woken earlier; `None` if it need not be.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    pub fn pump(&self, hw: HwQueue, now: Instant) -> Option<Instant> {
        let q = &*self.root.current();
        if self.is_poisoned() {
            return (!q.salvage(now)).then_some(now + SALVAGE_AGAIN);
        }
        q.serve(hw, now);
        let pass = q.pass_deadline(&q.hub.shards[q.hub.shard_of(hw)]);
        let next = pass.min(q.pump_deadline(hw));
        (next < Instant::MAX).then_some(next)
    }

    /// Does the work that is due anywhere in the queue, for the I/Os of dropped submitters, which no submitter waits
    /// for. O(hardware queues).
    pub fn poll(&self, now: Instant) {
        let q = self.root.current();
        if self.is_poisoned() {
            q.salvage(now);
        } else {
            q.help(now);
        }
    }

    /// Returns whether there are dropped submitters whose I/Os have not ended. O(such submitters, and their completed
    /// I/Os).
    #[must_use]
    pub fn has_departed(&self) -> bool {
        let lasting = &self.root.lasting;
        lasting.seats.has_departed(&lasting.table)
    }

    /// Returns whether a policy or a device of this queue has panicked. A poisoned queue takes no more I/Os. Its I/Os
    /// end with [`IoError::POISONED`](blkmq_core::IoError::POISONED); if a policy panicked, requests at a device end
    /// with the device's result. The panic itself continues in the thread in which it happened.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.root.lasting.control.is_poisoned()
    }

    /// A snapshot of all counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        // Held throughout, so that no queue is replaced during the count and counted twice.
        let state = self.root.change_state();
        let (q, mut stats) = (self.root.current(), state.past);
        q.count_into(&mut stats);
        q.hub.lasting.tallies.iter().for_each(|tally| stats.add_submitter(tally));
        q.hub.lasting.pump_tallies.iter().for_each(|tally| stats.add_submitter(tally));
        stats
    }

    /// Driver tags in use at `hw`; with shared tags, those of all hardware queues.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn tags_in_use(&self, hw: HwQueue) -> u32 {
        self.root.current().hub.hctx(hw).tags.in_use()
    }

    /// Budgets in use. If there are budgets only for latency goals, none is in use before the goals restrict other
    /// groups.
    #[must_use]
    pub fn budgets_in_use(&self) -> u32 {
        self.root.current().hub.budget.as_ref().map_or(0, |budget| budget.out())
    }

    /// The number of budgets: those of the device, or the most requests that it may hold
    /// ([`DeviceDepth`](crate::DeviceDepth)), if that is less. `None`: any number.
    #[must_use]
    pub fn budgets(&self) -> Option<u32> {
        self.root.current().hub.budget.as_ref().map(|budget| budget.limit())
    }

    /// The state of the latency goals of groups at the last check of their controller, ten times a second while there
    /// is I/O; `None` if no group has any.
    #[must_use]
    pub fn goals(&self) -> Option<GoalsStatus> {
        self.root.current().hub.board.as_ref().map(Board::read)
    }

    /// For each token pool of the scheduler, the tokens in use and the size of the pool.
    #[must_use]
    pub fn tokens(&self) -> Vec<(u32, u32)> {
        self.root.current().hub.common.iter().flat_map(|common| common.tokens()).collect()
    }

    /// Shows the values that the scheduler's governor reports, if it has one, in a fixed order.
    pub fn inspect_governor(&self, out: &mut dyn FnMut(&'static str, u64)) {
        if let Some(common) = &self.root.current().hub.common {
            common.inspect(out);
        }
    }

    /// The busy average of `hw` (`spec/framework.md` 8.2); callers need only know whether it is zero.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn dispatch_busy(&self, hw: HwQueue) -> u8 {
        self.root.current().hub.hctx(hw).busy()
    }

    /// The I/O of a group and its descendants: requests, bytes, merges and times, like iostat's for a device, under
    /// every scheduler. `None` if there is no such group.
    ///
    /// Counted only while [`Plan::stats`](crate::Plan::stats) enables it, and only for requests that went through an
    /// elevator: bare flushes are not included. Notes that a running elevator has not handed over are missing. It hands
    /// them over every few passes, and none is missing at rest. O(groups).
    #[must_use]
    pub fn group_io(&self, group: GroupId) -> Option<GroupIo> {
        self.count_notes();
        self.root.lasting.ledger.io(self.index_of(group)?)
    }

    /// A statistic of a group, by its name in `blkio.bfq`, as in [`GroupStats::read`](blkmq_sched::GroupStats::read):
    /// `io_serviced`, `time`, `io_wait_time_recursive` and so on. `None` if there is no such name or group.
    ///
    /// Counted as for [`group_io`](Self::group_io). Only schedulers that share by group have turns and queue lengths;
    /// under other schedulers these stay at 0.
    #[must_use]
    pub fn group_stat(&self, group: GroupId, name: &str) -> Option<Reading> {
        self.count_notes();
        self.root.lasting.ledger.read(self.index_of(group)?, name)
    }

    /// The index of a group; `None` if the index has been reused.
    fn index_of(&self, group: GroupId) -> Option<GroupIndex> {
        let is_current = group == GroupId::ROOT || self.root.lasting.meters.knows(group);
        is_current.then(|| group.index())
    }

    /// Counts the notes of all elevators that can be entered.
    fn count_notes(&self) {
        // Held because this enters elevators under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        let q = self.root.current();
        // Elevators are entered before the ledger is opened: a thread that runs an elevator may be waiting for the
        // ledger.
        for shard in &q.hub.shards {
            if let Some(mut runner) = q.enter_elevator(shard) {
                // If the elevator waited for no completion, the policy has not been notified of the last ones.
                if runner.take_returns_early(&q.hub, shard) {
                    let _ = q.gate(shard).kick();
                }
                let mut wakes = Vec::new();
                q.carry_out(q.gate(shard), &mut runner.duties, &mut wakes);
                let mut notes = runner.elevator.env.leftover_notes();
                q.leave_elevator(shard, runner, &wakes);
                q.hub.lasting.ledger.count(&mut notes);
            }
        }
    }
}

impl<P: Send + 'static> Queue<P> {
    /// The times of the requests that completed while [`StatsMode::times`](crate::StatsMode::times) was on, by stage,
    /// under every scheduler. The numbers never decrease, and survive changes of the queue. O(groups + slots).
    #[must_use]
    pub fn times(&self) -> QueueTimes {
        let mut now = self.gather();
        let q = self.root.current();
        let book = q.hub.lasting.ledger.book();
        (now.flushes, now.flush_time) = book.account.flushes();
        now.busy = book.account.busy();
        let id = |index| q.hub.lasting.meters.id(index);
        now.groups = book.account.all().into_iter().map(|(at, times)| (id(at), times)).collect();
        now.floors = book.account.floors().map(|report| (id(report.group), report)).collect();
        now
    }

    /// Moves the counts of elevators to the ledger. The result has only the I/Os that elevators hold.
    fn gather(&self) -> QueueTimes {
        // Held because this enters elevators under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        let q = self.root.current();
        let mut now = QueueTimes::default();
        for shard in &q.hub.shards {
            if !q.read_times(shard, &mut now) {
                now.busy_elevators += 1;
            }
        }
        now
    }

    /// The time for which each group waited behind each other group, while
    /// [`StatsMode::times`](crate::StatsMode::times) was on, under every scheduler. Shows whether a tenant is slowed
    /// down, and by which tenants.
    ///
    /// A group waits while one of its I/Os has arrived at the queue and is not at the device: it waits for a slot, or
    /// in the scheduler. Time in a submitter, where ceilings hold I/Os back, is not counted. A second counts once,
    /// however many I/Os of the group wait; with an elevator for each hardware queue, each counts separately. The time
    /// is divided between the groups with requests at the device, in proportion to their requests there; the waiting
    /// group may be one of them. [`Wait::behind`] is `None` while the device has no requests, because the scheduler
    /// idles or keeps to a limit.
    ///
    /// The sum for a waiting group is exact if passes are at least a millisecond apart, as on a disk. Shorter intervals
    /// are sampled with a probability proportional to their length: about one in four times as many as there are
    /// requests with slots, and at least a hundred per second of waiting. Under a scheduler that does not share by
    /// group, only the first of each submitter's I/Os that wait for a slot outside of the elevator is seen.
    ///
    /// Sorted by group, without pairs that have no time. The numbers never decrease, except that a removed group leaves
    /// its numbers to its parent. O(pairs + slots).
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        self.gather();
        self.root.current().hub.lasting.ledger.book().account.waits()
    }

    /// Takes the slow requests that [`times`](Self::times) has found, oldest first, at most 64, and the number of
    /// further slow requests that were not kept.
    #[must_use]
    pub fn take_slow(&self) -> (Vec<SlowIo>, u64) {
        self.root.current().hub.lasting.ledger.book().account.take_slow()
    }
}

impl<P: Send + 'static> Queue<P> {
    /// Up to `most` unfinished requests, oldest first. Requests of an elevator that is busy at each of 200 tries are
    /// left out. A pump that is busy in this way is skipped, so the place and the hardware queue of its requests are a
    /// guess.
    ///
    /// For reports and not for the hot path: O(slots). Also does the work that is due at `now`, as
    /// [`Submitter::poll`](crate::Submitter::poll) does.
    #[must_use]
    pub fn outstanding(&self, now: Instant, most: usize) -> Vec<Outstanding> {
        // Held as for a change, because elevators are entered here under the changer's number.
        let _state = self.root.change_state();
        let q = self.root.current();
        let mut found = Vec::new();
        q.hub.shards.iter().for_each(|shard| q.find_in(shard, &mut found));
        // Entering has deferred work of other threads.
        q.help(now);
        found.sort_by_key(|it| (it.since, it.sector));
        found.truncate(most);
        found
    }
}

impl<P: Send> Queue<P> {
    /// Takes the run of the elevator that serves `hw`. `None` if another thread has it, or if other threads would wait
    /// while it is kept: that is the case under locks, unless dispatch is serialised, inserts are parked and merging is
    /// skipped.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    #[doc(hidden)]
    pub fn begin_run(&self, hw: HwQueue) -> Option<Run<P>> {
        Run::begin(self.root.current(), hw)
    }
}
