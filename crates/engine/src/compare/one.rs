//! Dispatch as it was: one request for each hold of the lock (`spec/framework.md` section 8).

use super::By;
use crate::Inflight;
use crate::dispatch::engine::Engine;
use crate::shared::shard::Shard;
use blkmq_core::HwQueue;

impl<P: Send> Engine<P> {
    /// Takes a budget, then a driver tag, then a request for them, if there is one.
    pub(super) fn collect_one(&self, shard: &Shard, by: By, hw: HwQueue) -> Option<Inflight> {
        let budget = !self.hub.budget.is_limited() || self.hub.budget.take(1) == 1 || {
            self.hub.budget_wait.set(shard.index);
            self.hub.budget.take(1) == 1
        };
        if !budget {
            return None;
        }
        let Some(tag) = self.tag(shard, by, hw) else {
            self.put_back(hw, 1, None);
            return None;
        };
        let Some(mut runner) = self.enter(shard, by) else {
            self.put_back(hw, 1, Some(tag));
            return None;
        };
        runner.take_over(&self.hub, shard);
        let picked = self.pick(shard, &mut runner, hw, tag);
        if picked.is_some() {
            runner.elevator.counters.batches.add(1);
            runner.elevator.counters.dispatched.add(1);
        }
        self.leave(shard, runner);
        if picked.is_none() {
            self.put_back(hw, 1, Some(tag));
        }
        picked
    }
}
