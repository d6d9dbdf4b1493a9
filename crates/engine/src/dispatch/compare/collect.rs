//! Dispatch under a lock: one request for each hold, as in the kernel, or many for each hold, as it was proposed in 2025
//! (`spec/framework.md` section 15).
//!
//! *The requests of one hold stay together and in order; the batches of two threads may still change places*, because
//! they are issued after the lock is released. Budgets are taken first, so that no more requests leave the elevator
//! than the device takes, and unused budgets are returned after the lock. Each request has its driver tag before it
//! is picked; the kernel picks first and keeps a request for which there is no tag.

use super::locked::{List, Locked};
use crate::Inflight;
use crate::dispatch::engine::By;
use crate::shared::hub::Shard;
use blkmq_core::HwQueue;

/// Budgets taken for one hold.
const BUDGETS: u32 = 8;

impl<P: Send> Locked<'_, P> {
    /// Adds the requests that one hold of the lock yields to `list`.
    pub(crate) fn collect_batch(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) {
        let budgets = self.budgets_for_batch(shard);
        if budgets == 0 {
            return;
        }
        let Some(mut runner) = self.enter(shard, by) else {
            self.put_back(hw, budgets, None);
            return;
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
        self.leave(shard, runner);
        self.put_back(hw, budgets - taken, unused);
    }

    /// The requests that one hold may take: `nr_requests`, or as many as there are budgets.
    fn budgets_for_batch(&self, shard: &Shard) -> u32 {
        if !self.hub.budget.is_limited() {
            return self.hub.nr_requests;
        }
        match self.hub.budget.take(BUDGETS) {
            0 => {
                self.hub.budget_wait.set(shard.index);
                self.hub.budget.take(BUDGETS)
            }
            got => got,
        }
    }
}

impl<P: Send> Locked<'_, P> {
    /// Takes a budget, then a driver tag, then a request for them, if there is one.
    pub(crate) fn collect_one(&self, shard: &Shard, by: By, hw: HwQueue) -> Option<Inflight> {
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
