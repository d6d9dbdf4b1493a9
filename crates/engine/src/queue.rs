//! A block queue: elevators, hardware queues, and the registered submitters around them.
//!
//! Passive: starts no thread, reads no clock, never blocks. Building and taking apart is here; the way of an
//! I/O is in `submitter.rs`, `drive.rs`, `runner.rs` and `pump.rs`, in this order.

use crate::completions::Completions;
use crate::config::{Config, ConfigError, PumpMode};
use crate::drive::Caller;
use crate::elevator::{self, Elevator, Proto};
use crate::follow::Lead;
use crate::gate::Gate;
use crate::hctx::Hctx;
use crate::inflight::Handback;
use crate::pump::Pump;
use crate::runner::{Lane, Runner};
use crate::slots::BioSender;
use crate::stats::{ElevatorCounters, PumpCounters, QueueStats, SubmitterCounters};
use crate::submitter::{Parts, Submitter};
use crate::sync::{Arc, Budget, Consumer, Mutex, Pending, Producer, TagSet, TagSetShape, ring};
use crate::{Access, BioTable, Host, Inflight, NoMerges, WriteCache};
use blkmq_core::{HwQueue, Instant, IoFlags, Limits, SubmitterId};
use blkmq_sched::{Done, Shape};
use crossbeam_utils::CachePadded;
use std::fmt;

/// One elevator and those who share it.
pub(crate) struct Shard {
    pub(crate) gate: Gate<Runner>,
    /// Submitters that staged something since it was last drained.
    pub(crate) pending: Pending,
    /// Who runs the elevator lately.
    pub(crate) lead: CachePadded<Lead>,
    /// Requests held, for the locked modes' look before the lock. Written under the lock.
    pub(crate) held: CachePadded<crate::sync::AtomicU32>,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    first_hw: u16,
    hw_queues: u16,
    counters: Arc<ElevatorCounters>,
}

impl Shard {
    /// The hardware queues that this elevator serves.
    pub(crate) fn hws(&self) -> std::ops::Range<u16> {
        self.first_hw..self.first_hw + self.hw_queues
    }
}

/// What all handles to a queue share.
pub(crate) struct Shared<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) limits: Limits,
    /// Bare flushes are answered at once: the device needs none.
    pub(crate) needs_no_flush: bool,
    /// Flags that mean nothing to the device.
    pub(crate) meaningless: IoFlags,
    pub(crate) access: Access,
    pub(crate) nomerges: NoMerges,
    pub(crate) pump_mode: PumpMode,
    pub(crate) shared_tags: bool,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) hctxs: Box<[Hctx<P>]>,
    pub(crate) senders: Box<[BioSender]>,
    pub(crate) budget: Budget,
    /// Shards that wait for a budget.
    pub(crate) budget_wait: Pending,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tallies: Box<[Arc<CachePadded<SubmitterCounters>>]>,
    /// What pump threads count, by hardware queue.
    pub(crate) pump_tallies: Box<[CachePadded<SubmitterCounters>]>,
    idle: Mutex<Vec<Parts>>,
}

impl<P> Shared<P> {
    /// The elevator that serves `hw`.
    pub(crate) fn shard_of(&self, hw: HwQueue) -> usize {
        if self.shards.len() == 1 { 0 } else { hw.0.into() }
    }

    /// Takes a submitter's ends of its rings back when it goes.
    pub(crate) fn retire(&self, parts: Parts) {
        self.idle.lock().expect("nobody panics while holding the list").push(parts);
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
    pub(crate) shared: Arc<Shared<P>>,
}

impl<P> Clone for Queue<P> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P> fmt::Debug for Queue<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("hw_queues", &self.shared.hctxs.len())
            .field("elevators", &self.shared.shards.len())
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

/// The ends of the rings between an elevator and one hardware queue's pump, while a queue is being built.
pub(crate) struct Ends {
    pub(crate) outbox: Consumer<Inflight>,
    pub(crate) returns: Producer<Done>,
    pub(crate) handbacks: Producer<Handback>,
}

impl<P: Send + 'static> Queue<P> {
    /// Builds a queue.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: Config<P>) -> Result<Self, ConfigError> {
        config.validate()?;
        let (table, credits) = BioTable::new(config.submitters, config.depth);
        let mut idle = Vec::new();
        let mut staging = Vec::new();
        let mut senders = Vec::new();
        for (id, credit) in (0..config.submitters).map(SubmitterId).zip(credits) {
            let (producer, consumer) = ring(credit.depth());
            let (sender, receiver) = table.finish_ring(&credit);
            staging.push(Some(consumer));
            senders.push(sender);
            idle.push(Parts { id, hw: config.home(id.0), staging: producer, receiver, credit });
        }
        idle.reverse();
        let (shards, ends) = build_shards(&config, &table, &mut staging);
        let waiters = lockers(config.submitters, config.device.hw_queues);
        let gate = |pump| Gate::new(config.access, waiters, pump);
        let pumps = config.queues.into_iter().zip(ends);
        let pumps = pumps.map(|(queue, ends)| gate(Pump::new(queue, ends, &table)));
        let hctxs = build_hctxs(pumps, &config.device, shards.len());
        let tallies = senders.iter().map(|_| Arc::default()).collect();
        let shared = Shared {
            table,
            limits: config.device.limits,
            needs_no_flush: config.device.cache == WriteCache::Through,
            meaningless: config.device.cache.meaningless(),
            access: config.access,
            nomerges: config.nomerges,
            pump_mode: config.pump,
            shared_tags: config.device.shared_tags,
            budget: Budget::new(config.device.budget),
            budget_wait: Pending::new(shards.len() as u16),
            shards,
            hctxs,
            senders: senders.into_boxed_slice(),
            host: config.host,
            tallies,
            pump_tallies: (0..config.device.hw_queues).map(|_| CachePadded::default()).collect(),
            idle: Mutex::new(idle),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Registers a submitter: one per thread, the software queue of the kernel. It maps to a hardware queue;
    /// consecutive ones to consecutive hardware queues.
    ///
    /// # Errors
    /// If as many are registered as the queue was built for.
    pub fn submitter(&self) -> Result<Submitter<P>, NoSubmitterLeft> {
        let parts = self.shared.idle.lock().expect("nobody panics while holding the list").pop();
        match parts {
            Some(parts) => Ok(Submitter::new(Arc::clone(&self.shared), parts)),
            None => Err(NoSubmitterLeft { submitters: self.shared.senders.len() as u16 }),
        }
    }

    /// Runs the pump of `hw` and what follows from it: the body of a pump thread's loop. Says when to come
    /// back if nobody calls earlier.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    pub fn pump(&self, hw: HwQueue, now: Instant) -> Option<Instant> {
        let q = &*self.shared;
        let shard = &q.shards[q.shard_of(hw)];
        let tally = &q.pump_tallies[usize::from(hw.0)];
        if q.access == Access::Combining {
            let by = Caller { id: None, now, home: hw, tally };
            if q.pump(hw, now, tally) {
                q.kick_and_drive(shard, by);
            }
            if shard.gate.due(now) {
                q.kick_and_drive(shard, by);
            }
        } else {
            q.locked_poll(shard, usize::from(q.senders.len() as u16 + hw.0), now, hw);
        }
        let hctx = &q.hctxs[usize::from(hw.0)];
        [hctx.pump.deadline(), hctx.next_event(), shard.gate.deadline()].into_iter().flatten().min()
    }

    /// A snapshot of all counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        let mut stats = QueueStats::default();
        let q = &*self.shared;
        q.shards.iter().for_each(|shard| stats.add_elevator(&shard.counters));
        q.hctxs.iter().for_each(|hctx| stats.add_pump(&hctx.counters));
        q.tallies.iter().for_each(|tally| stats.add_submitter(tally));
        q.pump_tallies.iter().for_each(|tally| stats.add_submitter(tally));
        stats
    }

    /// Driver tags in use at `hw`. With shared tags, by all hardware queues.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn tags_in_use(&self, hw: HwQueue) -> u32 {
        self.shared.hctxs[usize::from(hw.0)].tags.in_use()
    }

    /// Budgets in use.
    #[must_use]
    pub fn budgets_in_use(&self) -> u32 {
        self.shared.budget.in_use()
    }

    /// The busy average of `hw` (`spec/framework.md` 8.2); only zero or not matters.
    ///
    /// # Panics
    /// If the device has no such hardware queue.
    #[must_use]
    pub fn dispatch_busy(&self, hw: HwQueue) -> u8 {
        self.shared.hctxs[usize::from(hw.0)].busy().get()
    }
}

impl<P> Shared<P> {
    /// When a submitter of `shard` should look again without anybody asking.
    pub(crate) fn deadline(&self, shard: &Shard) -> Option<Instant> {
        let inline = self.pump_mode == PumpMode::Inline;
        let hctxs = shard.hws().filter(|_| inline).map(|hw| &self.hctxs[usize::from(hw)]);
        let pumps = hctxs.flat_map(|hctx| [hctx.pump.deadline(), hctx.next_event()]);
        pumps.flatten().chain(shard.gate.deadline()).min()
    }
}

fn build_shards<P>(
    config: &Config<P>,
    table: &BioTable<P>,
    staging: &mut [Option<Consumer<Proto>>],
) -> (Box<[Shard]>, Vec<Ends>) {
    let shards = config.shards();
    let per_shard = config.device.hw_queues / shards;
    let nr_requests = config.effective_nr_requests();
    let mut ends = Vec::new();
    let shards = (0..shards).map(|index| {
        let first_hw = index * per_shard;
        let elevator_config = elevator::Config {
            limits: config.device.limits,
            cache: config.device.cache,
            nomerges: config.nomerges,
            first_hw,
            hw_queues: per_shard,
            nr_requests,
        };
        let slots = elevator_config.slots();
        let shape = Shape {
            slots,
            nr_requests,
            hw_depth: config.device.hw_queue_depth,
            hw_queues: per_shard,
        };
        let policy = (config.scheduler.build)(&shape, &config.options);
        let counters = Arc::new(ElevatorCounters::default());
        let mine = |id: u16| shards == 1 || config.home(id).0 == index;
        let rings = (0..config.submitters).map(|id| staging[usize::from(id)].take_if(|_| mine(id)));
        let lanes = (0..per_shard).map(|_| {
            let (outbox, outbox_end) = ring(config.device.hw_queue_depth);
            let (returns_end, returns) = ring(slots);
            let (handbacks_end, handbacks) = ring(slots);
            ends.push(Ends { outbox: outbox_end, returns: returns_end, handbacks: handbacks_end });
            Lane { outbox, returns, handbacks, hint: 0 }
        });
        let runner = Runner::new(
            Elevator::new(elevator_config, policy, Arc::clone(&counters)),
            lanes.collect(),
            first_hw,
            rings.collect(),
            Completions::new(table),
        );
        Shard {
            gate: Gate::new(
                config.access,
                lockers(config.submitters, config.device.hw_queues),
                runner,
            ),
            pending: Pending::new(config.submitters),
            lead: CachePadded::default(),
            held: CachePadded::default(),
            submitters: (0..config.submitters).filter(|id| mine(*id)).map(SubmitterId).collect(),
            index,
            first_hw,
            hw_queues: per_shard,
            counters,
        }
    });
    (shards.collect(), ends)
}

/// Who may wait for a lock: every submitter and every pump thread.
fn lockers(submitters: u16, hw_queues: u16) -> usize {
    usize::from(submitters) + usize::from(hw_queues)
}

fn build_hctxs<P: Send>(
    pumps: impl Iterator<Item = Gate<Pump<P>>>,
    device: &crate::DeviceShape,
    shards: usize,
) -> Box<[Hctx<P>]> {
    let new_tags =
        || Arc::new(TagSet::new(&TagSetShape::new(device.hw_queue_depth, shards as u16)));
    let shared = new_tags();
    let hctxs = pumps.map(|pump| {
        let tags = if device.shared_tags { Arc::clone(&shared) } else { new_tags() };
        Hctx::new(pump, tags, Arc::new(PumpCounters::default()))
    });
    hctxs.collect()
}

impl<P> Drop for Shared<P> {
    /// Whatever is still on its way ends here: its submitters are gone, or they would hold the queue.
    fn drop(&mut self) {
        for hctx in &mut self.hctxs {
            for rq in hctx.pump.get_mut().abandon() {
                // What its bios hold goes with the table.
                let _ = rq.into_head();
            }
        }
        for shard in &mut self.shards {
            for rq in shard.gate.get_mut().abandon() {
                let _ = rq.into_head();
            }
        }
    }
}
