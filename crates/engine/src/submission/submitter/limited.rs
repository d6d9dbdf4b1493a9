//! How a submitter obeys the limits of groups, where there are any (`throttle.rs`).

use super::Submitter;
use crate::submission::plugged::PluggedRequest;
use blkmq_core::Instant;

impl<P: Send> Submitter<P> {
    /// Plugs or holds back a bio while a group has limits, or while an I/O waits because a group had.
    #[cold]
    pub(super) fn enqueue_metered(&mut self, now: Instant, proto: PluggedRequest) {
        let meters = &self.q.hub.lasting.meters;
        let io = &proto.meta;
        let waits = self.throttle.waits(io.group, io.op) || meters.limit(io);
        let free = if waits { self.throttle.hold(now, meters, proto) } else { Some(proto) };
        match free {
            Some(PluggedRequest { meta, bio, .. }) => self.plug(now, meta, bio),
            None => self.tally.throttled.add(1),
        }
    }

    /// Plugs the I/Os that the limits of their groups, as they are by now, allow.
    #[cold]
    pub(super) fn let_go(&mut self, now: Instant) {
        self.throttle.revise(now, &self.q.hub.lasting.meters);
        while let Some(PluggedRequest { meta, bio, .. }) =
            self.throttle.next_due(now, &self.q.hub.lasting.meters)
        {
            self.plug(now, meta, bio);
        }
    }
}
