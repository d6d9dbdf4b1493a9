//! The second half of a pass: requests leave the elevator for the outboxes, in the order of the policy, as far as
//! tags, budgets and the quota allow.

use super::{Runner, TAG_BATCH};
use crate::dispatch::ready::Ready;
use crate::shared::hctx::Hctx;
use crate::shared::hub::Hub;
use crate::shared::shard::Shard;
use blkmq_core::HwQueue;
use blkmq_sched::Pick;

/// The most requests that one pass hands to one hardware queue: a pass is bounded (decision 0002). More than passes of
/// many submitters admit: what one leaves is ahead of all that comes later, which then may take no short way.
const PASS_REQUESTS: u32 = 256;
/// Budgets taken at a time (`spec/framework.md` section 15).
const BUDGET_BATCH: u32 = 8;

impl Runner {
    pub(super) fn dispatch_all<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        home: HwQueue,
        ready: &mut Ready,
    ) {
        if hub.has_owners() {
            self.dispatch_to_owners(hub, shard, home, ready);
            return;
        }
        let lanes = self.lanes.len();
        let first = usize::from(home.0 - self.first_hw);
        for step in 0..lanes {
            if self.elevator.held() == 0 {
                break;
            }
            let at = (first + step) % lanes;
            let hw = HwQueue(self.first_hw + at as u16);
            self.dispatch(hub, shard, hw, ready);
        }
    }

    /// As [`dispatch_all`](Self::dispatch_all), where each submitter has a lane: the policy is asked once for all of them,
    /// and a request leaves by the lane of its submitter.
    fn dispatch_to_owners<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        home: HwQueue,
        ready: &mut Ready,
    ) {
        if self.elevator.held() > 0 {
            self.dispatch(hub, shard, home, ready);
        }
    }

    /// Asks the policy for requests for `hw` until the policy, tags, budgets or the quota end it. The lanes that got some
    /// are added to `ready`.
    fn dispatch<P>(&mut self, hub: &Hub<P>, shard: &Shard, hw: HwQueue, ready: &mut Ready) {
        let hctx = &hub.hctxs[usize::from(hw.0)];
        if hctx.is_stuck() {
            // Requests that stay in the elevator can still merge. The pump kicks when the device takes requests
            // again.
            hctx.restart.mark();
            if hctx.is_stuck() {
                self.elevator.is_short();
                return;
            }
        }
        let quota = if hctx.busy().get() == 0 { PASS_REQUESTS } else { 1 };
        let mut sent = 0;
        while sent < quota && self.elevator.held() > 0 {
            let want = (quota - sent).min(self.elevator.held()).min(TAG_BATCH);
            let (got, more) = self.dispatch_batch(hub, shard, hw, want, ready);
            sent += got;
            if !more {
                break;
            }
        }
        if sent == 0 {
            return;
        }
        self.publish_outboxes(shard, *ready);
        if sent >= quota && self.elevator.held() > 0 {
            // The quota serves fairness or back-pressure, and more requests are ready: the pump kicks again.
            hctx.restart.mark();
        }
        self.elevator.counters.batches.add(1);
        self.elevator.counters.dispatched.add(sent.into());
    }

    /// Takes budgets, then tags, then picks requests; gives back the budgets and tags that it could not use. Returns
    /// how many requests it sent, and whether another call may send more.
    fn dispatch_batch<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        hw: HwQueue,
        want: u32,
        ready: &mut Ready,
    ) -> (u32, bool) {
        let hctx = &hub.hctxs[usize::from(hw.0)];
        let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
        let (mut want, mut budget) = (want, 0);
        if self.elevator.takes_budgets() {
            budget = hub.take_budget(shard, want.min(BUDGET_BATCH));
            if budget == 0 {
                self.elevator.is_short();
                return (0, false);
            }
            want = budget;
        }
        let mut tags = hctx.tags.get_batch(&mut lane.hint, want);
        if tags.is_none() {
            hctx.restart.mark();
            hctx.tags.wait(shard.index, &hub.tag_wait, self.elevator.now());
            tags = hctx.tags.get_batch(&mut lane.hint, want);
        }
        let Some(mut tags) = tags else {
            self.elevator.is_short();
            self.give_back(hub, hctx, budget);
            return (0, false);
        };
        self.elevator.is_supplied();
        let (mut sent, mut more) = (0, true);
        while let Some(tag) = tags.pop() {
            match self.elevator.pick(hw) {
                Pick::Issue(id) => {
                    let by = if hub.has_owners() {
                        HwQueue(self.elevator.submitter_of(&hub.lasting.table, id).0)
                    } else {
                        hw
                    };
                    let lane = &mut self.lanes[usize::from(by.0 - self.first_hw)];
                    // An outbox has room for a request with every tag.
                    lane.outbox.put_with(|| self.elevator.issue(id, by, tag));
                    ready.add(by);
                    sent += 1;
                    continue;
                }
                waits => self.wait_as_told(hub, shard, waits),
            }
            more = false;
            self.unused.push(tag);
            break;
        }
        while let Some(tag) = tags.pop() {
            self.unused.push(tag);
        }
        let unused = if budget > 0 { budget - sent } else { 0 };
        self.give_back(hub, hctx, unused);
        (sent, more)
    }

    /// Shows the pumps of `ready` what is in their outboxes.
    #[inline]
    fn publish_outboxes(&mut self, shard: &Shard, ready: Ready) {
        for lane in ready.iter(shard.hws()) {
            self.lanes[usize::from(lane.0 - self.first_hw)].outbox.publish();
        }
    }

    /// Sees to it that the policy is asked again when its answer says so.
    pub(super) fn wait_as_told<P>(&mut self, hub: &Hub<P>, shard: &Shard, pick: Pick) {
        match pick {
            Pick::WaitUntil(at) => {
                self.duties.arm(at);
                self.wait_for_completion(hub, shard);
            }
            Pick::WaitCompletion => self.wait_for_completion(hub, shard),
            // The thread that gives a token back kicks the elevators that were refused one.
            Pick::WaitToken | Pick::Empty | Pick::Issue(_) => {}
        }
    }

    /// Gives back budgets and the tags in `unused`. Elevators that wait for them are to be kicked.
    pub(super) fn give_back<P>(&mut self, hub: &Hub<P>, hctx: &Hctx, budget: u32) {
        if budget > 0 {
            hub.put_budget(budget, &mut self.duties);
        }
        if !self.unused.is_empty() {
            hctx.tags.put(&self.unused, &hub.tag_wait, &mut self.duties);
            self.unused.clear();
        }
    }
}
