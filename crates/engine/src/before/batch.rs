//! Dispatch as it was proposed in 2025: many requests for each hold of the lock (`spec/framework.md` section 15).
//!
//! *What each hold takes stays together and in order; the batches of two threads may still change places*, because
//! they are issued after the lock. Budgets are taken first, so that no more than the device takes leaves the elevator,
//! and what is not needed of them goes back after the lock. Each request has its driver tag before it is picked;
//! the kernel picks first and keeps the one for which there is none.

use super::{By, List};
use crate::shared::{Shard, Shared};
use blkmq_core::HwQueue;

/// Budgets taken for one hold.
const BUDGETS: u32 = 8;

impl<P: Send> Shared<P> {
    /// Adds to `list` what one hold of the lock yields.
    pub(super) fn collect_batch(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) {
        let budgets = self.budgets_for_batch(shard);
        if budgets == 0 {
            return;
        }
        let Some(mut runner) = self.enter(shard, by) else {
            self.put_back(hw, budgets, None);
            return;
        };
        runner.take_over(self, shard);
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

    /// How many requests a hold may take: `nr_requests`, or as many budgets as there are.
    fn budgets_for_batch(&self, shard: &Shard) -> u32 {
        if !self.budget.is_limited() {
            return self.nr_requests;
        }
        match self.budget.take(BUDGETS) {
            0 => {
                self.budget_wait.set(shard.index);
                self.budget.take(BUDGETS)
            }
            got => got,
        }
    }
}
