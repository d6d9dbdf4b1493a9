//! [`Run`]: a run of an elevator that a thread keeps, for drivers in virtual time.

use super::locked::Locked;
use crate::dispatch::engine::{By, Caller, Engine};
use crate::dispatch::gate::{Entered, Kept};
use crate::elevator::runner::Runner;
use crate::shared::duties::Ready;
use crate::shared::hub::Shard;
use crate::sync::Arc;
use blkmq_core::{HwQueue, Instant};

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
