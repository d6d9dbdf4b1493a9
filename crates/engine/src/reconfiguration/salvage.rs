//! Ending every reachable I/O of a queue in which a policy or a device panicked (decision 0010).
//!
//! The thread that panics goes on unwinding. On the way it lets go of the elevator or pump, which is closed from then
//! on; raises the alarm, by which every submitter notices; and leaves the tokens on its stack with the table's
//! orphans. Each submitter that notices ends the I/Os in its own plug and calls [`Engine::salvage`], which takes
//! every elevator and every pump, in any state, and ends the I/Os there with [`IoError::POISONED`].
//!
//! | where a request is | what happens to it |
//! |---|---|
//! | in staging, the lobby, an elevator or an outbox, or refused by the device | it ends |
//! | at a device that did not panic | it ends as the device says |
//! | at the device that panicked | it ends if the device gives it back when asked to abandon it; else it is lost |
//!
//! Requests are no longer inserted, picked or issued, and no policy is called. A lost request has no completion,
//! since its payload cannot be handed out while a device may write to it; submitters know how many of their I/Os are
//! lost ([`Submitter::lost`](crate::Submitter::lost)).

use crate::completion::completions::Completions;
use crate::dispatch::engine::Engine;
use crate::dispatch::gate::Entered;
use crate::dispatch::pump::Pump;
use crate::elevator::runner::Runner;
use crate::shared::lasting::Lasting;
use crate::shared::shard::Shard;
use crate::sync::{Alarm, TryLockError};
use blkmq_core::{HwQueue, Instant, IoError, IoResult, Nanos, SubmitterId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After this time a thread looks again at requests that devices still have, if nothing wakes it before.
pub(crate) const SALVAGE_AGAIN: Nanos = Nanos::from_millis(1);
/// The result of the I/Os that are ended here.
const POISONED: IoResult = Err(IoError::POISONED);

impl<P: Send> Alarm for Lasting<P> {
    fn raise(&self) {
        self.control.poison();
        for id in 0..self.senders.len() as u16 {
            self.host.wake_submitter(SubmitterId(id));
        }
        if self.pump_mode == crate::PumpMode::Thread {
            let hw_queues = self.pump_tallies.len() as u16 - crate::shared::lasting::OTHER_TALLIES;
            (0..hw_queues).for_each(|hw| self.host.wake_pump(HwQueue(hw)));
        }
    }
}

impl<P: Send> Engine<P> {
    /// Ends the I/Os that can be ended. True if none is on its way any more, except those that submitters had in hand
    /// when this began. If false, it must be called again: another thread is salvaging, an elevator or pump is taken,
    /// or a device still has requests. O(everything).
    #[cold]
    pub(crate) fn salvage(&self, now: Instant) -> bool {
        let _alone = match self.hub.lasting.salvage.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut wakes = Vec::new();
        // Elevators leave requests to pumps, and pumps hand requests back.
        let mut over = self.salvage_elevators(&mut wakes);
        for hw in (0..self.pumps.len() as u16).map(HwQueue) {
            over &= match self.pump_gate(hw).seize(self.hub.changer()) {
                Some(pump) => self.salvage_pump(hw, pump, now, &mut wakes),
                None => false,
            };
        }
        over &= self.salvage_elevators(&mut wakes);
        let mut ended = Completions::new(&self.hub.lasting.table);
        for chain in self.hub.lasting.table.take_orphans() {
            ended.push_chain(&self.hub.lasting, chain, POISONED);
        }
        ended.flush(&self.hub.lasting);
        wakes.append(&mut ended.wake);
        self.wake(&wakes);
        over
    }

    /// Ends the I/Os in all elevators. True if every elevator could be entered.
    fn salvage_elevators(&self, wakes: &mut Vec<SubmitterId>) -> bool {
        let mut all = true;
        for shard in &self.hub.shards {
            match self.gate(shard).seize(self.hub.changer()) {
                Some(runner) => self.salvage_elevator(shard, runner, wakes),
                None => all = false,
            }
        }
        all
    }

    /// Ends the I/Os in a pump. True if the device has none any more.
    fn salvage_pump(
        &self,
        hw: HwQueue,
        mut pump: Entered<'_, Pump<P>>,
        now: Instant,
        wakes: &mut Vec<SubmitterId>,
    ) -> bool {
        let hctx = self.hub.hctx(hw);
        if pump.is_poisoned() {
            // The device may panic once more. The requests that it has given back by then stay in `pump`.
            let _ = catch_unwind(AssertUnwindSafe(|| pump.give_up_device()));
        } else {
            pump.stop_retrying();
            pump.look(&self.hub, hctx, now);
        }
        pump.end_waiting(&self.hub, hctx, POISONED);
        self.carry_out(self.pump_gate(hw), &mut pump.duties, wakes);
        let over = pump.is_idle();
        pump.finish();
        over
    }

    fn salvage_elevator(
        &self,
        shard: &Shard,
        mut runner: Entered<'_, Runner>,
        wakes: &mut Vec<SubmitterId>,
    ) {
        // The requests ended below are still in the policy's books, so the policy must not be called again.
        runner.close();
        #[cfg(feature = "compare")]
        shard.orphan_parked();
        runner.end_all();
        runner.completions.flush(&self.hub.lasting);
        wakes.append(&mut runner.completions.wake);
        self.carry_out(self.gate(shard), &mut runner.duties, wakes);
        runner.finish();
    }
}

impl Runner {
    /// Leaves every token that is staged or held with the orphans, except those that are on their way to a pump.
    pub(crate) fn end_all(&mut self) {
        // A pass that was cut short by a panic may have left requests in outboxes where their pumps do not see them
        // yet.
        self.lanes.iter_mut().for_each(|lane| lane.outbox.publish());
        for staging in self.staging.iter_mut().flatten() {
            while let Some(proto) = staging.protos.pop() {
                proto.bio.orphan();
            }
            while staging.asks.pop().is_some() {}
        }
        self.abandon().for_each(|rq| rq.into_head().orphan());
        #[cfg(feature = "compare")]
        self.parked.clear();
        self.elevator.take_waiting().into_iter().for_each(|(_, proto)| proto.bio.orphan());
        self.elevator.take_chains().for_each(|chain| chain.head.orphan());
    }
}
