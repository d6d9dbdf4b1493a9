//! The handle to a block queue.
//!
//! A queue is passive: it starts no thread, reads no clock and never blocks. The folders show the life of an I/O:
//! `submission`, `elevator`, `dispatch`, `completion`. `shared` has the words that the threads of a queue share, and
//! `reconfiguration` builds, changes and ends a queue.

use crate::GoalsStatus;
use crate::elevator::goals::Board;
use crate::reconfiguration::root::Root;
use crate::reconfiguration::salvage::SALVAGE_AGAIN;
use crate::shared::stats::QueueStats;
use crate::submission::submitter::Submitter;
use crate::sync::Arc;
use blkmq_core::{HwQueue, Instant};
use std::fmt;

/// A block queue around a device. Cheap to clone; all clones are the same queue.
///
/// # How to drive it
///
/// Register a [`Submitter`] per thread. It pushes I/Os into its plug, flushes the plug, and reaps its completions; in
/// between it calls [`Submitter::poll`] with the time, which does the work that is due. When it has nothing to do it
/// may park, after [`Submitter::prepare_park`] has agreed. The time given need not be exact, and may differ between
/// threads, but elevators see it as if it never ran backwards.
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

/// Every submitter that the queue was built for is registered already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSubmitterLeft {
    /// The number of submitters.
    pub submitters: u16,
}

impl fmt::Display for NoSubmitterLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} submitters of the queue are registered; Config::submitters says how many there may be",
            self.submitters
        )
    }
}

impl std::error::Error for NoSubmitterLeft {}

impl<P: Send + 'static> Queue<P> {
    /// Registers a submitter: one per thread, like the kernel's software queues. It maps to a hardware queue;
    /// consecutive submitters map to consecutive hardware queues. A submitter that was dropped with I/Os in flight
    /// counts as registered until those are done.
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

    /// Runs the pump of `hw` and the work that follows from it: the body of a pump thread's loop. Returns the time of
    /// the next call, if the thread is not woken earlier.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    pub fn pump(&self, hw: HwQueue, now: Instant) -> Option<Instant> {
        let q = &*self.root.current();
        if self.is_poisoned() {
            return (!q.salvage(now)).then_some(now + SALVAGE_AGAIN);
        }
        q.serve(hw, now);
        let elevator = q.pass_deadlines(&q.hub.shards[q.hub.shard_of(hw)]);
        q.pump_deadlines(hw).into_iter().chain(elevator).flatten().min()
    }

    /// Does the work that is due anywhere in the queue, for I/Os of submitters that were dropped: no submitter waits
    /// for these. O(hardware queues).
    pub fn poll(&self, now: Instant) {
        let q = self.root.current();
        if self.is_poisoned() {
            q.salvage(now);
        } else {
            q.help(now);
        }
    }

    /// Are there submitters that were dropped with I/Os in flight?
    #[must_use]
    pub fn has_departed(&self) -> bool {
        self.root.lasting.seats.has_departed()
    }

    /// Has a policy or a device of this queue panicked? A poisoned queue takes no more I/Os. Those that it had end
    /// with [`IoError::POISONED`](blkmq_core::IoError::POISONED); if a policy panicked, requests at a device end with
    /// the device's result. The panic itself goes on in the thread in which it happened.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.root.lasting.control.is_poisoned()
    }

    /// A snapshot of all counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        // Held throughout, so that no queue is replaced meanwhile and counted twice.
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

    /// Budgets in use. Where there are budgets for the sake of latency goals alone, none is in use until something is taken
    /// for those.
    #[must_use]
    pub fn budgets_in_use(&self) -> u32 {
        self.root.current().hub.budget.in_use()
    }

    /// How many budgets there are: those of the device, or as many requests as it may hold
    /// ([`DeviceDepth`](crate::DeviceDepth)), if that is fewer. `None`: any number.
    #[must_use]
    pub fn budgets(&self) -> Option<u32> {
        self.root.current().hub.budget.limit()
    }

    /// How the latency goals of groups stand, as of the last look of their controller, ten times a second while there is
    /// I/O; `None` if no group has any.
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
        self.root.current().hub.hctx(hw).busy().get()
    }
}
