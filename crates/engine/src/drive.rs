//! Who runs, for how long, and what comes next: the loops around a pass and a pump's turn.
//!
//! Nothing here blocks. A caller runs the elevator and the pumps inline until there is nothing left to do or
//! it has done its share (D8, D16); then whatever is still due stands in the run states, and the next caller
//! that submits, polls or waits takes it up. One that has parked is woken for it.

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

// Shares of work are small in models, which would never get to their ends.

/// Passes that one thread makes before it lets somebody else run.
const RUN_PASSES: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Turns that one thread makes at one pump before it lets go.
const PUMP_TURNS: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Rounds of elevator and pump that one call makes; a device of depth 1 needs one for each request.
const DRIVE_ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };

/// On whose behalf, and when.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The submitter whose thread this is; `None` for a pump thread, which leads nobody.
    pub(crate) id: Option<SubmitterId>,
    pub(crate) now: Instant,
    /// The hardware queue that the caller maps to; it is served first.
    pub(crate) home: HwQueue,
    pub(crate) tally: &'a SubmitterCounters,
}

impl<P> Shared<P> {
    /// Takes one parked submitter of `shard` out of its sleep; the caller must wake it.
    ///
    /// Pairs with [`Submitter::prepare_park`](crate::Submitter::prepare_park): that sets its marks, then looks
    /// whether something is due; here something became due before marks are looked at.
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

    /// For a thread that may not come back: if there is something to come back for, now or later, wakes a
    /// parked submitter of `shard` to see to it. If none is parked, those who have I/Os in flight are awake.
    pub(crate) fn hand_on(&self, shard: &Shard) {
        // First the line that nobody writes while everybody is awake: a thread with few I/Os in flight comes here after
        // each handful, and the words behind it are the leader's.
        fence(Ordering::SeqCst);
        let asleep = shard.sleepers.any();
        if asleep && self.deadline(shard).is_some() && !planted::is(Planted::ForgetsToHandOn) {
            let parked = self.find_parked(shard);
            self.wake(parked.as_slice());
        }
    }

    pub(crate) fn wake(&self, submitters: &[SubmitterId]) {
        for id in submitters {
            self.lasting.host.wake_submitter(*id);
        }
        // Tags are shared by all hardware queues, if by several queues.
        self.hctxs[0].tags.call_others();
    }
}

impl<P: Send> Shared<P> {
    /// Runs the elevator of `shard` if it is free, with the caller's own submission; leaves word if not, or
    /// if somebody else has been running it and will be back.
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

    /// Runs the elevator of `shard`, or leaves word that somebody should.
    pub(crate) fn kick_and_drive(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = shard.gate.run_or_owe() {
            by.tally.kicks_sent.add(1);
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        } else {
            by.tally.kicks_coalesced.add(1);
        }
    }

    /// Passes over the elevator until nobody owes another one, or this thread has done its share.
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
        // Nobody waits for the elevator any more.
        if let Some(mut book) = book {
            book.count();
        }
        ready
    }

    /// Pumps what is ready, and runs the elevator again where it waited for what the pumps gave back. True if
    /// anything was run, so that this thread may have left something to come back for.
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
        // The last run's work still needs its pumps, and there may be more behind it.
        for hw in ready.iter(shard.hws()) {
            if self.pump_or_call(hw, by) {
                let parked = self.kick_shard(shard.index);
                self.wake(parked.as_slice());
            }
        }
        true
    }

    /// Runs the pump of `hw` here, or calls its thread. True if an elevator waited for what it gave back.
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

    /// The thread of the pump of `hw`, `who`, was called: may it issue? Where kicks are the kernel's, what it was called
    /// for may have been put off since; then it only looks what the device has finished, and issues if that is anything.
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

    /// Runs the pump of `hw` unless somebody else does. True if an elevator waited for what it gave back.
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
            self.kick_for_each(hw, guard.take_unasked(), waits);
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

    /// For whoever has the pump of `hw`, after each turn, where kicks are the kernel's: while something waits, each
    /// request that has completed since the last one asks for every hardware queue to be run that it may go to, as
    /// SCSI had it when the flag was proposed.
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

    /// Asks for a pass over shard `index`. A parked submitter that must be woken for it, if there is one;
    /// if not, somebody is awake and will come by.
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

    /// Does what is due for `shard`: its elevator if a pass is owed, its pumps if they have something. True
    /// if anything was run.
    pub(crate) fn poll(&self, shard: &Shard, by: Caller<'_>, follow: &mut Follow) -> bool {
        let now = by.now;
        let mut ready = Ready::default();
        for hw in shard.hws().map(HwQueue) {
            if self.lasting.pump_mode == PumpMode::Inline && self.pump_due(hw, now) {
                ready.add(hw);
            }
        }
        // Not without anything to pump: whether to run the elevator is decided below.
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

    /// Is there anything that a submitter of `shard` should do by now, and not sleep?
    pub(crate) fn is_due(&self, shard: &Shard, now: Instant) -> bool {
        let inline = self.lasting.pump_mode == PumpMode::Inline;
        shard.gate.due(now) || inline && shard.hws().any(|hw| self.pump_owed(HwQueue(hw), now))
    }

    /// Is a turn of the pump of `hw` worth while, for who is awake anyway?
    pub(crate) fn pump_due(&self, hw: HwQueue, now: Instant) -> bool {
        self.hctxs[usize::from(hw.0)].signals() || self.pump_owed(hw, now)
    }

    /// Does somebody have to run the pump of `hw` by now?
    fn pump_owed(&self, hw: HwQueue, now: Instant) -> bool {
        let hctx = &self.hctxs[usize::from(hw.0)];
        hctx.pump.due(now) || hctx.next_event().is_some_and(|at| at <= now)
    }
}
