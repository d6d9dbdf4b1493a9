//! Early rejection: an I/O that is expected to end after its deadline is refused before it takes anything.

use super::Submitter;
use crate::submission::io::{Io, Refusal};
use blkmq_core::{HwQueue, Instant, Nanos};

impl<P: Send> Submitter<P> {
    /// How long `io` takes if it is pushed now, from its arrival to its end, as far as the queue can say: the work at the
    /// device, the work that the scheduler holds and serves before it, this submitter's plug, and the I/O itself. Zero
    /// while nothing is known; `None` without a forecast ([`Plan::forecast`](crate::Plan::forecast)). O(tags).
    #[must_use]
    pub fn expects(&self, now: Instant, io: &Io<P>) -> Option<Nanos> {
        let prospect = self.shard().prospect.as_ref()?;
        let hub = &self.q.hub;
        // Lanes of owners share their tags.
        let apart = if hub.has_owners() { 1 } else { usize::MAX };
        let hws = self.shard().hws().take(apart);
        let tags = hws.map(|hw| hub.hctx(HwQueue(hw)).tags.in_use()).sum();
        let (expected, own) = prospect.expects((now, tags), io.group.index(), io.op, io.sectors);
        Some(Nanos(expected.0.saturating_add(own.0.saturating_mul(self.plug.len() as u64))))
    }

    /// Is `io` to be taken, as far as its deadline goes?
    pub(super) fn check_deadline(&mut self, now: Instant, io: &Io<P>) -> Result<(), Refusal> {
        self.catch_up();
        let Some(expected) = self.expects(now, io) else { return Err(Refusal::NoForecast) };
        if io.deadline.rejects() && expected > io.deadline.within() {
            self.tally.refused_late.add(1);
            return Err(Refusal::Late { expected });
        }
        Ok(())
    }
}
