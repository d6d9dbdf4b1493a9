//! The work of a thread that has nothing to submit: whatever is due, and what is left for others when it sleeps.

use super::{Caller, Engine};
#[cfg(feature = "compare")]
use crate::compare::By;
use crate::dispatch::ready::Ready;
use crate::planted::{self, Planted};
use crate::shared::shard::Shard;
use crate::submission::follow::{Follow, Look};
use blkmq_core::{HwQueue, Instant};

impl<P: Send> Engine<P> {
    /// Does the work that is due for `shard`: a pass of its elevator, turns of its pumps. True if anything was run.
    pub(crate) fn poll(&self, shard: &Shard, by: Caller<'_>, follow: &mut Follow) -> bool {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return self.locked_poll(shard, by.locker(), by.home);
        }
        let now = by.now;
        let look = if self.hub.has_owners() { Look::All } else { follow.look(now) };
        if look == Look::Nothing {
            return false;
        }
        let mut ready = Ready::default();
        for hw in self.lanes_of(shard, by.home) {
            // Only the device knows whether an owner has been called.
            if self.hub.has_owners() || self.pump_due(hw, now, look) {
                ready.add(hw);
            }
        }
        // Not without a pump to run: the code below decides whether to run the elevator.
        let mut ran = !ready.is_empty() && self.drive(shard, ready, by);
        if look == Look::Devices {
            return ran;
        }
        // A pass that was made has looked.
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
            self.locked_poll(shard, By { who: self.hub.pump_thread(hw), now }, hw);
            return;
        }
        let tally = &self.hub.lasting.pump_tallies[usize::from(hw.0)];
        let by = Caller { id: None, now, home: hw, tally };
        #[cfg(feature = "compare")]
        let may_run = self.pump_may_run(hw, now);
        #[cfg(not(feature = "compare"))]
        let may_run = true;
        if may_run && self.pump(hw, now, tally) {
            self.kick_and_drive(shard, by);
        }
        if self.gate(shard).due(now) || self.is_look_due(shard, now) {
            self.kick_and_drive(shard, by);
        }
    }

    /// Does the work that is due for `shard`, on the thread that changes the queue. True if anything was run.
    pub(crate) fn help_shard(&self, shard: &Shard, home: HwQueue, now: Instant) -> bool {
        #[cfg(feature = "compare")]
        if self.is_locked() {
            return self.locked_poll(shard, By { who: self.hub.changer(), now }, home);
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

    /// For a thread that is about to sleep: leaves expired timers to the threads that run the elevator of `shard` and
    /// its pumps by now.
    pub(crate) fn delegate_expired(&self, shard: &Shard, home: HwQueue, now: Instant) {
        self.gate(shard).owe_expired(now);
        self.lanes_of(shard, home).for_each(|hw| self.pump_gate(hw).owe_expired(now));
    }

    /// How far the threads have come that run the elevator of `shard` and its pumps; `None` if there are none. A hint.
    pub(crate) fn progress(&self, shard: &Shard, home: HwQueue) -> Option<u64> {
        let run = self.gate(shard).is_running().then(|| shard.counters.passes.get());
        let taken = |hw: &HwQueue| self.pump_gate(*hw).is_running();
        let turns = self
            .lanes_of(shard, home)
            .filter(taken)
            .map(|hw| self.hub.hctx(hw).counters.turns.get());
        run.into_iter().chain(turns).reduce(u64::wrapping_add)
    }

    /// Is work due by now, so that a submitter of `shard` must not sleep?
    pub(crate) fn is_due(&self, shard: &Shard, home: HwQueue, now: Instant) -> bool {
        self.gate(shard).due(now)
            || self.is_look_due(shard, now)
            || self.lanes_of(shard, home).any(|hw| self.pump_owed(hw, now))
    }

    /// Does the work that is due at the lanes of all submitters of `shard`, for one that waits for something that others
    /// have: their threads may be busy with anything else.
    pub(crate) fn poll_all(&self, shard: &Shard, by: Caller<'_>) {
        if planted::is(Planted::LooksAtItsOwn) {
            return;
        }
        let mut restart = false;
        for hw in shard.hws().map(HwQueue).filter(|hw| self.pump_due(*hw, by.now, Look::All)) {
            restart |= self.pump_for_owner(hw, by, self.looks_at(hw));
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

    /// Is a turn of the pump of `hw` worth while for a thread that is awake anyway?
    pub(crate) fn pump_due(&self, hw: HwQueue, now: Instant, look: Look) -> bool {
        let of_device = self.hub.hctx(hw).signals() || self.is_event_due(hw, now);
        of_device || look == Look::All && self.pump_owed(hw, now)
    }

    /// Does the device of `hw`, or the timer of a request there, ask for a turn by now?
    fn is_event_due(&self, hw: HwQueue, now: Instant) -> bool {
        self.hub.hctx(hw).next_event().is_some_and(|at| at <= now)
    }

    /// Must a thread run the pump of `hw` by now?
    fn pump_owed(&self, hw: HwQueue, now: Instant) -> bool {
        self.pump_gate(hw).due(now) || self.is_event_due(hw, now) || self.is_left(hw)
    }

    /// Are there requests in the outbox of `hw`, and no thread at its pump? Then a runner has let go of the elevator and
    /// has not come to the pump yet; that takes it long if it has lost its CPU in between (decision 0025).
    fn is_left(&self, hw: HwQueue) -> bool {
        self.hub.hctx(hw).has_sent()
            && !self.pump_gate(hw).is_running()
            && !planted::is(Planted::LeavesOutboxes)
    }
}
