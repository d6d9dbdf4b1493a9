//! Dispatch under a lock: one request per hold, as in the kernel, or many per hold, as proposed in 2025
//! (`spec/framework.md` section 15).
//!
//! *The requests of one hold stay together and in order; the batches of two threads may still change places*, because
//! they are issued after the lock is released. Budgets are taken first, so that no more requests leave the elevator
//! than the device takes; unused budgets are returned after the lock is released. Each request has its driver tag
//! before it is picked. The kernel picks first, and keeps a request for which there is no tag.

use super::locked::{List, Locked};
use crate::dispatch::engine::By;
use crate::elevator::runner::Runner;
use crate::planted::{self, Planted, Stop};
use crate::shared::hub::Shard;
use crate::sync::{LockGuard, Ordering, fence};
use blkmq_core::{HwQueue, Tag};

/// The most budgets taken for one hold.
const BUDGETS: u32 = 8;

impl<P: Send> Locked<'_, P> {
    /// Adds the requests that one hold of the lock yields to `list`. Returns whether another hold may yield more.
    pub(crate) fn collect_batch(
        &self,
        shard: &Shard,
        by: By,
        hw: HwQueue,
        list: &mut List,
    ) -> bool {
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
    /// Takes a budget, then a driver tag, then adds a request for them to `list`, if the policy has one. Returns
    /// whether another call may add one.
    pub(crate) fn collect_one(&self, shard: &Shard, by: By, hw: HwQueue, list: &mut List) -> bool {
        let budget = !self.hub.budget.is_limited() || self.hub.budget.take(1) == 1 || {
            self.hub.budget_wait.set(shard.index);
            self.hub.budget.take(1) == 1
        };
        if !budget {
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
