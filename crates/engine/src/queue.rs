//! A block queue: the handle, and the state behind it.
//!
//! Passive: starts no thread, reads no clock, never blocks. The path of an I/O is in `submitter.rs`, `drive.rs`,
//! `runner.rs` and `pump.rs`, in this order. `build.rs` builds a queue, and `change.rs` rebuilds it.

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

/// Counters behind those of the pump threads: for a thread that changes the queue, and for a thread that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

/// The state behind every handle to a queue, however often the queue is rebuilt.
pub(crate) struct Root<P> {
    pub(crate) lasting: Arc<Lasting<P>>,
    current: Mutex<Arc<Shared<P>>>,
    /// Lets one thread at a time change the queue.
    change_state: Mutex<ChangeState>,
}

/// The state of reconfiguration: the plan, and the counters of replaced queues.
pub(crate) struct ChangeState {
    pub(crate) plan: Plan,
    /// The counters of the queues that have been replaced.
    pub(crate) past: QueueStats,
    /// A change is under way.
    pub(crate) taken: bool,
}

impl<P> Root<P> {
    /// The current queue.
    pub(crate) fn current(&self) -> Arc<Shared<P>> {
        Arc::clone(&self.current.lock().expect("nobody panics while holding it"))
    }

    /// Puts `next` in the place of the current queue.
    pub(crate) fn replace(&self, next: Shared<P>) -> Arc<Shared<P>> {
        let (version, next) = (next.version, Arc::new(next));
        *self.current.lock().expect("nobody panics while holding it") = Arc::clone(&next);
        self.lasting.control.publish(version);
        next
    }

    pub(crate) fn change_state(&self) -> MutexGuard<'_, ChangeState> {
        // The state is whole wherever a thread may panic, and a thread that drops its change while it unwinds must
        // not panic again.
        self.change_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
            .field("hw_queues", &q.hctxs.len())
            .field("elevators", &q.shards.len())
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
            // One ask for each I/O that may be in flight.
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
            change_state: Mutex::new(ChangeState {
                plan,
                past: QueueStats::default(),
                taken: false,
            }),
        };
        let root = Arc::new(root);
        // Loom has no weak pointers, and models no queues.
        #[cfg(not(loom))]
        if let Some(membership) = &root.lasting.membership {
            membership.take(Arc::downgrade(&root));
        }
        Ok(Self { root })
    }

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
        q.lasting.tallies.iter().for_each(|tally| stats.add_submitter(tally));
        q.lasting.pump_tallies.iter().for_each(|tally| stats.add_submitter(tally));
        stats
    }

    /// Driver tags in use at `hw`; with shared tags, those of all hardware queues.
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

    /// For each token pool of the scheduler, the tokens in use and the size of the pool.
    #[must_use]
    pub fn tokens(&self) -> Vec<(u32, u32)> {
        self.root.current().common.iter().flat_map(|common| common.tokens()).collect()
    }

    /// Shows the values that the scheduler's governor reports, if it has one, in a fixed order.
    pub fn inspect_governor(&self, out: &mut dyn FnMut(&'static str, u64)) {
        if let Some(common) = &self.root.current().common {
            common.inspect(out);
        }
    }

    /// The busy average of `hw` (`spec/framework.md` 8.2); callers need only know whether it is zero.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn dispatch_busy(&self, hw: HwQueue) -> u8 {
        self.root.current().hctxs[usize::from(hw.0)].busy().get()
    }
}
