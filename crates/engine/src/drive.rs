//! The loops around a pass and a pump's turn: which thread runs an elevator or a pump, how long, and what follows.
//!
//! Nothing here blocks. A caller runs the elevator and the pumps inline until no work is due or it has done its share
//! (decision 0002). Work that is still due then stands in the run states, and the next caller that submits, polls or
//! waits takes it up. A parked submitter is woken for it.

use crate::config::PumpMode;
use crate::follow::Follow;
use crate::modes::KickMode;
use crate::planted::{self, Planted};
use crate::ready::Ready;
use crate::runner::{Own, Runner, stage};
use crate::shared::{Shard, Shared};
use crate::stats::SubmitterCounters;
use crate::sync::{Kick, Ordering, RunGuard, fence};
use blkmq_core::{HwQueue, Instant, SubmitterId};

// Shares of work are small in models, which otherwise would never reach the end of one.

/// Passes that one thread makes before it hands over.
const RUN_PASSES: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Turns that one thread makes at one pump before it hands over.
const PUMP_TURNS: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Rounds of elevator and pump that one call makes; a device of depth 1 needs one for each request.
const DRIVE_ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };

/// The calling thread, and the time.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The submitter that the thread belongs to. `None` for a pump thread, which never leads.
    pub(crate) id: Option<SubmitterId>,
    pub(crate) now: Instant,
    /// The hardware queue that the caller maps to; it is served first.
    pub(crate) home: HwQueue,
    pub(crate) tally: &'a SubmitterCounters,
}

impl<P> Shared<P> {
    /// Takes the parked mark of one submitter of `shard`; the caller must wake that submitter.
    ///
    /// Pairs with [`Submitter::prepare_park`](crate::Submitter::prepare_park): that sets its mark, then looks whether
    /// work is due; here work became due before the marks are looked at.
    pub(crate) fn find_parked(&self, shard: &Shard) -> Option<SubmitterId> {
        if planted::is(Planted::ForgetsParked) {
            return None;
        }
        fence(Ordering::SeqCst);
        if !shard.sleepers.any() {
            return None;
        }
        let parked = |id: &SubmitterId| self.lasting.senders[usize::from(id.0)].take_parked();
        shard.submitters.iter().copied().find(parked)
    }

    /// For a thread that may not come back: if work of `shard` is due, now or later, wakes a parked submitter to do
    /// it. If none is parked, the submitters that have I/Os in flight are awake.
    pub(crate) fn wake_successor(&self, shard: &Shard) {
        // First the line that no thread writes while all submitters are awake: a thread with few I/Os in flight comes
        // here after each handful, and the leader writes the words behind it.
        fence(Ordering::SeqCst);
        let asleep = shard.sleepers.any();
        if asleep && self.deadline(shard).is_some() && !planted::is(Planted::ForgetsToWakeSuccessor)
        {
            let parked = self.find_parked(shard);
            self.wake(parked.as_slice());
        }
    }

    pub(crate) fn wake(&self, submitters: &[SubmitterId]) {
        for id in submitters {
            self.lasting.host.wake_submitter(*id);
        }
        // If several queues share the tags, so do all hardware queues of this one.
        self.hctxs[0].tags.call_others();
    }
}

impl<P: Send> Shared<P> {
    /// Submits the caller's plug: runs the elevator of `shard` with it if the elevator is free. Stages it and kicks
    /// if another thread runs the elevator, or has been running it and will come back.
    pub(crate) fn submit(&self, shard: &Shard, by: Caller<'_>, own: Own<'_>, follow: &mut Follow) {
        let tally = by.tally;
        let leave = follow.should_leave(shard.lead());
        if !leave && let Some(guard) = shard.gate.try_run() {
            tally.direct.add(1);
            let ready = self.run(shard, guard, by, Some(own));
            self.drive(shard, ready, by);
            return;
        }
        tally.staged.add(1);
        stage(shard, own);
        if leave {
            match shard.gate.kick() {
                Kick::Queued => tally.kicks_sent.add(1),
                Kick::Coalesced => tally.kicks_coalesced.add(1),
            }
        } else {
            self.kick_and_drive(shard, by);
        }
    }

    /// Runs the elevator of `shard`, or makes its runner owe another pass.
    pub(crate) fn kick_and_drive(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = shard.gate.run_or_owe() {
            by.tally.kicks_sent.add(1);
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        } else {
            by.tally.kicks_coalesced.add(1);
        }
    }

    /// Makes passes over the elevator until no other pass is owed or this thread has done its share.
    pub(crate) fn run(
        &self,
        shard: &Shard,
        mut guard: RunGuard<'_, Runner>,
        by: Caller<'_>,
        mut own: Option<Own<'_>>,
    ) -> Ready {
        let mut ready = Ready::default();
        let mut passes = 0;
        let mut wakes = Vec::new();
        let mut book = None;
        loop {
            if let Some(id) = by.id {
                shard.lead().note_pass(id);
            }
            ready.merge(guard.pass(self, shard, by.now, by.home, own.take()));
            passes += 1;
            if !guard.wakes.is_empty() {
                wakes.append(&mut guard.wakes);
            }
            book = guard.elevator.outside.take_notes(&self.lasting.ledger, book);
            guard.elevator.counters.longest_run.raise(passes);
            if passes >= u64::from(RUN_PASSES) {
                guard.elevator.counters.hand_overs.add(1);
                guard.hand_over();
                wakes.extend(self.find_parked(shard));
                break;
            }
            match guard.finish() {
                None => break,
                Some(again) => guard = again,
            }
        }
        self.wake(&wakes);
        // The elevator is released by now, so no thread waits for this.
        if let Some(mut book) = book {
            book.count();
        }
        ready
    }

    /// Pumps the hardware queues in `ready`, and runs the elevator again if it waited for something that the pumps
    /// gave back. True if anything was run, so that this thread may have left work to come back for.
    pub(crate) fn drive(&self, shard: &Shard, mut ready: Ready, by: Caller<'_>) -> bool {
        let mut ran = !ready.is_empty();
        for _ in 0..DRIVE_ROUNDS {
            let mut restart = false;
            for hw in ready.iter(shard.hws()) {
                restart |= self.pump_or_call(hw, by);
            }
            // A pump may also have kicked this very elevator, over a budget that came back.
            if !restart && !shard.gate.due(by.now) {
                return ran;
            }
            let Some(guard) = shard.gate.run_or_owe() else { return ran };
            ran = true;
            ready = self.run(shard, guard, by, None);
        }
        // The requests of the last run still need their pumps, and more may be waiting behind them.
        for hw in ready.iter(shard.hws()) {
            if self.pump_or_call(hw, by) {
                let parked = self.kick_shard(shard.index);
                self.wake(parked.as_slice());
            }
        }
        true
    }

    /// Runs the pump of `hw`, or wakes its thread. True if an elevator waited for something that the pump gave back.
    fn pump_or_call(&self, hw: HwQueue, by: Caller<'_>) -> bool {
        if self.lasting.pump_mode == PumpMode::Inline {
            return self.pump(hw, by.now, by.tally);
        }
        match self.hctxs[usize::from(hw.0)].pump.kick() {
            Kick::Queued => {
                by.tally.kicks_sent.add(1);
                self.lasting.host.wake_pump(hw);
            }
            Kick::Coalesced => by.tally.kicks_coalesced.add(1),
        }
        false
    }

    /// Is the pump thread of `hw` to issue requests? Where kicks are the kernel's, the pass for which the thread was
    /// called may have been put off since. The thread then only takes back what the device has finished, and issues
    /// if there was any.
    pub(crate) fn pump_may_run(&self, hw: HwQueue, who: usize, now: Instant) -> bool {
        let hctx = &self.hctxs[usize::from(hw.0)];
        if !hctx.pump.is_put_off(now) || self.pump_due(hw, now) {
            return true;
        }
        let Some(mut pump) = hctx.pump.enter(who) else { return true };
        let mut wakes = Vec::new();
        let came_back = pump.look(self, hctx, now);
        pump.take_wakes(&mut wakes);
        pump.finish();
        self.wake(&wakes);
        came_back
    }

    /// Runs the pump of `hw` unless another thread does. True if an elevator waited for something that the pump gave
    /// back.
    pub(crate) fn pump(&self, hw: HwQueue, now: Instant, tally: &SubmitterCounters) -> bool {
        let hctx = &self.hctxs[usize::from(hw.0)];
        let Some(mut guard) = hctx.pump.run_or_owe() else {
            tally.kicks_coalesced.add(1);
            return false;
        };
        tally.kicks_sent.add(1);
        let (mut restart, mut turns) = (false, 0);
        let mut wakes = Vec::new();
        loop {
            let waits = guard.turn(self, hctx, now);
            self.kick_for_each(hw, guard.take_completed_since_kick(), waits);
            restart |= waits;
            guard.take_wakes(&mut wakes);
            turns += 1;
            if turns == PUMP_TURNS {
                guard.hand_over();
                wakes.extend(self.find_parked(&self.shards[self.shard_of(hw)]));
                break;
            }
            match guard.finish() {
                None => break,
                Some(again) => guard = again,
            }
        }
        self.wake(&wakes);
        restart
    }

    /// Called by the holder of the pump of `hw` after each turn, where kicks are the kernel's: while the elevator
    /// waits, each request that has completed since the last turn kicks every hardware queue of the elevator, as SCSI
    /// did when the flag was proposed.
    #[inline]
    pub(crate) fn kick_for_each(&self, hw: HwQueue, completed: u64, waits: bool) {
        if self.modes.kick == KickMode::Coalesced || !waits {
            return;
        }
        let counters = &self.hctxs[usize::from(hw.0)].counters;
        for _ in 0..completed {
            for hw in self.shards[self.shard_of(hw)].hws().map(HwQueue) {
                match self.hctxs[usize::from(hw.0)].pump.kick() {
                    Kick::Queued => {
                        counters.kicks_sent.add(1);
                        if self.lasting.pump_mode == PumpMode::Thread {
                            self.lasting.host.wake_pump(hw);
                        }
                    }
                    Kick::Coalesced => counters.kicks_coalesced.add(1),
                }
            }
        }
    }

    /// Asks for a pass over shard `index`. Returns a parked submitter that must be woken for it; if there is none, a
    /// thread is awake and will make the pass.
    pub(crate) fn kick_shard(&self, index: u16) -> Option<SubmitterId> {
        let shard = &self.shards[usize::from(index)];
        match shard.gate.kick() {
            Kick::Queued => self.find_parked(shard),
            Kick::Coalesced => None,
        }
    }

    /// Gives back budgets. Elevators that wait for one are kicked.
    pub(crate) fn put_budget(&self, budgets: u32, wakes: &mut Vec<SubmitterId>) {
        if !self.budget.is_limited() {
            return;
        }
        self.budget.put(budgets);
        fence(Ordering::SeqCst);
        if self.budget_wait.any() && !planted::is(Planted::ForgetsBudgetWaiters) {
            self.budget_wait.take(|shard| wakes.extend(self.kick_shard(shard)));
        }
    }

    /// Gives back tokens of a pool. Elevators that wait for one are kicked.
    pub(crate) fn put_tokens(&self, pool: usize, tokens: u32, wakes: &mut Vec<SubmitterId>) {
        let common = self.common.as_ref().expect("a request has a token of its queue's policy");
        common.put(pool, tokens, |shard| {
            if !planted::is(Planted::ForgetsTokenWaiters) {
                wakes.extend(self.kick_shard(shard));
            }
        });
    }

    /// Does the work that is due for `shard`: a pass of its elevator, turns of its pumps. True if anything was run.
    pub(crate) fn poll(&self, shard: &Shard, by: Caller<'_>, follow: &mut Follow) -> bool {
        let now = by.now;
        let mut ready = Ready::default();
        for hw in shard.hws().map(HwQueue) {
            if self.lasting.pump_mode == PumpMode::Inline && self.pump_due(hw, now) {
                ready.add(hw);
            }
        }
        // Not without a pump to run: the code below decides whether to run the elevator.
        let mut ran = !ready.is_empty() && self.drive(shard, ready, by);
        if shard.gate.due(now)
            && follow.should_run(shard.lead())
            && let Some(guard) = shard.gate.try_run()
        {
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
            ran = true;
        }
        ran
    }

    /// For a thread that is about to sleep: leaves expired timers to the threads that run the elevator of `shard` and
    /// its pumps by now.
    pub(crate) fn delegate_expired(&self, shard: &Shard, now: Instant) {
        shard.gate.owe_expired(now);
        if self.lasting.pump_mode == PumpMode::Inline {
            shard.hws().for_each(|hw| self.hctxs[usize::from(hw)].pump.owe_expired(now));
        }
    }

    /// Is work due by now, so that a submitter of `shard` must not sleep?
    pub(crate) fn is_due(&self, shard: &Shard, now: Instant) -> bool {
        let inline = self.lasting.pump_mode == PumpMode::Inline;
        shard.gate.due(now) || inline && shard.hws().any(|hw| self.pump_owed(HwQueue(hw), now))
    }

    /// Is a turn of the pump of `hw` worth while for a thread that is awake anyway?
    pub(crate) fn pump_due(&self, hw: HwQueue, now: Instant) -> bool {
        self.hctxs[usize::from(hw.0)].signals() || self.pump_owed(hw, now)
    }

    /// Must a thread run the pump of `hw` by now?
    fn pump_owed(&self, hw: HwQueue, now: Instant) -> bool {
        let hctx = &self.hctxs[usize::from(hw.0)];
        hctx.pump.due(now) || hctx.next_event().is_some_and(|at| at <= now)
    }
}
