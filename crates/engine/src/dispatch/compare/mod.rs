//! The comparison modes: an elevator behind a lock, as the kernel has it (the *before*) and as patches proposed it.
//!
//! The modes are faithful where contention depends on it. As in the kernel, the lock is taken for each bio's merge
//! attempt, once per inserted plug, and once per dispatched request. Each thread collects its own list and issues it
//! after it has released the elevator, so the order between threads is arbitrary (`spec/framework.md` sections 8 and
//! 15). A hardware queue has its own lock, taken once per issued list, as NVMe's submission queues have.
//!
//! | option | before | as proposed |
//! |---|---|---|
//! | merge | waits for the lock | gives up if the lock is taken: `locked.rs` |
//! | insert | waits for the lock | parks the requests: `locked.rs`, `shared/modes.rs` |
//! | dispatch | one at a time | a batch |
//! | access | every thread dispatches | one thread at a time: `sync/dispatch_gate.rs`, asked in `Locked::collect` |
//! | kick | each kick wakes | a flag: `sync/delayed_work.rs`, behind every gate (`sync/gate.rs`) |
//!
//! The combining elevator, which replaces all of this, is in `dispatch/mod.rs` and `elevator/runner.rs`. The two
//! share only the code behind the gates. [`Run`] is the hook by which drivers in virtual time delay a thread. Without
//! the feature `compare` the compiler removes all of it (`COMPARE` in `sync/mod.rs`), and no attribute chooses a
//! mode: a running server has none of them.
//!
//! *The requests of one hold of the lock stay together and in order; the batches of two threads may still change
//! places*, because they are issued after the lock is released. Budgets are taken first, so that no more requests leave
//! the elevator than the device takes; unused budgets are returned after the lock is released. Each request has its
//! driver tag before it is picked. The kernel picks first, and keeps a request for which there is no tag.

pub(crate) mod locked;

use crate::dispatch::compare::locked::{List, Locked};
use crate::dispatch::{By, Caller, Engine};
use crate::elevator::runner::Runner;
use crate::planted::{self, Planted, Stop};
use crate::shared::hctx::Ready;
use crate::shared::hub::Shard;
use crate::sync::{Arc, Entered, Kept, LockGuard, Ordering, fence};
use blkmq_core::{HwQueue, Instant, Tag};

/// The most budgets taken for one hold.
const BUDGETS: u32 = 8;

impl<P: Send> Locked<'_, P> {
    /// Adds the requests that one hold of the lock yields to `list`. Returns whether another hold may yield more.
    fn collect_batch(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) -> bool {
        let budgets = self.budgets_for_batch(shard);
        if budgets == 0 {
            return false;
        }
        let Some(mut runner) = self.enter(shard, by) else {
            self.put_back(hw, budgets, None);
            return false;
        };
        runner.take_over(&self.hub, shard);
        let (mut taken, mut unused) = (0, None);
        while taken < budgets && runner.elevator.held() > 0 {
            let Some(tag) = self.tag(shard, by, hw) else { break };
            let Some(rq) = self.pick(shard, &mut runner, hw, tag) else {
                unused = Some(tag);
                break;
            };
            list.push_back(rq);
            taken += 1;
        }
        if taken > 0 {
            runner.elevator.counters.batches.add(1);
            runner.elevator.counters.dispatched.add(taken.into());
        }
        let parked = match unused {
            Some(tag) => self.leave_unserved(shard, hw, runner, tag),
            None => {
                self.leave(shard, runner);
                false
            }
        };
        self.put_back(hw, budgets - taken, None);
        taken > 0 || parked
    }

    /// The number of requests that one hold may take: `nr_requests`, or as many as there are budgets.
    fn budgets_for_batch(&self, shard: &Shard) -> u32 {
        let most = if self.hub.budget.is_some() { BUDGETS } else { self.hub.nr_requests };
        self.hub.take_budget(shard, most)
    }
}

impl<P: Send> Locked<'_, P> {
    /// Takes a budget, then a driver tag, then adds a request for them to `list`, if the policy has one. Returns
    /// whether another call may add one.
    fn collect_one(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) -> bool {
        if self.hub.take_budget(shard, 1) == 0 {
            return false;
        }
        let Some(tag) = self.tag(shard, by, hw) else {
            self.put_back(hw, 1, None);
            return false;
        };
        let Some(mut runner) = self.enter(shard, by) else {
            self.put_back(hw, 1, Some(tag));
            return false;
        };
        runner.take_over(&self.hub, shard);
        if let Some(rq) = self.pick(shard, &mut runner, hw, tag) {
            runner.elevator.counters.batches.add(1);
            runner.elevator.counters.dispatched.add(1);
            self.leave(shard, runner);
            list.push_back(rq);
            return true;
        }
        let parked = self.leave_unserved(shard, hw, runner, tag);
        self.put_back(hw, 1, None);
        parked
    }

    /// Returns a tag for which the policy had no request, and then releases the lock: a thread that inserts a request
    /// later finds the tag. If the tag were returned after the lock was released, that thread could find none, and
    /// leave its request to a completion that never comes. Returns whether a request was parked without the lock in the
    /// meantime: its thread may have found no tag.
    fn leave_unserved(
        &self,
        shard: &Shard,
        hw: HwQueue,
        mut runner: LockGuard<'_, Runner>,
        tag: Tag,
    ) -> bool {
        planted::stop(Stop::PicksInVain);
        let late = planted::is(Planted::ReturnsTagLate);
        if !late {
            self.hub.hctx(hw).tags.put(&[tag], &self.hub.tag_wait, &mut runner.duties);
        }
        self.leave(shard, runner);
        planted::stop(Stop::PickedInVain);
        if late {
            self.put_back(hw, 0, Some(tag));
        }
        // Pairs with the mark of a thread that finds no tag: it parks, marks, and looks for a tag again.
        fence(Ordering::SeqCst);
        let forgets = [Planted::ForgetsLateComers, Planted::ForgetsParkedRequests];
        shard.has_parked() && !forgets.into_iter().any(planted::is)
    }
}

/// The run of an elevator, taken and kept: a thread interrupted in the middle of its work.
///
/// While it exists, every submission to the same elevator is staged or parked. For drivers in virtual time, whose
/// single thread would never find the elevator busy; of no use to programs. Dropping it hands the run over.
pub struct Run<P> {
    q: Arc<Engine<P>>,
    shard: usize,
    /// `None` only while the run is being used or released.
    run: Option<Kept>,
    home: HwQueue,
    ready: Ready,
}

impl<P> std::fmt::Debug for Run<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("home", &self.home).finish_non_exhaustive()
    }
}

impl<P> Drop for Run<P> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            let shard = &self.q.hub.shards[self.shard];
            match self.q.gate(shard).resume(run) {
                Entered::Run(guard) => guard.hand_over(),
                Entered::Lock(mut guard) => {
                    guard.publish(shard);
                    drop(guard);
                    // The next thread dispatches for the threads that were turned away.
                    let _ = shard.has_dispatched();
                    let _ = self.q.gate(shard).kick();
                }
            }
        }
    }
}

impl<P: Send> Run<P> {
    /// Takes the run of the elevator that serves `hw`; `None` if it is taken or cannot be kept.
    pub(crate) fn begin(q: Arc<Engine<P>>, hw: HwQueue) -> Option<Self> {
        let shard = q.hub.shard_of(hw);
        let run = Locked(&q).keep_run(&q.hub.shards[shard])?;
        Some(Self { q, shard, run: Some(run), home: hw, ready: Ready::default() })
    }

    fn resume(&mut self) -> (&Engine<P>, &Shard, Entered<'_, Runner>) {
        let run = self.run.take().expect("the run is kept until it is given back");
        let shard = &self.q.hub.shards[self.shard];
        (&self.q, shard, self.q.gate(shard).resume(run))
    }

    /// Makes one pass over the elevator: admits staged I/Os and fills the outboxes. The pumps do not run. Under a lock,
    /// parked requests are taken in too, and nothing is dispatched.
    pub fn step(&mut self, now: Instant) {
        let home = self.home;
        let (q, shard, mut entered) = self.resume();
        let ready = match &mut entered {
            Entered::Run(guard) => guard.pass(&q.hub, shard, now, home, None),
            Entered::Lock(runner) => {
                runner.account_waits(now);
                runner.begin(now);
                runner.take_in(&q.hub, shard, false, None);
                runner.end();
                Ready::default()
            }
        };
        let (gate, mut wakes) = (q.gate(shard), Vec::new());
        q.carry_out(gate, &mut entered.duties, &mut wakes);
        // Threads are woken when the run is released.
        entered.duties.wake(&mut wakes);
        let kept = gate.keep(entered);
        self.run = Some(kept.expect("what was kept before can be kept again"));
        self.ready.merge(ready);
    }

    /// Releases the run as any runner does: first makes the owed passes, then runs the pumps.
    pub fn finish(mut self, now: Instant) {
        self.let_go(now);
    }

    fn let_go(&mut self, now: Instant) {
        let (home, before) = (self.home, self.ready);
        let (q, shard, entered) = self.resume();
        match entered {
            Entered::Run(guard) => {
                let tally = &q.hub.lasting.pump_tallies[usize::from(home.0)];
                let by = Caller { id: None, now, home, tally };
                let mut ready = before;
                ready.merge(q.run(shard, guard, by, None));
                q.drive(shard, ready, by);
            }
            Entered::Lock(mut runner) => {
                runner.account_waits(now);
                runner.begin(now);
                Locked(q).leave(shard, runner);
                let _ = shard.has_dispatched();
                Locked(q).locked_restart(shard, By { who: q.hub.keeper(), now }, home);
            }
        }
    }

    /// Like [`finish`](Self::finish), for a thread that has no I/Os in flight and may not return.
    pub fn leave(mut self, now: Instant) {
        self.let_go(now);
        self.q.wake_successor(&self.q.hub.shards[self.shard], self.home);
    }
}

pub mod calls {
    //! Kicks in quick succession, and the passes that serve them: how each kind of kick meets R1 to R3 of
    //! `spec/framework.md` section 9.1, step by step and without a clock.
    //!
    //! The kicks use the same words as a queue's. Only the worker is simulated: it sleeps until it is woken or a timer
    //! expires, and arrives some time later.

    use crate::shared::modes::{Access, KickMode, Modes};
    use crate::sync::{Gate, GateShape, Kick};
    use blkmq_core::{Instant, Nanos};

    /// A request for a pass.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Call {
        /// The time of the request.
        pub at: Instant,
        /// How much later the pass may begin; zero means immediately.
        pub delay: Nanos,
    }

    /// The times at which the passes that serve `calls` begin, if a woken worker arrives `lag` later. `calls` is sorted
    /// by time. O(calls).
    #[must_use]
    pub fn passes(kick: KickMode, calls: &[Call], lag: Nanos) -> Vec<Instant> {
        let modes = Modes { kick: Some(kick), ..Modes::default() }.settle(Access::Combining);
        let modes = modes.expect("kicks of every kind go with combining");
        let shape = GateShape { lock: modes.lock(), work: modes.work(), threads: 1, alarm: None };
        let gate = Gate::new(&shape, ());
        let mut calls = calls.iter().peekable();
        let mut passes = Vec::new();
        let mut now = Instant::ZERO;
        // The arrival time of a woken worker.
        let mut comes: Option<Instant> = None;
        loop {
            // A timer wakes the worker as a kick does. A pass that is due immediately has woken it already.
            let timer = gate.deadline().filter(|at| *at > now).map(|at| at + lag);
            let worker = comes.into_iter().chain(timer).min();
            match (calls.peek(), worker) {
                (None, None) => return passes,
                (Some(call), worker) if worker.is_none_or(|at| call.at <= at) => {
                    now = now.max(call.at);
                    if call.delay > Nanos::ZERO {
                        gate.run_later(call.at + call.delay);
                    } else if gate.kick() == Kick::Queued {
                        comes = comes.or(Some(now + lag));
                    }
                    calls.next();
                }
                (_, worker) => {
                    now = worker.expect("there is a call or a worker");
                    comes = None;
                    if gate.due(now)
                        && let Some(pass) = gate.try_run()
                    {
                        passes.push(now);
                        let _ = pass.finish();
                    }
                }
            }
        }
    }

    #[cfg(all(test, not(loom), not(shuttle)))]
    mod tests {
        use super::*;

        const LAG: Nanos = Nanos(50_000);
        const LATER: Nanos = Nanos(3_000_000);

        fn at(ns: u64) -> Instant {
            Instant::from_nanos(ns)
        }

        fn now(ns: u64) -> Call {
            Call { at: at(ns), delay: Nanos::ZERO }
        }

        fn later(ns: u64) -> Call {
            Call { at: at(ns), delay: LATER }
        }

        #[test]
        fn the_flag_swallows_the_call_for_now_behind_one_for_later_and_nothing_else_does() {
            let calls = [now(1_000), later(2_000), now(3_000)];
            let first = |kick| passes(kick, &calls, LAG)[0];
            assert_eq!(first(KickMode::Always), at(51_000));
            assert_eq!(first(KickMode::Coalesced), at(51_000));
            assert_eq!(first(KickMode::Flag), at(2_000) + LATER + LAG);
        }

        #[test]
        fn one_call_is_answered_by_one_pass_in_time() {
            for (_, kick) in KickMode::ALL {
                assert_eq!(passes(kick, &[now(7)], LAG), [at(7) + LAG], "{kick}");
                assert_eq!(passes(kick, &[later(7)], LAG), [at(7) + LATER + LAG], "{kick}");
                assert_eq!(passes(kick, &[], LAG), []);
            }
        }

        #[test]
        fn a_burst_is_answered_once_and_what_comes_after_the_pass_again() {
            let calls = [now(10), now(20), now(30), now(200_000)];
            for (_, kick) in KickMode::ALL {
                assert_eq!(passes(kick, &calls, LAG), [at(10) + LAG, at(200_000) + LAG], "{kick}");
            }
        }

        #[test]
        fn the_kernels_later_call_puts_off_what_was_due_now_and_ours_does_not() {
            let calls = [now(0), later(10)];
            assert_eq!(passes(KickMode::Coalesced, &calls, LAG)[0], at(0) + LAG);
            for kick in [KickMode::Always, KickMode::Flag] {
                assert_eq!(passes(kick, &calls, LAG), [at(10) + LATER + LAG], "{kick}");
            }
        }
    }
}
