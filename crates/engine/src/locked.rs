//! The *before*: one lock around the elevator, as the kernel has it, in a spinning and a parking flavour.
//!
//! Faithful where it matters to contention: the lock is taken for each bio's merge attempt, once per inserted
//! plug, and once per dispatched request. Each thread collects its own list and issues it after letting go of
//! the elevator, so that the order between threads is whatever it happens to be (`spec/framework.md`
//! sections 8 and 15). A hardware queue has a lock of its own, taken once per issued list, as NVMe's
//! submission queues have.

use crate::config::PumpMode;
use crate::elevator::Proto;
use crate::runner::{Own, Runner};
use crate::shared::{Shard, Shared};
use crate::sync::{LockGuard, Ordering};
use crate::{Inflight, pump::Pump};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use blkmq_sched::Pick;
use std::collections::VecDeque;

/// Rounds of collecting and issuing that one call makes before it lets others go on; few in models, which
/// would never get there.
const ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };

/// What came of asking for one request.
enum Step {
    Took(Inflight),
    Nothing,
}

impl<P: Send> Shared<P> {
    fn enter<'a>(&'a self, shard: &'a Shard, who: usize, now: Instant) -> LockGuard<'a, Runner> {
        let mut runner = shard.gate.lock(who);
        runner.begin(self, now);
        runner
    }

    /// Publishes what `has_work` looks at before it takes the lock, lets go of that, and wakes whom it
    /// concerns.
    fn leave(&self, shard: &Shard, mut runner: LockGuard<'_, Runner>) {
        runner.end(self);
        shard.held.store(runner.elevator.held(), Ordering::Release);
        let wakes = std::mem::take(&mut runner.wakes);
        let book = runner.elevator.outside.take_notes(&self.lasting.ledger, None);
        drop(runner);
        self.wake(&wakes);
        if let Some(mut book) = book {
            book.count();
        }
    }

    /// One bio's merge attempt.
    pub(crate) fn locked_merge(
        &self,
        shard: &Shard,
        who: SubmitterId,
        now: Instant,
        proto: Proto,
    ) -> Result<(), Proto> {
        let mut runner = self.enter(shard, who.0.into(), now);
        if runner.admits_nothing(self) {
            return Err(proto);
        }
        runner.elevator.merge(&self.lasting.table, proto)
    }

    /// One plug inserted, then the hardware queue run by this thread.
    pub(crate) fn locked_submit(&self, shard: &Shard, now: Instant, home: HwQueue, own: Own<'_>) {
        let who = usize::from(own.id.0);
        let mut runner = self.enter(shard, who, now);
        let freed = runner.take_returns(self);
        runner.admit_all(self, shard, freed, Some(own));
        self.leave(shard, runner);
        self.locked_run(shard, who, now, home);
    }

    /// Does what is due: timers, finished requests, submitters that waited for a slot. True if there was
    /// anything.
    pub(crate) fn locked_poll(
        &self,
        shard: &Shard,
        who: usize,
        now: Instant,
        home: HwQueue,
    ) -> bool {
        let mut due = shard.gate.due(now);
        let mut ran = due;
        if due {
            // Not otherwise: that would swallow a deadline yet to come, or a kick of this very moment.
            shard.gate.take_due();
        }
        for hw in shard.hws().map(HwQueue) {
            // A pump thread is here because it was called: its device may have interrupted.
            if who == self.pump_thread(hw) || self.pump_due(hw, now) {
                self.hctxs[usize::from(hw.0)].pump.take_due();
                due |= self.issue(hw, who, now, &mut VecDeque::new());
                ran = true;
            }
        }
        if due {
            self.locked_restart(shard, who, now, home);
        }
        ran
    }

    /// Something that the elevator waited for came back.
    fn locked_restart(&self, shard: &Shard, who: usize, now: Instant, home: HwQueue) {
        let mut runner = self.enter(shard, who, now);
        runner.take_returns(self);
        runner.admit_all(self, shard, true, None);
        self.leave(shard, runner);
        self.locked_run(shard, who, now, home);
    }

    /// Collects and issues, one request for each hold of the lock, until there is no more to do.
    fn locked_run(&self, shard: &Shard, who: usize, now: Instant, home: HwQueue) {
        let mut list = VecDeque::new();
        let lanes = u32::from(shard.hws().end - shard.hws().start);
        for round in 0..ROUNDS {
            let mut restart = false;
            for step in 0..lanes {
                let at = (u32::from(home.0 - shard.hws().start) + step) % lanes;
                let hw = HwQueue(shard.hws().start + at as u16);
                self.collect(shard, who, now, hw, &mut list);
                if !list.is_empty() {
                    restart |= self.issue(hw, who, now, &mut list);
                }
            }
            // What was kicked meanwhile, by this thread too, is this thread's to do: it may not come back.
            let due = shard.gate.due(now);
            if !restart && !due {
                return;
            }
            if due {
                shard.gate.take_due();
            }
            let mut runner = self.enter(shard, who, now);
            let freed = runner.take_returns(self);
            runner.admit_all(self, shard, freed, None);
            self.leave(shard, runner);
            if round + 1 == ROUNDS {
                let parked = self.kick_shard(shard.index);
                self.wake(parked.as_slice());
            }
        }
    }

    /// Fills `list` for `hw`: budget, driver tag and one request at a time.
    fn collect(
        &self,
        shard: &Shard,
        who: usize,
        now: Instant,
        hw: HwQueue,
        list: &mut VecDeque<Inflight>,
    ) {
        let hctx = &self.hctxs[usize::from(hw.0)];
        if hctx.is_stuck() {
            hctx.restart.mark();
            if hctx.is_stuck() {
                return;
            }
        }
        let quota = if hctx.busy().get() == 0 { usize::MAX } else { 1 };
        while list.len() < quota && shard.held.load(Ordering::Acquire) > 0 {
            match self.collect_one(shard, who, now, hw) {
                Step::Took(rq) => list.push_back(rq),
                Step::Nothing => break,
            }
        }
        if list.len() == quota {
            hctx.restart.mark();
        }
    }

    fn collect_one(&self, shard: &Shard, who: usize, now: Instant, hw: HwQueue) -> Step {
        let hctx = &self.hctxs[usize::from(hw.0)];
        let mut wakes = Vec::new();
        let budget = !self.budget.is_limited() || self.budget.take(1) == 1 || {
            self.budget_wait.set(shard.index);
            self.budget.take(1) == 1
        };
        if !budget {
            return Step::Nothing;
        }
        let mut hint = who as u32;
        let mut get = || hctx.tags.get_batch(&mut hint, 1)?.pop();
        let tag = get().or_else(|| {
            hctx.restart.mark();
            hctx.tags.wait(self, shard, now);
            get()
        });
        let Some(tag) = tag else {
            self.put_budget(1, &mut wakes);
            self.wake(&wakes);
            return Step::Nothing;
        };
        let mut runner = self.enter(shard, who, now);
        let picked = match runner.elevator.pick(hw) {
            Pick::Issue(id) => Some(runner.elevator.issue(id, hw, tag)),
            // Whoever gives a token back calls those that were refused one.
            Pick::Empty | Pick::WaitToken => None,
            Pick::WaitUntil(at) => {
                shard.gate.arm(at);
                runner.wait_for_completion(self, shard);
                None
            }
            Pick::WaitCompletion => {
                runner.wait_for_completion(self, shard);
                None
            }
        };
        if picked.is_some() {
            runner.elevator.counters.batches.add(1);
            runner.elevator.counters.dispatched.add(1);
        }
        self.leave(shard, runner);
        match picked {
            Some(rq) => Step::Took(rq),
            None => {
                self.put_budget(1, &mut wakes);
                hctx.tags.put(self, &[tag], &mut wakes);
                self.wake(&wakes);
                Step::Nothing
            }
        }
    }

    /// Hands `list` to the device under the hardware queue's lock. True if the elevator waited for something
    /// that came back.
    fn issue(&self, hw: HwQueue, who: usize, now: Instant, list: &mut VecDeque<Inflight>) -> bool {
        let hctx = &self.hctxs[usize::from(hw.0)];
        let mut wakes = Vec::new();
        let mut pump = hctx.pump.lock(who);
        let restart = pump.turn_with(self, hctx, now, |_: &mut Pump<P>| list.pop_front());
        pump.take_wakes(&mut wakes);
        drop(pump);
        self.wake(&wakes);
        if self.lasting.pump_mode == PumpMode::Thread && who != self.pump_thread(hw) {
            // Whoever issues does it here, but what the device does later is for the pump thread.
            let later = hctx.next_event().is_some() || hctx.pump.deadline().is_some();
            if later {
                self.lasting.host.wake_pump(hw);
            }
        }
        restart
    }
}
