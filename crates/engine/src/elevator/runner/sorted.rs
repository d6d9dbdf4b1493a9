//! The short way of requests that come together, for a policy that can say at once in which order they leave
//! (decision 0017): they are inserted and picked in one call, and never held. They come in the caller's plug, or another
//! submitter has staged them.

use super::Runner;
use super::admission::{PASS_STAGED, ring_of};
use super::exit::{Exit, Places, Portion};
use crate::dispatch::ready::Ready;
use crate::shared::hub::Hub;
use crate::submission::plug::Plug;
use blkmq_core::{HwQueue, SubmitterId};

impl Runner {
    /// Sends the caller's plug in the policy's order, all of it or nothing. The caller has seen that nothing waits.
    #[inline(never)]
    pub(super) fn pass_sorted<P>(&mut self, hub: &Hub<P>, plug: &mut Plug, ready: &mut Ready) {
        let Some(first) = plug.newest() else { return };
        let by = self.lane_of(hub, hub.lasting.table.submitter(&first.bio));
        let hw = HwQueue(self.first_hw);
        let Self { elevator, lanes, unused, duties, .. } = self;
        let mut exit = Exit { elevator, lanes, unused, duties, hub, hw, by };
        let mut places = Places::new();
        if let Some(tags) = exit.ask(plug.requests().iter(), &mut places) {
            exit.send(plug, &places, tags, ready);
        }
    }

    /// The same for a portion of what `id` has staged, from the oldest on. True if it was sent.
    #[inline(never)]
    pub(super) fn pass_staged_sorted<P>(
        &mut self,
        hub: &Hub<P>,
        id: SubmitterId,
        ready: &mut Ready,
    ) -> bool {
        let (by, hw) = (self.lane_of(hub, id), HwQueue(self.first_hw));
        let Self { elevator, lanes, unused, duties, staging, tray, .. } = self;
        let mut portion = Portion::of(ring_of(staging, id), PASS_STAGED);
        let mut exit = Exit { elevator, lanes, unused, duties, hub, hw, by };
        let mut places = Places::new();
        let Some(tags) = exit.ask(portion.all(), &mut places) else { return false };
        while portion.left() > 0 {
            tray.append(portion.take_whole());
        }
        exit.send(tray, &places, tags, ready);
        true
    }
}
