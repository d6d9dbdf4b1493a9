//! The loops around a pass and a pump's turn: which thread runs an elevator or a pump, for how long, and what work
//! follows.
//!
//! Nothing here blocks. A caller runs the elevator and the pumps inline until no work is due or it has done its share
//! (decision 0002). The run states then keep the work that is still due, for the next caller that submits, polls or
//! waits; a parked submitter is woken for it.
//!
//! A plug or a single I/O enters here. The rounds of elevator and pump are made here, also for a thread that has
//! nothing to submit. `dispatch/mod.rs` carries out the duties of passes and turns.

use super::pump::Pump;
#[cfg(feature = "compare")]
use crate::dispatch::By;
#[cfg(feature = "compare")]
use crate::dispatch::compare::locked::Locked;
use crate::dispatch::{Caller, Engine};
use crate::elevator::merging::{Own, stage};
use crate::elevator::runner::{Runner, Sent};
use crate::planted;
use crate::planted::{Planted, Stop};
use crate::shared::PumpMode;
use crate::shared::duties::Ready;
use crate::shared::follow::{Follow, Look};
use crate::shared::hub::Shard;
use crate::shared::stats::SubmitterCounters;
use crate::sync::{Kick, RunGuard};
use blkmq_core::{HwQueue, Instant, SubmitterId};

// Shares of work are small in models, which would otherwise never reach the end of one.

/// Passes that one thread makes before it hands over.
const RUN_PASSES: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Turns that one thread makes at one pump before it hands over.
const PUMP_TURNS: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Rounds of elevator and pump that one call makes; a device of depth 1 needs one for each request.
const DRIVE_ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };

/// The turns of one thread at a pump.
#[derive(Clone, Copy)]
struct Turns {
    made: u32,
    /// Another turn is owed.
    is_owed: bool,
}

impl<P: Send> Engine<P> {
    /// Submits the caller's plug. Runs the elevator of `shard` with it if the elevator is free. Otherwise stages the
    /// plug and kicks the runner, which has the run or is about to take it again.
    pub(crate) fn submit(&self, shard: &Shard, by: Caller<'_>, own: Own<'_>, follow: &mut Follow) {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return Locked(self).locked_submit(shard, by.now, by.home, own);
        }
        let tally = by.tally;
        // An owner's I/O leaves by its own lane, so it is not left to the leader.
        let leave = !self.hub.has_owners() && follow.should_leave(shard.lead(), by.now);
        if !leave && let Some(mut guard) = self.gate(shard).try_run() {
            tally.direct.add(1);
            if own.plug.len() == 1
                && let Some(sent) = guard.pass_straight(&self.hub, shard, by.now, own.plug)
            {
                self.drive_straight(shard, guard, by, sent);
                return;
            }
            let ready = self.run(shard, guard, by, Some(own));
            self.drive(shard, ready, by);
            return;
        }
        tally.staged.add(1);
        stage(shard, own);
        if leave {
            match self.gate(shard).kick() {
                Kick::Queued => tally.kicks_sent.add(1),
                Kick::Coalesced => tally.kicks_coalesced.add(1),
            }
        } else {
            self.kick_and_drive(shard, by);
        }
    }

    /// Gets the asks to cancel answered: runs the elevator of `shard`, or makes its runner owe another pass.
    pub(crate) fn ask(&self, shard: &Shard, by: Caller<'_>) {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return Locked(self).locked_ask(shard, by);
        }
        self.kick_and_drive(shard, by);
    }

    /// Runs the elevator of `shard`, or makes its runner owe another pass.
    pub(crate) fn kick_and_drive(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = self.gate(shard).run_or_owe() {
            by.tally.kicks_sent.add(1);
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        } else {
            by.tally.kicks_coalesced.add(1);
        }
    }

    /// Pumps the hardware queues in `ready`, and runs the elevator again if it waited for something that the pumps
    /// returned. Returns whether anything ran. If so, work may be left that this thread has to do later.
    pub(crate) fn drive(&self, shard: &Shard, mut ready: Ready, by: Caller<'_>) -> bool {
        let mut ran = !ready.is_empty();
        for _ in 0..DRIVE_ROUNDS {
            let mut restart = false;
            for hw in ready.iter(shard.hws()) {
                restart |= self.pump_or_call(hw, by);
            }
            // A pump may also have kicked this elevator, for a budget that was returned.
            if !restart && !self.gate(shard).due(by.now) {
                return ran;
            }
            let Some(guard) = self.gate(shard).run_or_owe() else { return ran };
            ran = true;
            ready = self.run(shard, guard, by, None);
        }
        // The requests of the last run still need their pumps, and more requests may wait behind them.
        for hw in ready.iter(shard.hws()) {
            if self.pump_or_call(hw, by) {
                // The pump has kicked the elevator, and expected this thread to run it.
                let _ = self.gate(shard).kick();
                let parked = self.find_parked(shard);
                self.wake(parked.as_slice());
            }
        }
        true
    }

    /// Makes passes over the elevator until no further pass is owed or this thread has done its share.
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
            ready.merge(guard.pass(&self.hub, shard, by.now, by.home, own.take()));
            passes += 1;
            if guard.duties.any() {
                self.carry_out(self.gate(shard), &mut guard.duties, &mut wakes);
            }
            book = guard.elevator.env.take_notes(&self.hub.lasting.ledger, book);
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
        planted::stop(Stop::BeforePump);
        self.wake(&wakes);
        // The elevator has been released, so this delays no thread.
        if let Some(mut book) = book {
            book.count();
        }
        ready
    }

    /// Runs the pump of `hw`, or wakes its thread. Returns whether an elevator waited for something that the pump
    /// returned.
    fn pump_or_call(&self, hw: HwQueue, by: Caller<'_>) -> bool {
        match self.hub.lasting.pump_mode {
            PumpMode::Inline => return self.pump(hw, by.now, by.tally),
            PumpMode::Owner => {
                return if by.id == Some(SubmitterId(hw.0)) {
                    self.pump(hw, by.now, by.tally)
                } else {
                    self.call_owner(hw, by)
                };
            }
            PumpMode::Thread => {}
        }
        match self.pump_gate(hw).kick() {
            Kick::Queued => {
                by.tally.kicks_sent.add(1);
                self.hub.lasting.host.wake_pump(hw);
            }
            Kick::Coalesced => by.tally.kicks_coalesced.add(1),
        }
        false
    }

    /// Gets the lane `hw` of another submitter pumped. While its owner waits, asleep or awake, the owner pumps, because
    /// a completion wakes the thread that has submitted the request. Otherwise the calling thread pumps immediately.
    #[inline(never)]
    fn call_owner(&self, hw: HwQueue, by: Caller<'_>) -> bool {
        let known = self.pump_deadline(hw);
        let _ = self.pump_gate(hw).kick();
        if let Some(owner) = self.find_owner(hw) {
            self.wake(&[owner]);
            return false;
        }
        // Ordered by the fence in the search for the owner.
        if self.hub.lasting.attendance[usize::from(hw.0)].is_waiting() {
            return false;
        }
        self.pump_for_owner(hw, by, known)
    }

    /// Runs the pump of another submitter's lane. An owner that has gone to sleep in the meantime expects no event
    /// before `known`, and is woken if there is an earlier one. Returns whether an elevator waited for something that
    /// the pump returned.
    pub(super) fn pump_for_owner(&self, hw: HwQueue, by: Caller<'_>, known: Instant) -> bool {
        let restart = self.pump(hw, by.now, by.tally);
        if self.pump_deadline(hw) < known
            && !planted::is(Planted::KeepsDeadline)
            && let Some(owner) = self.find_owner(hw)
        {
            self.wake(&[owner]);
        }
        restart
    }

    /// Runs the pump of `hw` unless another thread does. Returns whether an elevator waited for something that the pump
    /// returned.
    pub(crate) fn pump(&self, hw: HwQueue, now: Instant, tally: &SubmitterCounters) -> bool {
        let (gate, hctx) = (self.pump_gate(hw), self.hub.hctx(hw));
        let Some(mut guard) = gate.run_or_owe() else {
            tally.kicks_coalesced.add(1);
            return false;
        };
        tally.kicks_sent.add(1);
        let waits = guard.turn(&self.hub, hctx, now);
        #[cfg(feature = "compare")]
        Locked(self).kick_for_each(hw, guard.take_completed_since_kick(), waits);
        if waits {
            self.owe_pass(hw);
        }
        // Usually one turn suffices, and leaves no duties.
        if !guard.duties.any() {
            let Some(again) = guard.finish() else {
                planted::stop(Stop::BeforePass);
                self.call_others();
                return waits;
            };
            guard = again;
            return self.pump_on(hw, guard, now, Turns { made: 1, is_owed: true }) | waits;
        }
        self.pump_on(hw, guard, now, Turns { made: 1, is_owed: false }) | waits
    }

    /// Marks a pass as due because an elevator waits for something that a pump returns. Called before the pump is
    /// released, although this thread will make the pass: if it loses its CPU afterwards, another one finds the pass
    /// due (decision 0025).
    #[inline]
    fn owe_pass(&self, hw: HwQueue) {
        if !planted::is(Planted::LeavesPasses) {
            self.gate(&self.hub.shards[self.hub.shard_of(hw)]).owe();
        }
    }

    /// Carries out the duties that the last turn of a pump left, and makes the turns that are owed. Returns whether an
    /// elevator waited for something that the pump returned.
    #[inline(never)]
    fn pump_on(
        &self,
        hw: HwQueue,
        mut guard: RunGuard<'_, Pump<P>>,
        now: Instant,
        turns: Turns,
    ) -> bool {
        let (gate, hctx) = (self.pump_gate(hw), self.hub.hctx(hw));
        let Turns { mut made, mut is_owed } = turns;
        let mut restart = false;
        let mut wakes = Vec::new();
        loop {
            if is_owed {
                let waits = guard.turn_again(&self.hub, hctx, now);
                #[cfg(feature = "compare")]
                Locked(self).kick_for_each(hw, guard.take_completed_since_kick(), waits);
                if waits {
                    self.owe_pass(hw);
                }
                restart |= waits;
                made += 1;
            }
            if guard.duties.any() {
                self.carry_out(gate, &mut guard.duties, &mut wakes);
            }
            if made == PUMP_TURNS {
                guard.hand_over();
                if self.hub.has_owners() {
                    wakes.extend(self.find_owner(hw));
                } else {
                    wakes.extend(self.find_parked(&self.hub.shards[self.hub.shard_of(hw)]));
                }
                break;
            }
            match guard.finish() {
                None => break,
                Some(again) => (guard, is_owed) = (again, true),
            }
        }
        planted::stop(Stop::BeforePass);
        self.wake(&wakes);
        restart
    }
}

impl<P: Send> Engine<P> {
    /// Ends a run that consists of a straight pass, and pumps the request that it sent.
    #[inline]
    fn drive_straight(
        &self,
        shard: &Shard,
        mut guard: RunGuard<'_, Runner>,
        by: Caller<'_>,
        sent: Sent,
    ) {
        if let Some(id) = by.id {
            shard.lead().note_pass(id);
        }
        guard.elevator.counters.longest_run.raise(1);
        if guard.duties.any() || guard.elevator.env.has_notes() {
            self.end_pass(shard, guard, by, sent);
            return;
        }
        if let Some(owed) = guard.finish() {
            self.go_on(shard, owed, by, sent);
            return;
        }
        planted::stop(Stop::BeforePump);
        let restart = match sent {
            Sent::By(hw) if self.hub.lasting.pump_mode == PumpMode::Inline => {
                self.pump(hw, by.now, by.tally)
            }
            Sent::By(hw) => self.pump_or_call(hw, by),
            Sent::Nothing => false,
        };
        // A pump may also have kicked this elevator, for a budget that was returned.
        if restart || self.gate(shard).due(by.now) {
            self.run_again(shard, by);
        }
    }

    /// Carries out the duties that a straight pass left, before the run ends.
    #[inline(never)]
    fn end_pass(&self, shard: &Shard, mut guard: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut wakes = Vec::new();
        self.carry_out(self.gate(shard), &mut guard.duties, &mut wakes);
        let book = guard.elevator.env.take_notes(&self.hub.lasting.ledger, None);
        let owed = guard.finish();
        self.wake(&wakes);
        let Some(owed) = owed else {
            if let Some(mut book) = book {
                book.count();
            }
            self.drive(shard, sent.ready(), by);
            return;
        };
        // The notes of the next pass go into the same book.
        drop(book);
        self.go_on(shard, owed, by, sent);
    }

    /// Makes the passes that are owed after a straight one.
    #[inline(never)]
    fn go_on(&self, shard: &Shard, owed: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut ready = sent.ready();
        ready.merge(self.run(shard, owed, by, None));
        self.drive(shard, ready, by);
    }

    #[inline(never)]
    fn run_again(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = self.gate(shard).run_or_owe() {
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        }
    }

    /// Does the work that is due for `shard`: a pass of its elevator, turns of its pumps. Returns whether anything ran.
    pub(crate) fn poll(&self, shard: &Shard, by: Caller<'_>, follow: &mut Follow) -> bool {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return Locked(self).locked_poll(shard, by.locker(), by.home);
        }
        let now = by.now;
        let look = if self.hub.has_owners() { Look::All } else { follow.look(now) };
        if look == Look::Nothing {
            return false;
        }
        let mut ready = Ready::default();
        for hw in self.lanes_of(shard, by.home) {
            // Only the device knows whether an owner has been woken.
            if self.hub.has_owners() || self.pump_due(hw, now, look) {
                ready.add(hw);
            }
        }
        // Only with a pump to run, because the code below decides whether to run the elevator.
        let mut ran = !ready.is_empty() && self.drive(shard, ready, by);
        if look == Look::Devices {
            return ran;
        }
        // If anything ran, a pass has made that check.
        if self.gate(shard).due(now) || !ran && self.is_look_due(shard, now) {
            if (self.hub.has_owners() || follow.should_run(shard.lead(), now))
                && let Some(guard) = self.gate(shard).try_run()
            {
                let ready = self.run(shard, guard, by, None);
                self.drive(shard, ready, by);
                ran = true;
            }
        } else if !ran && !self.hub.has_owners() {
            follow.was_in_vain(shard.lead(), self.gate(shard).is_running(), now);
        }
        ran
    }

    /// Does the work that is due at the pump of `hw`, and the work that follows from it, on its pump thread.
    pub(crate) fn serve(&self, hw: HwQueue, now: Instant) {
        let shard = &self.hub.shards[self.hub.shard_of(hw)];
        #[cfg(feature = "compare")]
        if self.is_locked() {
            Locked(self).locked_poll(shard, By { who: self.hub.pump_thread(hw), now }, hw);
            return;
        }
        let tally = &self.hub.lasting.pump_tallies[usize::from(hw.0)];
        let by = Caller { id: None, now, home: hw, tally };
        #[cfg(feature = "compare")]
        let may_run = Locked(self).pump_may_run(hw, now);
        #[cfg(not(feature = "compare"))]
        let may_run = true;
        if may_run && self.pump(hw, now, tally) {
            self.kick_and_drive(shard, by);
        }
        if self.gate(shard).due(now) || self.is_look_due(shard, now) {
            self.kick_and_drive(shard, by);
        }
    }

    /// Does the work that is due for `shard`, on the thread that changes the queue. Returns whether anything ran.
    pub(crate) fn help_shard(&self, shard: &Shard, home: HwQueue, now: Instant) -> bool {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return Locked(self).locked_poll(shard, By { who: self.hub.changer(), now }, home);
        }
        let tally = &self.hub.lasting.pump_tallies[self.hub.hctxs.len()];
        let by = Caller { id: None, now, home, tally };
        let mut ready = Ready::default();
        for hw in shard.hws().map(HwQueue).filter(|hw| self.pump_due(*hw, now, Look::All)) {
            ready.add(hw);
        }
        let ran = self.drive(shard, ready, by);
        if !self.gate(shard).due(now) {
            return ran;
        }
        self.kick_and_drive(shard, by);
        true
    }

    /// The time until which a submitter of `shard` may sleep: [`Instant::MAX`] for no end, `None` if work is due at
    /// `now`. A timer that has expired is left to the thread that runs the elevator or the pump, which makes another
    /// pass for it.
    pub(crate) fn rest_until(&self, shard: &Shard, home: HwQueue, now: Instant) -> Option<Instant> {
        let mut until = self.deadline(shard, home);
        if until <= now {
            self.gate(shard).owe_expired(now);
            self.lanes_of(shard, home).for_each(|hw| self.pump_gate(hw).owe_expired(now));
            until = self.deadline(shard, home);
        }
        let is_left = self.lanes_of(shard, home).any(|hw| self.is_left(hw));
        (until > now && !is_left).then_some(until)
    }

    /// A count that changes while threads run the elevator of `shard` or its pumps; `None` if no thread does. A hint.
    pub(crate) fn progress(&self, shard: &Shard, home: HwQueue) -> Option<u64> {
        let run = self.gate(shard).is_running().then(|| shard.counters.passes.get());
        let taken = |hw: &HwQueue| self.pump_gate(*hw).is_running();
        let turns = self
            .lanes_of(shard, home)
            .filter(taken)
            .map(|hw| self.hub.hctx(hw).counters.turns.get());
        run.into_iter().chain(turns).reduce(u64::wrapping_add)
    }

    /// Does the work that is due at the lanes of all submitters of `shard`, for a submitter whose I/Os wait for
    /// resources that other submitters hold: their threads may be busy elsewhere.
    pub(crate) fn poll_all(&self, shard: &Shard, by: Caller<'_>) {
        if planted::is(Planted::LooksAtItsOwn) {
            return;
        }
        let mut restart = false;
        for hw in shard.hws().map(HwQueue).filter(|hw| self.pump_due(*hw, by.now, Look::All)) {
            restart |= self.pump_for_owner(hw, by, self.pump_deadline(hw));
        }
        if restart {
            self.kick_and_drive(shard, by);
        }
    }

    /// Returns whether another thread has kicked the lane `hw` for its owner, or filled its outbox.
    #[inline]
    pub(crate) fn has_been_left(&self, hw: HwQueue, now: Instant) -> bool {
        self.pump_gate(hw).due(now) || self.is_left(hw)
    }

    /// Returns whether a turn of the pump of `hw` is worthwhile for a thread that is awake anyway.
    pub(crate) fn pump_due(&self, hw: HwQueue, now: Instant, look: Look) -> bool {
        let of_device = self.hub.hctx(hw).signals() || self.is_event_due(hw, now);
        of_device || look == Look::All && self.pump_owed(hw, now)
    }

    /// Returns whether the device of `hw`, or the timer of a request there, needs a turn now.
    fn is_event_due(&self, hw: HwQueue, now: Instant) -> bool {
        self.hub.hctx(hw).next_event().is_some_and(|at| at <= now)
    }

    /// Returns whether a thread has to run the pump of `hw` now.
    fn pump_owed(&self, hw: HwQueue, now: Instant) -> bool {
        self.pump_gate(hw).due(now) || self.is_event_due(hw, now) || self.is_left(hw)
    }

    /// Returns whether the outbox of `hw` has requests and no thread is at its pump. A runner has then released the
    /// elevator and not reached the pump yet, which takes long if it has lost its CPU in between (decision 0025).
    fn is_left(&self, hw: HwQueue) -> bool {
        self.hub.hctx(hw).has_sent()
            && !self.pump_gate(hw).is_running()
            && !planted::is(Planted::LeavesOutboxes)
    }
}
