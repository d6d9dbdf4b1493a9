//! The short way of a whole plug into the outbox, for a policy that can say at once in which order its requests leave
//! (decision 0017): they are inserted and picked in one call, and never held.

use super::Runner;
use crate::dispatch::ready::Ready;
use crate::shared::hub::Hub;
use crate::submission::plug::Plug;
use blkmq_core::{HwQueue, RequestId};
use blkmq_sched::PLUG;

impl Runner {
    /// Sends the caller's plug in the policy's order, all of it or nothing. The caller has seen that nothing waits.
    #[inline(never)]
    pub(super) fn pass_sorted<P>(&mut self, hub: &Hub<P>, plug: &mut Plug, ready: &mut Ready) {
        let hw = HwQueue(self.first_hw);
        let hctx = hub.hctx(hw);
        let Self { elevator, lanes, unused, duties, .. } = self;
        let lane = &mut lanes[0];
        let n = plug.len();
        if n > PLUG || !elevator.lets_all_pass(plug.requests()) {
            return;
        }
        let Some(mut tags) = hctx.tags.get_batch(&mut lane.hint, n as u32) else { return };
        let mut ids = [RequestId::new(0, 0); PLUG];
        let mut order = [0; PLUG];
        let (ids, order) = (&mut ids[..n], &mut order[..n]);
        if tags.len() < n as u32 || !elevator.insert_and_pick_all(plug.requests(), hw, ids, order) {
            while let Some(tag) = tags.pop() {
                unused.push(tag);
            }
            hctx.tags.put(unused, &hub.tag_wait, duties);
            unused.clear();
            return;
        }
        let pool = elevator.env.picked();
        plug.rearrange(order);
        let mut plug = plug.drain();
        for at in order {
            let (Some(tag), Some(io)) = (tags.pop(), plug.next()) else { break };
            // An outbox has room for a request with every tag.
            lane.outbox.put_with(|| elevator.token_of(io, ids[usize::from(*at)], hw, tag, pool));
        }
        plug.end();
        lane.outbox.publish();
        elevator.counters.inserted.add(n as u64);
        elevator.counters.dispatched.add(n as u64);
        elevator.counters.batches.add(1);
        ready.add(hw);
    }
}
