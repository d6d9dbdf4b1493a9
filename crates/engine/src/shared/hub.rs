//! The words that all threads of a queue share, without the elevators and the pumps themselves.
//!
//! A runner and a pump are given the [`Hub`], so they can read and write words, but cannot start anything: they leave
//! kicks, timers and wake-ups to their caller as duties (`duties.rs`). A change to a queue in use builds a new hub
//! (`reconfiguration/change.rs`); [`Lasting`] stays.

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
    /// Flags that have no meaning for the device.
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
    /// The state of latency goals; `None` if no group has one.
    pub(crate) board: Option<Board>,
    /// Shards that wait for a budget.
    pub(crate) budget_wait: Pending,
    /// Shards that wait for tags shared with other queues.
    pub(crate) tag_wait: Pending,
    /// State that the policy's instances share; `None` if they share none.
    pub(crate) common: Option<Arc<Common>>,
    pub(crate) lasting: Arc<Lasting<P>>,
}

impl<P> Hub<P> {
    /// The elevator that serves `hw`.
    pub(crate) fn shard_of(&self, hw: HwQueue) -> usize {
        if self.shards.len() == 1 { 0 } else { hw.0.into() }
    }

    /// Returns whether each submitter has its own lane.
    #[inline]
    pub(crate) fn has_owners(&self) -> bool {
        self.lasting.pump_mode == PumpMode::Owner
    }

    #[inline]
    pub(crate) fn hctx(&self, hw: HwQueue) -> &Hctx {
        &self.hctxs[usize::from(hw.0)]
    }

    /// The number with which the pump thread of `hw` takes locks: above those of all submitters.
    #[cfg(feature = "compare")]
    pub(crate) fn pump_thread(&self, hw: HwQueue) -> usize {
        self.lasting.senders.len() + usize::from(hw.0)
    }

    /// The number with which a thread that changes the queue takes locks: above those of the pump threads.
    pub(crate) fn changer(&self) -> usize {
        self.lasting.senders.len() + self.hctxs.len()
    }

    /// The number with which a [`Run`](crate::Run) holds a lock: the last one.
    #[cfg(feature = "compare")]
    pub(crate) fn keeper(&self) -> usize {
        self.changer() + 1
    }

    /// Takes up to `want` budgets. If there are none, registers `shard` to be kicked, and tries once more.
    pub(crate) fn take_budget(&self, shard: &Shard, want: u32) -> u32 {
        match self.budget.take(want) {
            0 => {
                self.budget_wait.set(shard.index);
                self.budget.take(want)
            }
            got => got,
        }
    }

    /// Returns budgets, and notes that the elevators that wait for one must be kicked.
    #[inline(never)]
    pub(crate) fn put_budget(&self, budgets: u32, duties: &mut Duties) {
        self.budget.put(budgets);
        fence(Ordering::SeqCst);
        if self.budget_wait.any() && !planted::is(Planted::ForgetsBudgetWaiters) {
            self.budget_wait.take(|shard| duties.kick(shard));
        }
    }

    /// Returns tokens of a pool, and notes that the elevators that wait for one must be kicked.
    pub(crate) fn put_tokens(&self, pool: usize, tokens: u32, duties: &mut Duties) {
        let common = self.common.as_ref().expect("a request has a token of its queue's policy");
        common.put(pool, tokens, |shard| {
            if !planted::is(Planted::ForgetsTokenWaiters) {
                duties.kick(shard);
            }
        });
    }
}

/// Counters after those of the pump threads: for a thread that changes the queue, and for a thread that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

pub(crate) struct Lasting<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) senders: Box<[BioSender]>,
    /// By submitter.
    pub(crate) attendance: Box<[CachePadded<Attendance>]>,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tallies: Box<[Arc<CachePadded<SubmitterCounters>>]>,
    /// Counters of pump threads, by hardware queue, followed by those of a thread that changes the queue and of a
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
    /// The queue's place among the queues with which it shares its tags; `None` if it shares none.
    pub(crate) membership: Option<Membership>,
}

/// The words of one elevator.
pub(crate) struct Shard {
    /// Submitters that staged bios since their rings were last drained, and the leader: the submitter that has run the
    /// elevator lately.
    pub(crate) pending: Pending<Lead>,
    /// Submitters with an ask to cancel an I/O. Separate from `pending`, so that a pass without an ask has only read a
    /// line that is not written.
    pub(crate) asked: Pending,
    /// Lanes with finished or requeued requests that no pass has taken back. Not used for a single lane, which every
    /// pass checks.
    pub(crate) returned: Pending,
    /// The number of submitters that sleep.
    pub(crate) sleepers: Sleepers,
    /// The words of the comparison modes.
    #[cfg(feature = "compare")]
    pub(crate) modes: ShardModes,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    pub(crate) first_hw: u16,
    /// The number of lanes: one for each hardware queue, or for each submitter.
    pub(crate) lanes: u16,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
    /// The forecast for new I/Os; `None` if there is none.
    pub(crate) prospect: Option<Arc<Prospect>>,
}

impl Shard {
    /// The leader: the submitter that has run the elevator lately.
    #[inline]
    pub(crate) fn lead(&self) -> &Lead {
        self.pending.beside()
    }

    /// The lanes that this elevator serves: those of its hardware queues, by number, or those of its submitters.
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
