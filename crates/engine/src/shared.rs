//! The current state behind all handles to a queue: elevators, hardware queues, budgets.
//!
//! A change to a queue in use builds a new [`Shared`] (`change.rs`, `build.rs`); [`Lasting`] stays.

use crate::before::parking::Parking;
use crate::common::Common;
use crate::config::PumpMode;
use crate::follow::Lead;
use crate::gate::Gate;
use crate::groups::{Ledger, Meters};
use crate::hctx::Hctx;
use crate::runner::Runner;
use crate::seats::Seats;
use crate::slots::BioSender;
use crate::stats::{ElevatorCounters, QueueStats, SubmitterCounters};
use crate::sync::{Arc, AtomicU32, Budget, Control, DispatchGate, Mutex, Pending, Sleepers};
use crate::tags::Membership;
use crate::{BioTable, EffectiveModes, Host, NoMerges};
use blkmq_core::{HwQueue, Instant, IoFlags, Limits, SubmitterId};
use crossbeam_utils::CachePadded;

/// One elevator, and the state of the threads that share it.
pub(crate) struct Shard {
    pub(crate) gate: Gate<Runner>,
    /// Submitters that staged bios since their rings were last drained, and the leader: the submitter that has been
    /// running the elevator lately.
    pub(crate) pending: Pending<Lead>,
    /// Submitters that asked for an I/O to be cancelled. Apart from `pending`, so that a pass which finds no ask has
    /// only read a line that is not written.
    pub(crate) asked: Pending,
    /// How many of the submitters sleep.
    pub(crate) sleepers: Sleepers,
    /// Requests held, for the locked modes' check before they take the lock. Written under the lock.
    pub(crate) held: CachePadded<AtomicU32>,
    /// Admits one dispatcher, where dispatching is serialised.
    pub(crate) serial: Option<CachePadded<DispatchGate>>,
    /// Requests parked while the lock was taken, in the modes that park them.
    pub(crate) parking: Option<Parking>,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    pub(crate) first_hw: u16,
    pub(crate) hw_queues: u16,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
}

impl Shard {
    /// The leader: the submitter that has been running the elevator lately.
    #[inline]
    pub(crate) fn lead(&self) -> &Lead {
        self.pending.beside()
    }

    /// The hardware queues that this elevator serves.
    pub(crate) fn hws(&self) -> std::ops::Range<u16> {
        self.first_hw..self.first_hw + self.hw_queues
    }
}

/// The state that stays from the creation of a queue to its end.
pub(crate) struct Lasting<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) senders: Box<[BioSender]>,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tallies: Box<[Arc<CachePadded<SubmitterCounters>>]>,
    /// Counters of pump threads, by hardware queue; behind them those of a thread that changes the queue, and of a
    /// [`Run`](crate::Run).
    pub(crate) pump_tallies: Box<[CachePadded<SubmitterCounters>]>,
    pub(crate) control: Control,
    /// The limits of groups.
    pub(crate) meters: Meters,
    /// The statistics of groups.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) pump_mode: PumpMode,
    /// The private state of submitters that are not registered.
    pub(crate) seats: Seats,
    /// Held by a thread that ends the remaining I/Os of a poisoned queue (`salvage.rs`).
    pub(crate) salvage: Mutex<()>,
    /// Its place among the queues with which it shares its tags, if it shares them.
    pub(crate) membership: Option<Membership>,
}

/// The current state of a queue, replaced when the queue is changed.
pub(crate) struct Shared<P> {
    /// The version, as in [`Control`].
    pub(crate) version: u32,
    pub(crate) limits: Limits,
    /// The device needs no bare flushes, so `push` answers them at once.
    pub(crate) needs_no_flush: bool,
    /// Flags without a meaning for the device.
    pub(crate) meaningless: IoFlags,
    pub(crate) modes: EffectiveModes,
    /// The most requests that one hold of a lock dispatches.
    pub(crate) nr_requests: u32,
    pub(crate) nomerges: NoMerges,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) hctxs: Box<[Hctx<P>]>,
    pub(crate) budget: Budget,
    /// Shards that wait for a budget.
    pub(crate) budget_wait: Pending,
    /// Shards that wait for tags that other queues share.
    pub(crate) tag_wait: Pending,
    /// State that the policy's instances share, if they share any.
    pub(crate) common: Option<Arc<Common>>,
    /// Dropped last: tokens in the fields above name cells of its table, which looks for them at its end.
    pub(crate) lasting: Arc<Lasting<P>>,
}

impl<P> Shared<P> {
    /// The elevator that serves `hw`.
    pub(crate) fn shard_of(&self, hw: HwQueue) -> usize {
        if self.shards.len() == 1 { 0 } else { hw.0.into() }
    }

    /// The number with which the pump thread of `hw` takes locks: behind those of all submitters.
    pub(crate) fn pump_thread(&self, hw: HwQueue) -> usize {
        self.lasting.senders.len() + usize::from(hw.0)
    }

    /// The number with which a thread that changes the queue takes locks: behind those of the pump threads.
    pub(crate) fn changer(&self) -> usize {
        self.lasting.senders.len() + self.hctxs.len()
    }

    /// The number with which a [`Run`](crate::Run) holds a lock: the last one.
    pub(crate) fn keeper(&self) -> usize {
        self.changer() + 1
    }

    /// When a submitter of `shard` has to look again if no thread wakes it.
    pub(crate) fn deadline(&self, shard: &Shard) -> Option<Instant> {
        let inline = self.lasting.pump_mode == PumpMode::Inline;
        let hctxs = shard.hws().filter(|_| inline).map(|hw| &self.hctxs[usize::from(hw)]);
        let pumps = hctxs.flat_map(|hctx| [hctx.pump.deadline(), hctx.next_event()]);
        pumps.flatten().chain(shard.gate.deadline()).min()
    }

    /// Adds the counts of elevators and pumps.
    pub(crate) fn count_into(&self, stats: &mut QueueStats) {
        self.shards.iter().for_each(|shard| stats.add_elevator(&shard.counters));
        self.hctxs.iter().for_each(|hctx| stats.add_pump(&hctx.counters));
    }
}
