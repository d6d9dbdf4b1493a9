//! The path of an I/O where the elevator is behind a lock: merge attempts, insertion, dispatch, and the work of threads
//! that wait.

use crate::dispatch::{By, Caller, Engine};
use crate::elevator::merging::{Own, stage};
use crate::elevator::runner::Runner;
use crate::planted::Planted;
use crate::shared::PumpMode;
use crate::shared::hctx::{Duties, PluggedRequest};
use crate::shared::hub::{Look, Shard};
use crate::shared::modes::{Access, DispatchMode, InsertMode, KickMode, MergeMode};
use crate::shared::stats::SubmitterCounters;
use crate::sync::{COMPARE, Entered, Gate, Kept, Kick, LockGuard, Ordering};
use crate::{Inflight, planted};
use blkmq_core::{HwQueue, Instant, SubmitterId, Tag};
use blkmq_sched::Pick;
use std::collections::VecDeque;

/// Rounds of collecting and issuing that one call makes before it lets other threads continue. Few in models, which
/// would never reach a larger number.
const ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };
/// One in this many contended waits for a lock is measured, and counts for all. Reading a clock takes a good part of
/// the time for which the lock is held, and the second reading delays the threads that wait behind.
const MEASURED: u64 = 16;

/// The estimated time of all waits for which the measured one, `wait`, stands, at `now`, if the last measurement was at
/// `before`. The estimate is limited to the time since then: a thread that lost its CPU during the measured wait need
/// not have lost it in the others. The first measured wait stands only for itself.
fn estimate(wait: u64, now: u64, before: u64) -> u64 {
    if before == 0 { wait } else { (MEASURED * wait).min(now.saturating_sub(before)) }
}

/// A bio during its merge attempt. If the policy panics, dropping this leaves the bio with the orphans.
struct Asked(Option<PluggedRequest>);

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(proto) = self.0.take() {
            proto.bio.orphan();
        }
    }
}

/// The requests that a thread has collected for one hardware queue.
pub(crate) type List = VecDeque<Inflight>;

impl Shard {
    /// Returns whether a thread is dispatching where only one thread at a time may. A hint.
    pub(crate) fn is_dispatching(&self) -> bool {
        self.modes.serial.as_ref().is_some_and(|gate| gate.is_busy())
    }

    /// Returns whether the caller may dispatch. If false, the dispatching thread continues in the caller's place.
    pub(crate) fn may_dispatch(&self) -> bool {
        self.modes.serial.as_ref().is_none_or(|gate| gate.try_enter())
    }

    /// Ends the caller's dispatch. Returns true if another thread was turned away in the meantime, so that the caller
    /// has to dispatch again.
    pub(crate) fn has_dispatched(&self) -> bool {
        let asked = self.modes.serial.as_ref().is_some_and(|gate| gate.leave());
        asked && !planted::is(Planted::ForgetsSentAway)
    }

    /// Returns whether a request waits for dispatch. Read before the lock is taken.
    fn has_work(&self) -> bool {
        self.modes.held.load(Ordering::Acquire) > 0
            || self.modes.parking.as_ref().is_some_and(|parking| parking.lists.any())
    }
}

/// The engine of a queue whose elevators are behind locks.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a, P>(pub(crate) &'a Engine<P>);

impl<P> std::ops::Deref for Locked<'_, P> {
    type Target = Engine<P>;

    fn deref(&self) -> &Engine<P> {
        self.0
    }
}

impl<P: Send> Locked<'_, P> {
    /// The counters of the caller with the number `who`.
    pub(crate) fn tally(&self, who: usize) -> &SubmitterCounters {
        match self.hub.lasting.tallies.get(who) {
            Some(tally) => tally,
            None => &self.hub.lasting.pump_tallies[who - self.hub.lasting.tallies.len()],
        }
    }

    /// Takes the elevator's lock, waiting for it. `None` if an earlier holder panicked.
    pub(crate) fn enter<'a>(&'a self, shard: &'a Shard, by: By) -> Option<LockGuard<'a, Runner>> {
        if let Some(runner) = self.try_enter(shard, by) {
            return Some(runner);
        }
        let (tally, host) = (self.tally(by.who), &self.hub.lasting.host);
        let measured = tally.contended.get().is_multiple_of(MEASURED);
        let began = if measured { host.ticks() } else { 0 };
        let mut runner = self.gate(shard).lock(by.who)?;
        if measured {
            let now = host.ticks();
            tally.waited.add(estimate(now.saturating_sub(began), now, tally.measured_at.get()));
            tally.measured_at.raise(now);
        }
        tally.locked.add(1);
        tally.contended.add(1);
        runner.account_waits(by.now);
        runner.begin(by.now);
        Some(runner)
    }

    /// Takes the elevator's lock; `None` if it is taken.
    fn try_enter<'a>(&'a self, shard: &'a Shard, by: By) -> Option<LockGuard<'a, Runner>> {
        let mut runner = self.gate(shard).try_lock(by.who)?;
        self.tally(by.who).locked.add(1);
        runner.account_waits(by.now);
        runner.begin(by.now);
        Some(runner)
    }

    /// Publishes the hints that other threads read before they take the lock, and releases the lock.
    pub(crate) fn leave(&self, shard: &Shard, mut runner: LockGuard<'_, Runner>) {
        runner.publish(shard);
        self.let_go(self.gate(shard), runner);
    }

    /// Releases the lock, wakes parked submitters, and counts the policy's notes.
    fn let_go(&self, gate: &Gate<Runner>, mut runner: LockGuard<'_, Runner>) {
        runner.look_again();
        runner.end();
        let mut wakes = Vec::new();
        self.carry_out(gate, &mut runner.duties, &mut wakes);
        let book = runner.elevator.env.take_notes(&self.hub.lasting.ledger, None);
        drop(runner);
        self.wake(&wakes);
        if let Some(mut book) = book {
            book.count();
        }
    }

    /// Serves the asks to cancel.
    pub(crate) fn locked_ask(&self, shard: &Shard, by: Caller<'_>) {
        let _ = self.gate(shard).kick();
        self.locked_poll(shard, by.locker(), by.home);
    }

    /// One bio's merge attempt.
    pub(crate) fn locked_merge(
        &self,
        shard: &Shard,
        id: SubmitterId,
        now: Instant,
        proto: PluggedRequest,
    ) -> Result<(), PluggedRequest> {
        let by = By { who: id.0.into(), now };
        let entered = match self.hub.modes.merge {
            MergeMode::SkipWhenContended => self.try_enter(shard, by),
            MergeMode::Always | MergeMode::AtDrain => self.enter(shard, by),
        };
        let Some(mut runner) = entered else {
            self.tally(by.who).merges_skipped.add(1);
            return Err(proto);
        };
        let merged = if runner.admits_nothing(&self.hub) {
            Err(proto)
        } else {
            // The bio stays here until it is merged, in case the policy panics in the attempt.
            let mut asked = Asked(Some(proto));
            runner.elevator.merge(&self.hub.lasting.table, &mut asked.0);
            asked.0.take().map_or(Ok(()), Err)
        };
        self.let_go(self.gate(shard), runner);
        merged
    }

    /// Inserts one plug, then runs the hardware queue on this thread.
    pub(crate) fn locked_submit(&self, shard: &Shard, now: Instant, home: HwQueue, own: Own<'_>) {
        let by = By { who: own.id.0.into(), now };
        let entered = match self.hub.modes.insert {
            InsertMode::PercpuLists => self.try_enter(shard, by),
            InsertMode::Direct | InsertMode::Staged => self.enter(shard, by),
        };
        match entered {
            Some(runner) => self.take_in(shard, runner, false, Some(own)),
            None if shard.modes.parking.is_some() => self.park(shard, home, own),
            // An earlier holder panicked: salvaging ends staged I/Os.
            None => stage(shard, own),
        }
        self.locked_run(shard, by, home, false);
    }

    /// Takes in finished requests, parked requests and the caller's plug, and then releases the lock.
    fn take_in(
        &self,
        shard: &Shard,
        mut runner: LockGuard<'_, Runner>,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        runner.take_in(&self.hub, shard, freed, own);
        self.leave(shard, runner);
    }

    /// Does the work that is due: timers, finished requests, submitters that waited for a slot. Returns whether there
    /// was any.
    pub(crate) fn locked_poll(&self, shard: &Shard, by: By, home: HwQueue) -> bool {
        let By { who, now } = by;
        let mut due = self.gate(shard).due(now);
        let mut ran = due;
        if due {
            // Cleared only if work is due: otherwise a later deadline, or a kick of this moment, would be lost.
            self.gate(shard).take_due();
        }
        let inline = self.hub.lasting.pump_mode.is_inline();
        for hw in shard.hws().map(HwQueue) {
            // A pump thread comes here because it was woken: its device may have raised an interrupt.
            let called = who == self.hub.pump_thread(hw) && self.pump_may_run(hw, now);
            if called || inline && self.pump_due(hw, now, Look::All) {
                self.pump_gate(hw).take_due();
                due |= self.issue(hw, by, &mut List::new());
                ran = true;
            }
        }
        if due {
            self.locked_restart(shard, by, home);
        }
        ran
    }

    /// Runs the hardware queue after the release of a resource for which the elevator waited.
    pub(crate) fn locked_restart(&self, shard: &Shard, by: By, home: HwQueue) {
        if let Some(again) = self.refresh(shard, by) {
            self.locked_run(shard, by, home, again);
        }
    }

    /// Takes in finished requests, and then the submitters that waited for slots. Returns `None` if another thread
    /// dispatches in the caller's place, and `Some(true)` if a thread was turned away in the meantime, so that the
    /// caller has to dispatch again.
    fn refresh(&self, shard: &Shard, by: By) -> Option<bool> {
        if !self.may_dispatch(shard, by) {
            return None;
        }
        if let Some(runner) = self.enter(shard, by) {
            self.take_in(shard, runner, true, None);
        }
        Some(shard.has_dispatched())
    }

    /// Like [`Shard::may_dispatch`], but counts the refusals.
    fn may_dispatch(&self, shard: &Shard, by: By) -> bool {
        let may = shard.may_dispatch();
        if !may {
            self.tally(by.who).left.add(1);
        }
        may
    }

    /// Collects and issues until no work is left, and takes in finished requests and waiting submitters between rounds.
    /// With `again`, a thread was turned away, and the caller makes another round in any case.
    fn locked_run(&self, shard: &Shard, by: By, home: HwQueue, mut again: bool) {
        let mut list = List::new();
        let lanes = u32::from(shard.hws().end - shard.hws().start);
        for round in 0..ROUNDS {
            for step in 0..lanes {
                let at = (u32::from(home.0 - shard.hws().start) + step) % lanes;
                let hw = HwQueue(shard.hws().start + at as u16);
                again |= self.collect(shard, by, hw, &mut list);
                if !list.is_empty() {
                    again |= self.issue(hw, by, &mut list);
                }
            }
            // This thread must serve a kick that arrived in the meantime, even its own, because it may not return.
            let due = self.gate(shard).due(by.now);
            if !again && !due {
                return;
            }
            if due {
                self.gate(shard).take_due();
            }
            let Some(asked) = self.refresh(shard, by) else { return };
            again = asked;
            if round + 1 == ROUNDS {
                let parked = self.kick_shard(shard.index);
                self.wake(parked.as_slice());
            }
        }
    }

    /// Fills `list` for `hw`. Returns true if a thread was turned away in the meantime, so that the caller has to
    /// dispatch again.
    fn collect(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) -> bool {
        let hctx = self.hub.hctx(hw);
        if hctx.is_stuck() {
            hctx.restart.mark();
            if hctx.is_stuck() {
                return false;
            }
        }
        let busy = hctx.busy() > 0;
        // A batch pays off only with a single elevator, and only while the device is not busy.
        let batch =
            self.hub.modes.dispatch == DispatchMode::Batch && self.hub.shards.len() == 1 && !busy;
        let (quota, mut again) = (if busy { 1 } else { usize::MAX }, false);
        while list.len() < quota && shard.has_work() {
            if !self.may_dispatch(shard, by) {
                break;
            }
            let more = if batch {
                self.collect_batch(shard, by, hw, list)
            } else {
                self.collect_one(shard, by, hw, list)
            };
            again |= shard.has_dispatched();
            if !more {
                break;
            }
        }
        if list.len() == quota {
            hctx.restart.mark();
        }
        again
    }

    /// Takes a driver tag. If none is free, registers `shard` to be kicked when one is returned.
    pub(crate) fn tag(&self, shard: &Shard, by: By, hw: HwQueue) -> Option<Tag> {
        let hctx = self.hub.hctx(hw);
        let mut hint = by.who as u32;
        let mut get = || hctx.tags.get_batch(&mut hint, 1)?.pop();
        get().or_else(|| {
            hctx.restart.mark();
            hctx.tags.wait(shard.index, &self.hub.tag_wait, by.now);
            get()
        })
    }

    /// The request that the policy wants issued next on `hw`; `None` if it has none at present.
    pub(crate) fn pick(
        &self,
        shard: &Shard,
        runner: &mut Runner,
        hw: HwQueue,
        tag: Tag,
    ) -> Option<Inflight> {
        match runner.elevator.pick(hw) {
            Pick::Issue(id) => return Some(runner.elevator.issue(id, hw, tag)),
            // The thread that returns a token kicks the elevators that were refused one.
            Pick::Empty | Pick::WaitToken => {}
            Pick::WaitUntil(at) => {
                self.gate(shard).arm(at);
                runner.wait_for_completion(&self.hub, shard);
            }
            Pick::WaitCompletion => runner.wait_for_completion(&self.hub, shard),
        }
        None
    }

    /// Returns unused budgets and an unused tag.
    pub(crate) fn put_back(&self, hw: HwQueue, budgets: u32, tag: Option<Tag>) {
        let mut duties = Duties::default();
        if budgets > 0 {
            self.hub.put_budget(budgets, &mut duties);
        }
        if let Some(tag) = tag {
            self.hub.hctx(hw).tags.put(&[tag], &self.hub.tag_wait, &mut duties);
        }
        let mut wakes = Vec::new();
        self.carry_out(self.pump_gate(hw), &mut duties, &mut wakes);
        self.wake(&wakes);
    }

    /// Hands `list` to the device under the hardware queue's lock. Returns whether a resource for which the elevator
    /// waited was released.
    fn issue(&self, hw: HwQueue, by: By, list: &mut List) -> bool {
        let hctx = self.hub.hctx(hw);
        let mut wakes = Vec::new();
        let Some(mut pump) = self.pump_gate(hw).lock(by.who) else {
            // An earlier holder panicked: salvaging takes the collected requests from the orphans and ends them.
            list.drain(..).for_each(|rq| rq.into_head().orphan());
            return false;
        };
        let restart = pump.turn_with(&self.hub, hctx, by.now, list);
        self.kick_for_each(hw, pump.take_completed_since_kick(), restart);
        self.carry_out(self.pump_gate(hw), &mut pump.duties, &mut wakes);
        drop(pump);
        self.wake(&wakes);
        if self.hub.lasting.pump_mode == PumpMode::Thread && by.who != self.hub.pump_thread(hw) {
            // The caller issues on its own thread, but later events of the device are for the pump thread.
            let later = hctx.next_event().is_some() || self.pump_gate(hw).deadline().is_some();
            if later && self.pump_gate(hw).kick() == Kick::Queued {
                self.hub.lasting.host.wake_pump(hw);
            }
        }
        restart
    }

    /// Returns whether a thread can be delayed inside the elevator without making other threads wait.
    pub(crate) fn can_be_kept(&self) -> bool {
        let modes = &self.hub.modes;
        match modes.access {
            Access::Combining => true,
            Access::Spin | Access::Mutex => false,
            Access::Serialised => {
                modes.insert == InsertMode::PercpuLists
                    && modes.merge == MergeMode::SkipWhenContended
            }
        }
    }
}

impl<P: Send> Locked<'_, P> {
    pub(crate) fn keep_run(&self, shard: &Shard) -> Option<Kept> {
        if !self.can_be_kept() {
            return None;
        }
        if self.hub.modes.access == Access::Combining {
            return self.gate(shard).keep(Entered::Run(self.gate(shard).try_run()?));
        }
        if shard.is_dispatching() || !shard.may_dispatch() {
            return None;
        }
        let gate = self.gate(shard);
        let entered = gate.try_lock(self.hub.keeper());
        let kept = entered.and_then(|runner| gate.keep(Entered::Lock(runner)));
        if kept.is_none() && shard.has_dispatched() {
            let _ = self.gate(shard).kick();
        }
        kept
    }
}

impl Shard {
    /// Returns whether a request is parked.
    pub(crate) fn has_parked(&self) -> bool {
        COMPARE && self.modes.parking.as_ref().is_some_and(|parking| !parking.lists.is_empty())
    }

    /// Leaves the bios of parked requests with the orphans.
    pub(crate) fn orphan_parked(&self) {
        if COMPARE && let Some(parking) = &self.modes.parking {
            parking.lists.take(|proto| proto.bio.orphan());
        }
    }
}

impl<P: Send> Locked<'_, P> {
    /// Parks as much of the caller's plug as there are slots for; the rest waits for slots in staging.
    pub(crate) fn park(&self, shard: &Shard, home: HwQueue, own: Own<'_>) {
        let parking = shard.modes.parking.as_ref().expect("this way of inserting has lists");
        // The plug must not overtake I/Os in staging, nor an unanswered ask to cancel, which could then match an I/O of
        // the plug.
        let may_pass = own.staging.len() == 0 && !shard.asked.has(own.id.0);
        let wanted = if may_pass { own.plug.len() } else { 0 };
        let lane = usize::from(home.0 - shard.first_hw);
        let slots = parking.promises[lane].promise(wanted as u32);
        if slots > 0 {
            let who = usize::from(own.id.0);
            let is_open = || self.hub.lasting.control.is_open(self.hub.version);
            let fill =
                |list: &mut Vec<PluggedRequest>| list.extend(own.plug.drain_first(slots as usize));
            if parking.lists.park(who, is_open, fill) {
                self.tally(who).parked.add(slots.into());
            } else {
                parking.promises[lane].give_back(slots);
            }
        }
        if !own.plug.is_empty() {
            stage(shard, own);
            // No other thread has to come: this one takes in the staged I/Os when it has the lock.
            let _ = self.gate(shard).kick();
        }
    }
}

impl<P: Send> Locked<'_, P> {
    /// The holder of the pump of `hw` calls this after each turn, where kicks are the kernel's: while the elevator
    /// waits, each request that has completed since the last turn kicks every hardware queue of the elevator, as SCSI
    /// did when the flag was proposed.
    #[inline]
    pub(crate) fn kick_for_each(&self, hw: HwQueue, completed: u64, waits: bool) {
        if waits && self.hub.modes.kick != KickMode::Coalesced {
            self.kick_each(hw, completed);
        }
    }

    #[inline(never)]
    fn kick_each(&self, hw: HwQueue, completed: u64) {
        let counters = &self.hub.hctx(hw).counters;
        for _ in 0..completed {
            for hw in self.hub.shards[self.hub.shard_of(hw)].hws().map(HwQueue) {
                match self.pump_gate(hw).kick() {
                    Kick::Queued => {
                        counters.kicks_sent.add(1);
                        if self.hub.lasting.pump_mode == PumpMode::Thread {
                            self.hub.lasting.host.wake_pump(hw);
                        }
                    }
                    Kick::Coalesced => counters.kicks_coalesced.add(1),
                }
            }
        }
    }

    /// Returns whether the pump thread of `hw` issues requests. Where kicks are the kernel's, the pass for which the
    /// thread was woken may have been postponed since. The thread then only reaps finished requests, and issues if
    /// there were any.
    pub(crate) fn pump_may_run(&self, hw: HwQueue, now: Instant) -> bool {
        let gate = self.pump_gate(hw);
        if !gate.is_put_off(now) || self.pump_due(hw, now, Look::All) {
            return true;
        }
        let Some(mut pump) = gate.enter(self.hub.pump_thread(hw)) else { return true };
        let mut wakes = Vec::new();
        let came_back = pump.look(&self.hub, self.hub.hctx(hw), now);
        self.carry_out(gate, &mut pump.duties, &mut wakes);
        pump.finish();
        self.wake(&wakes);
        came_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a wait during which the thread had lost its CPU counted sixteen times, so that reported waits
    /// were up to five times the run time.
    #[test]
    fn waits_are_no_longer_than_the_time_since_the_last_one() {
        assert_eq!(estimate(10, 1_000, 500), 160);
        assert_eq!(estimate(100, 1_000, 500), 500);
        assert_eq!(estimate(100, 1_000, 0), 100, "the first");
    }
}
