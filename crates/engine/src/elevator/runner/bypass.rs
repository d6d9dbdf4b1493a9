//! The short way of a plug: past a policy that only keeps the order, and straight into the outbox (decision 0016).

use super::{Runner, TAG_BATCH};
use crate::dispatch::ready::Ready;
use crate::shared::hub::Hub;
use crate::submission::plug::Emptied;
use blkmq_core::HwQueue;

impl Runner {
    /// Sends the first requests of the caller's plug to the device, as far as they need not wait: no request waits
    /// ahead of them, and there are slots, tags and a device that takes them.
    #[inline]
    pub(super) fn pass_by<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        if self.elevator.is_open() && self.blocked.is_empty() && !hub.budget.is_limited() {
            self.pass_all(hub, plug, ready);
        }
    }

    fn pass_all<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        let hw = HwQueue(self.first_hw);
        let hctx = hub.hctx(hw);
        if hctx.is_stuck() || hctx.busy().get() != 0 {
            return;
        }
        let Self { elevator, lanes, unused, duties, .. } = self;
        let lane = &mut lanes[0];
        let mut sent = 0;
        while plug.peek().is_some_and(|io| elevator.lets_pass(&io.meta)) {
            let want = (plug.len() as u32).min(TAG_BATCH);
            let Some(mut tags) = hctx.tags.get_batch(&mut lane.hint, want) else { break };
            sent += tags.len();
            while let Some(tag) = tags.pop() {
                let first = plug.peek().filter(|io| elevator.lets_pass(&io.meta));
                let id = first.map(|io| elevator.pass(&io.meta, hw));
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
