//! The words that all threads of a queue share: everything but the elevators and the pumps themselves.
//!
//! A runner and a pump are given the [`Hub`], so they can read and write words, and they can start nothing: kicks,
//! timers and wake-ups go back to their caller as duties (`duties.rs`). A change to a queue in use builds a
//! new hub (`reconfiguration/change.rs`); [`Lasting`] stays.

use crate::groups::{Ledger, Meters};
use crate::planted::Planted;
use crate::shared::board::{Board, Prospect};
use crate::shared::common::Common;
use crate::shared::duties::Duties;
use crate::shared::follow::Lead;
use crate::shared::hctx::Hctx;
#[cfg(feature = "compare")]
use crate::shared::parking::ShardModes;
use crate::shared::seats::Seats;
use crate::shared::slots::BioSender;
use crate::shared::stats::{ElevatorCounters, SubmitterCounters};
use crate::shared::tags::Membership;
use crate::sync::{
    Alarm, Arc, Attendance, Budget, Control, Mutex, Ordering, Pending, Sleepers, fence,
};
use crate::{BioTable, Host, NoMerges, PumpMode, planted};
use blkmq_core::{HwQueue, IoFlags, Limits, SubmitterId};
use crossbeam_utils::CachePadded;

/// The current words of a queue, replaced when the queue is changed.
pub(crate) struct Hub<P> {
    /// The version, as in [`Control`](crate::sync::Control).
    pub(crate) version: u32,
    pub(crate) limits: Limits,
    /// The device needs no bare flushes, so `push` answers them immediately.
    pub(crate) needs_no_flush: bool,
    /// Flags without a meaning for the device.
    pub(crate) meaningless: IoFlags,
    #[cfg(feature = "compare")]
    pub(crate) modes: crate::EffectiveModes,
    /// The most requests that one hold of a lock dispatches.
    #[cfg(feature = "compare")]
    pub(crate) nr_requests: u32,
    pub(crate) nomerges: NoMerges,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) hctxs: Box<[Hctx]>,
    pub(crate) budget: Budget,
    /// The state of latency goals, if groups have any.
    pub(crate) board: Option<Board>,
    /// Shards that wait for a budget.
    pub(crate) budget_wait: Pending,
    /// Shards that wait for tags that other queues share.
    pub(crate) tag_wait: Pending,
    /// State that the policy's instances share, if they share any.
    pub(crate) common: Option<Arc<Common>>,
    pub(crate) lasting: Arc<Lasting<P>>,
}

impl<P> Hub<P> {
    /// The elevator that serves `hw`.
    pub(crate) fn shard_of(&self, hw: HwQueue) -> usize {
        if self.shards.len() == 1 { 0 } else { hw.0.into() }
    }

    /// Returns whether each submitter has a lane of its own.
    #[inline]
    pub(crate) fn has_owners(&self) -> bool {
        self.lasting.pump_mode == PumpMode::Owner
    }

    #[inline]
    pub(crate) fn hctx(&self, hw: HwQueue) -> &Hctx {
        &self.hctxs[usize::from(hw.0)]
    }

    /// The number with which the pump thread of `hw` takes locks: behind those of all submitters.
    #[cfg(feature = "compare")]
    pub(crate) fn pump_thread(&self, hw: HwQueue) -> usize {
        self.lasting.senders.len() + usize::from(hw.0)
    }

    /// The number with which a thread that changes the queue takes locks: behind those of the pump threads.
    pub(crate) fn changer(&self) -> usize {
        self.lasting.senders.len() + self.hctxs.len()
    }

    /// The number with which a [`Run`](crate::Run) holds a lock: the last one.
    #[cfg(feature = "compare")]
    pub(crate) fn keeper(&self) -> usize {
        self.changer() + 1
    }

    /// Takes up to `want` budgets. If there are none, registers `shard` to be kicked, and looks once more.
    pub(crate) fn take_budget(&self, shard: &Shard, want: u32) -> u32 {
        match self.budget.take(want) {
            0 => {
                self.budget_wait.set(shard.index);
                self.budget.take(want)
            }
            got => got,
        }
    }

    /// Gives back budgets. Elevators that wait for one are to be kicked.
    #[inline(never)]
    pub(crate) fn put_budget(&self, budgets: u32, duties: &mut Duties) {
        self.budget.put(budgets);
        fence(Ordering::SeqCst);
        if self.budget_wait.any() && !planted::is(Planted::ForgetsBudgetWaiters) {
            self.budget_wait.take(|shard| duties.kick(shard));
        }
    }

    /// Gives back tokens of a pool. Elevators that wait for one are to be kicked.
    pub(crate) fn put_tokens(&self, pool: usize, tokens: u32, duties: &mut Duties) {
        let common = self.common.as_ref().expect("a request has a token of its queue's policy");
        common.put(pool, tokens, |shard| {
            if !planted::is(Planted::ForgetsTokenWaiters) {
                duties.kick(shard);
            }
        });
    }
}

/// Counters behind those of the pump threads: for a thread that changes the queue, and for a thread that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

pub(crate) struct Lasting<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) senders: Box<[BioSender]>,
    /// By submitter.
    pub(crate) attendance: Box<[CachePadded<Attendance>]>,
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
    /// Held by a thread that ends the remaining I/Os of a poisoned queue (`dispatch/visit.rs`).
    pub(crate) salvage: Mutex<()>,
    /// Its place among the queues with which it shares its tags, if it shares them.
    pub(crate) membership: Option<Membership>,
}

/// The words of one elevator.
pub(crate) struct Shard {
    /// Submitters that staged bios since their rings were last drained, and the leader: the submitter that has been
    /// running the elevator lately.
    pub(crate) pending: Pending<Lead>,
    /// Submitters that asked for an I/O to be cancelled. Apart from `pending`, so that a pass which finds no ask has
    /// only read a line that is not written.
    pub(crate) asked: Pending,
    /// Lanes with finished or requeued requests that no pass has taken back. Not kept for a single lane, which every pass
    /// looks at.
    pub(crate) returned: Pending,
    /// How many of the submitters sleep.
    pub(crate) sleepers: Sleepers,
    /// The words of the comparison modes.
    #[cfg(feature = "compare")]
    pub(crate) modes: ShardModes,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    pub(crate) first_hw: u16,
    /// Lanes: as many as hardware queues, or as submitters where each has its own.
    pub(crate) lanes: u16,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
    /// The forecast for new I/Os, if there is one.
    pub(crate) prospect: Option<Arc<Prospect>>,
}

impl Shard {
    /// The leader: the submitter that has been running the elevator lately.
    #[inline]
    pub(crate) fn lead(&self) -> &Lead {
        self.pending.beside()
    }

    /// The lanes that this elevator serves: those of its hardware queues, by their numbers, or those of its submitters.
    pub(crate) fn hws(&self) -> std::ops::Range<u16> {
        self.first_hw..self.first_hw + self.lanes
    }
}

impl<P: Send> Alarm for Lasting<P> {
    fn raise(&self) {
        self.control.poison();
        for id in 0..self.senders.len() as u16 {
            self.host.wake_submitter(SubmitterId(id));
        }
        if self.pump_mode == PumpMode::Thread {
            let hw_queues = self.pump_tallies.len() as u16 - OTHER_TALLIES;
            (0..hw_queues).for_each(|hw| self.host.wake_pump(HwQueue(hw)));
        }
    }
}
