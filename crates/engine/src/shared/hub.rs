//! The words that all threads of a queue share: everything but the elevators and the pumps themselves.
//!
//! A runner and a pump are given the [`Hub`], so they can read and write words, and they can start nothing: kicks,
//! timers and wake-ups go back to their caller as duties (`dispatch/duties.rs`). A change to a queue in use builds a
//! new hub (`reconfiguration/change.rs`); [`Lasting`] stays.

use crate::dispatch::duties::Duties;
use crate::elevator::goals::Board;
use crate::planted::{self, Planted};
use crate::shared::common::Common;
use crate::shared::hctx::Hctx;
use crate::shared::lasting::Lasting;
use crate::shared::shard::Shard;
use crate::sync::{Arc, Budget, Ordering, Pending, fence};
use crate::{NoMerges, PumpMode};
use blkmq_core::{HwQueue, IoFlags, Limits};

/// The current words of a queue, replaced when the queue is changed.
pub(crate) struct Hub<P> {
    /// The version, as in [`Control`](crate::sync::Control).
    pub(crate) version: u32,
    pub(crate) limits: Limits,
    /// The device needs no bare flushes, so `push` answers them at once.
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
