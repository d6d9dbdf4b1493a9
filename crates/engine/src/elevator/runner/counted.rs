//! The short ways of a plug (`bypass.rs`, `sorted.rs`) where groups have latency goals: while nothing is taken for those,
//! and no I/O waits, requests pass as they do without goals. Each takes a budget, so that the controller may lower what
//! the device holds at any time.

use super::Runner;
use super::bypass::Sent;
use crate::dispatch::ready::Ready;
use crate::shared::hub::Hub;
use crate::shared::shard::Shard;
use crate::submission::plug::Plug;
use blkmq_core::{Instant, SubmitterId};

impl Runner {
    /// Takes in the caller's plug where I/Os that find no slot wait in the lobby: by a short way as far as there is one.
    pub(super) fn take_plug<P>(
        &mut self,
        hub: &Hub<P>,
        by: SubmitterId,
        plug: &mut Plug,
        ready: &mut Ready,
    ) {
        let is_open = self.elevator.is_open_to_counted() && self.is_device_free(hub);
        if is_open && self.take_budgets(hub, plug.len() as u32) {
            self.pass_counted(hub, by, plug, ready);
            return;
        }
        for proto in plug.drain() {
            self.elevator.take_in(&hub.lasting.table, by, proto);
        }
    }

    /// The short way of a plug that has a budget for each request.
    fn pass_counted<P>(
        &mut self,
        hub: &Hub<P>,
        by: SubmitterId,
        plug: &mut Plug,
        ready: &mut Ready,
    ) {
        if self.elevator.picks_plugs() && plug.len() > 1 {
            self.pass_sorted(hub, plug, ready);
            if plug.is_empty() {
                return;
            }
        }
        let mut rest = plug.drain();
        self.pass_first(hub, &mut rest, ready);
        // A policy may have kept a request that came alone.
        let unused = rest.len() as u32 + u32::from(self.asked_alone);
        if unused > 0 {
            hub.put_budget(unused, &mut self.duties);
        }
        for proto in &mut rest {
            self.elevator.take_in(&hub.lasting.table, by, proto);
        }
        rest.end();
    }

    /// Makes a straight pass with a budget; see [`pass_straight`](Self::pass_straight).
    #[inline(never)]
    pub(super) fn straight_counted<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        now: Instant,
        plug: &mut Plug,
    ) -> Option<Sent> {
        let is_quiet = self.is_device_free(hub) && self.has_nothing_due(hub, shard);
        if !is_quiet || !self.take_budgets(hub, 1) {
            return None;
        }
        let sent = self.straight(hub, now, plug);
        if sent != Some(Sent::One) {
            hub.put_budget(1, &mut self.duties);
        }
        sent
    }

    /// Takes `all` budgets, or none: what is missing is waited for in the ordinary way.
    #[inline]
    fn take_budgets<P>(&mut self, hub: &Hub<P>, all: u32) -> bool {
        let got = hub.budget.take(all);
        if got < all && got > 0 {
            hub.put_budget(got, &mut self.duties);
        }
        got == all
    }
}
