//! The short ways of a plug into the outbox (decision 0017): past a policy that only keeps the order; and, for a request
//! that comes alone to a policy that holds none, in and out at once.

use super::{Runner, TAG_BATCH};
use crate::dispatch::ready::Ready;
use crate::shared::hub::Hub;
use crate::submission::plug::Emptied;
use blkmq_core::HwQueue;
use blkmq_sched::Pick;

impl Runner {
    /// Sends the first requests of the caller's plug to the device, as far as they need not wait: no request waits
    /// ahead of them, and there are slots, tags and a device that takes them.
    #[inline]
    pub(super) fn pass_by<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        if !self.elevator.is_open() || !self.blocked.is_empty() || hub.budget.is_limited() {
            return;
        }
        let hctx = hub.hctx(HwQueue(self.first_hw));
        if hctx.is_stuck() || hctx.busy().get() != 0 {
            return;
        }
        if self.elevator.may_bypass() {
            self.pass_all(hub, plug, ready);
        } else if plug.len() == 1 {
            self.pass_alone(hub, plug, ready);
        }
    }

    /// Inserts the only request of a plug, and asks the policy for it at once. If the policy keeps it, it is held like
    /// any other, and the policy is not asked again in this pass.
    fn pass_alone<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        let hw = HwQueue(self.first_hw);
        let hctx = hub.hctx(hw);
        let Self { elevator, lanes, .. } = self;
        let lane = &mut lanes[0];
        let first = plug.peek().filter(|io| elevator.lets_pass(&io.meta));
        let Some(first) = first else { return };
        let tags = hctx.tags.get_batch(&mut lane.hint, 1);
        let Some(tag) = tags.and_then(|mut tags| tags.pop()) else { return };
        let (id, pick) = elevator.ask_at_once(first, hw);
        let Some(io) = plug.next() else { return };
        elevator.counters.inserted.add(1);
        if let Pick::Issue(picked) = pick {
            assert!(picked == id, "a policy that held none picked {picked:?} and not {id:?}");
            lane.outbox.put_with(|| elevator.picked_token(io, id, hw, tag));
            lane.outbox.publish();
            elevator.counters.dispatched.add(1);
            elevator.counters.batches.add(1);
            ready.add(hw);
            return;
        }
        elevator.keep(io, id);
        self.unused.push(tag);
        self.give_back(hub, hctx, 0);
        self.wait_as_told(hub, pick);
        self.asked_alone = true;
    }

    fn pass_all<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        let hw = HwQueue(self.first_hw);
        let hctx = hub.hctx(hw);
        let Self { elevator, lanes, unused, duties, .. } = self;
        let lane = &mut lanes[0];
        let mut sent = 0;
        while plug.peek().is_some_and(|io| elevator.lets_pass(&io.meta)) {
            let want = (plug.len() as u32).min(TAG_BATCH);
            let Some(mut tags) = hctx.tags.get_batch(&mut lane.hint, want) else { break };
            sent += tags.len();
            while let Some(tag) = tags.pop() {
                let first = plug.peek().filter(|io| elevator.lets_pass(&io.meta));
                let id = first.map(|io| elevator.pass(io, hw));
                match id.zip(plug.next_if(|_| id.is_some())) {
                    // An outbox has room for a request with every tag.
                    Some((id, io)) => lane.outbox.put_with(|| elevator.token(io, id, hw, tag)),
                    None => unused.push(tag),
                }
            }
            if !unused.is_empty() {
                sent -= unused.len() as u32;
                hctx.tags.put(unused, &hub.tag_wait, duties);
                unused.clear();
            }
        }
        if sent > 0 {
            lane.outbox.publish();
            elevator.counters.inserted.add(sent.into());
            elevator.counters.dispatched.add(sent.into());
            elevator.counters.batches.add(1);
            ready.add(hw);
        }
    }
}
