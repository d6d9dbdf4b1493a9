//! Requests that pass the policy by (decision 0016): they take a slot and nothing else of the elevator.

use super::{Chain, Cx, Elevator, HwQueue, Inflight, IoMeta, Op, PluggedRequest, RequestId, Tag};
use blkmq_sched::Bypass;

impl Elevator {
    /// May an I/O that comes now pass the policy by? Not ahead of a request that is held, that waits for a slot by
    /// group, or that is in a flush sequence.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.bypass != Bypass::Never
            && self.held == 0
            && self.flushes.is_empty()
            && !self.lobby.is_open()
    }

    /// May an I/O pass? Not without a slot, nor into a flush sequence.
    #[inline]
    pub(crate) fn lets_pass(&self, meta: &IoMeta) -> bool {
        meta.op != Op::Flush && !meta.flags.intersects(self.sequenced) && self.has_slot_for(meta)
    }

    /// Gives a slot to an I/O that [may pass](Self::lets_pass).
    #[inline]
    pub(crate) fn pass(&mut self, meta: &IoMeta, hw: HwQueue) -> RequestId {
        let id = self.take_slot(meta);
        if self.bypass == Bypass::Told {
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.policy.passed(&cx, id, hw);
        }
        id
    }

    /// Makes that I/O a token for the device.
    #[inline]
    pub(crate) fn token(
        &self,
        io: PluggedRequest,
        id: RequestId,
        hw: HwQueue,
        tag: Tag,
    ) -> Inflight {
        let PluggedRequest { meta, bio, bios } = io;
        Inflight::new(Chain { head: bio, bios, retries: 0 }, id, tag, hw, self.now, &meta, None)
    }
}
