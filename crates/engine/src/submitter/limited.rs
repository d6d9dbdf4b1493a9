//! What a submitter does about the limits of groups, where there are any (`throttle.rs`).

use super::Submitter;
use crate::elevator::Proto;
use blkmq_core::Instant;

impl<P: Send> Submitter<P> {
    /// Some group has limits, or something waits because one had.
    #[cold]
    pub(super) fn enqueue_metered(&mut self, now: Instant, proto: Proto) {
        let meters = &self.q.lasting.meters;
        let waits = self.throttle.waits(proto.meta.group) || meters.limit(&proto.meta);
        let free = if waits { self.throttle.hold(now, meters, proto) } else { Some(proto) };
        match free {
            Some(Proto { meta, bio, .. }) => self.plug(now, meta, bio),
            None => self.tally.throttled.add(1),
        }
    }

    /// What its group's limits held back goes on its way, as far as they allow by now.
    #[cold]
    pub(super) fn let_go(&mut self, now: Instant) {
        while let Some(Proto { meta, bio, .. }) =
            self.throttle.next_due(now, &self.q.lasting.meters)
        {
            self.plug(now, meta, bio);
        }
    }
}
