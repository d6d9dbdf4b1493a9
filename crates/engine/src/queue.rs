//! A block queue: the handle, and what is behind it.
//!
//! Passive: starts no thread, reads no clock, never blocks. The way of an I/O is in `submitter.rs`, `drive.rs`,
//! `runner.rs` and `pump.rs`, in this order; how a queue is built in `build.rs`, and rebuilt in `change.rs`.

use crate::before::By;
use crate::build::Handover;
use crate::config::{Config, ConfigError};
use crate::drive::Caller;
use crate::groups::{Ledger, Meters};
use crate::plan::Plan;
use crate::runner::Staging;
use crate::salvage::SALVAGE_AGAIN;
use crate::seats::Seats;
use crate::shared::{Lasting, Shared};
use crate::stats::QueueStats;
use crate::submitter::{Parts, Submitter};
use crate::sync::{Arc, Control, Mutex, MutexGuard, PoisonError, ring};
use crate::{Access, BioTable, GroupTree};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use crossbeam_utils::CachePadded;
use std::fmt;

/// Counters behind those of the pump threads: for a thread that changes the queue, and for one that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

/// What is behind every handle to a queue, however often it is rebuilt.
pub(crate) struct Root<P> {
    pub(crate) lasting: Arc<Lasting<P>>,
    current: Mutex<Arc<Shared<P>>>,
    /// For one at a time who changes the queue.
    desk: Mutex<Desk>,
}

/// What whoever changes a queue has before him.
pub(crate) struct Desk {
    pub(crate) plan: Plan,
    /// Counted by what has been replaced.
    pub(crate) past: QueueStats,
    /// Somebody is in the middle of a change.
    pub(crate) taken: bool,
}

impl<P> Root<P> {
    /// The queue as it is made up at present.
    pub(crate) fn current(&self) -> Arc<Shared<P>> {
        Arc::clone(&self.current.lock().expect("nobody panics while holding it"))
    }

    /// Puts `next` in the place of the present queue.
    pub(crate) fn replace(&self, next: Shared<P>) -> Arc<Shared<P>> {
        let (version, next) = (next.version, Arc::new(next));
        *self.current.lock().expect("nobody panics while holding it") = Arc::clone(&next);
        self.lasting.control.publish(version);
        next
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        // What lies there is whole whenever somebody may panic, and those who let go must not do so again.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block queue around a device. Cheap to clone; all clones are the same queue.
///
/// # How to drive it
///
/// Register a [`Submitter`] per thread. It pushes I/Os into its plug, flushes the plug, and reaps its
/// completions; in between it calls [`Submitter::poll`] with the time, which does whatever is due. When it
/// has nothing to do it may park, after [`Submitter::prepare_park`] agreed. The time given never needs to be
/// exact, and may differ between threads, but elevators see it as if it never ran backwards.
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
            .field("hw_queues", &q.hctxs.len())
            .field("elevators", &q.shards.len())
            .finish_non_exhaustive()
    }
}

/// Every submitter that the queue was built for is registered already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSubmitterLeft {
    /// How many there are.
    pub submitters: u16,
}

impl fmt::Display for NoSubmitterLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} submitters of the queue are registered; build it for more",
            self.submitters
        )
    }
}

impl std::error::Error for NoSubmitterLeft {}

impl<P: Send + 'static> Queue<P> {
    /// Builds a queue.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: Config<P>) -> Result<Self, ConfigError> {
        config.validate()?;
        let plan = config.plan();
        let membership = match &config.tags {
            Some(tags) => Some(tags.reserve().ok_or(ConfigError::TagUsers)?),
            None => None,
        };
        let (table, credits) = BioTable::new(config.submitters, config.depth);
        let (mut idle, mut staging, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for (id, credit) in (0..config.submitters).map(SubmitterId).zip(credits) {
            let (producer, protos) = ring(credit.depth());
            // As many as there can be I/Os to ask for.
            let (asks_end, asks) = ring(credit.depth());
            let (sender, receiver) = table.finish_ring(&credit);
            staging.push((id, Staging { protos, asks }));
            senders.push(sender);
            let hw = plan.home(id.0);
            idle.push(Parts { id, hw, staging: producer, asks: asks_end, receiver, credit });
        }
        idle.reverse();
        let pump_tallies =
            (0..plan.device.hw_queues + OTHER_TALLIES).map(|_| CachePadded::default()).collect();
        let lasting = Arc::new(Lasting {
            table,
            tallies: senders.iter().map(|_| Arc::default()).collect(),
            senders: senders.into_boxed_slice(),
            host: config.host,
            pump_tallies,
            control: Control::new(),
            meters: Meters::new(),
            ledger: Arc::new(Ledger::new()),
            pump_mode: config.pump,
            seats: Seats::new(idle),
            salvage: Mutex::new(()),
            membership,
        });
        lasting.meters.set(&plan.groups);
        lasting.ledger.regroup(GroupTree::default().changes(&plan.groups));
        let mut shared = Shared::build(&plan, Arc::clone(&lasting), lasting.control.version());
        let devices = config.queues.into_iter().map(|queue| (queue, Instant::ZERO));
        shared.install(Handover { devices: devices.collect(), staging, waiting: Vec::new() });
        let root = Root {
            lasting,
            current: Mutex::new(Arc::new(shared)),
            desk: Mutex::new(Desk { plan, past: QueueStats::default(), taken: false }),
        };
        let root = Arc::new(root);
        // Loom has no weak pointers, and models no queues.
        #[cfg(not(loom))]
        if let Some(membership) = &root.lasting.membership {
            membership.take(Arc::downgrade(&root));
        }
        Ok(Self { root })
    }

    /// Registers a submitter: one per thread, the software queue of the kernel. It maps to a hardware queue;
    /// consecutive ones to consecutive hardware queues. A submitter that was dropped with I/Os in flight counts until
    /// those are done.
    ///
    /// # Errors
    /// If as many are registered as the queue was built for.
    pub fn submitter(&self) -> Result<Submitter<P>, NoSubmitterLeft> {
        let lasting = &self.root.lasting;
        match lasting.seats.take(&lasting.table) {
            Some(parts) => Ok(Submitter::new(Arc::clone(&self.root), parts)),
            None => Err(NoSubmitterLeft { submitters: self.root.lasting.senders.len() as u16 }),
        }
    }

    /// Runs the pump of `hw` and what follows from it: the body of a pump thread's loop. Says when to come
    /// back if nobody calls earlier.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    pub fn pump(&self, hw: HwQueue, now: Instant) -> Option<Instant> {
        let q = &*self.root.current();
        if self.is_poisoned() {
            return (!q.salvage(now)).then_some(now + SALVAGE_AGAIN);
        }
        let shard = &q.shards[q.shard_of(hw)];
        let tally = &q.lasting.pump_tallies[usize::from(hw.0)];
        let who = q.pump_thread(hw);
        if q.modes.access == Access::Combining {
            let by = Caller { id: None, now, home: hw, tally };
            if q.pump_may_run(hw, who, now) && q.pump(hw, now, tally) {
                q.kick_and_drive(shard, by);
            }
            if shard.gate.due(now) {
                q.kick_and_drive(shard, by);
            }
        } else {
            q.locked_poll(shard, By { who, now }, hw);
        }
        let hctx = &q.hctxs[usize::from(hw.0)];
        [hctx.pump.deadline(), hctx.next_event(), shard.gate.deadline()].into_iter().flatten().min()
    }

    /// Does what is due anywhere in the queue, for I/Os that no submitter waits for: those of submitters that were
    /// dropped. O(hardware queues).
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

    /// Has a policy or a device of this queue panicked? Then it takes no I/Os any more; those that it had end with
    /// [`IoError::POISONED`](blkmq_core::IoError::POISONED), and what a device has of a queue whose policy panicked
    /// ends as it ends. The panic goes on in the thread in which it happened.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.root.lasting.control.is_poisoned()
    }

    /// A snapshot of all counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        // Held throughout, so that nothing is replaced, and counted twice, meanwhile.
        let desk = self.root.desk();
        let (q, mut stats) = (self.root.current(), desk.past);
        q.count_into(&mut stats);
        q.lasting.tallies.iter().for_each(|tally| stats.add_submitter(tally));
        q.lasting.pump_tallies.iter().for_each(|tally| stats.add_submitter(tally));
        stats
    }

    /// Driver tags in use at `hw`. With shared tags, by all hardware queues.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn tags_in_use(&self, hw: HwQueue) -> u32 {
        self.root.current().hctxs[usize::from(hw.0)].tags.in_use()
    }

    /// Budgets in use.
    #[must_use]
    pub fn budgets_in_use(&self) -> u32 {
        self.root.current().budget.in_use()
    }

    /// How many tokens are out and how many there are, by pool, if the scheduler has any.
    #[must_use]
    pub fn tokens(&self) -> Vec<(u32, u32)> {
        self.root.current().common.iter().flat_map(|common| common.tokens()).collect()
    }

    /// Shows what the scheduler's governor shows of itself, if it has one, in a fixed order.
    pub fn inspect_governor(&self, out: &mut dyn FnMut(&'static str, u64)) {
        if let Some(common) = &self.root.current().common {
            common.inspect(out);
        }
    }

    /// The busy average of `hw` (`spec/framework.md` 8.2); only zero or not matters.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn dispatch_busy(&self, hw: HwQueue) -> u8 {
        self.root.current().hctxs[usize::from(hw.0)].busy().get()
    }
}
