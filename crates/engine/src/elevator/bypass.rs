//! Requests that pass the policy by (decision 0017): they take a slot and nothing else of the elevator.

use super::{Chain, Cx, Elevator, HwQueue, Inflight, IoMeta, Op, PluggedRequest, RequestId, Tag};
use blkmq_sched::{At, Bypass, Pick};

impl Elevator {
    /// May an I/O that comes now take a short way? Not ahead of a request that is held, that waits for a slot by
    /// group, or that is in a flush sequence; and not while requests are traced.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_direct
            && self.held == 0
            && !self.is_traced()
            && self.flushes.is_empty()
            && !self.lobby.is_open()
    }

    /// May all I/Os of a plug pass, or only one that comes alone?
    #[inline]
    pub(crate) fn may_bypass(&self) -> bool {
        self.bypass != Bypass::Never
    }

    /// Gives a slot to an I/O that comes alone, inserts it and asks the policy for it at once.
    #[inline]
    pub(crate) fn ask_at_once(&mut self, io: &PluggedRequest, hw: HwQueue) -> (RequestId, Pick) {
        let id = self.take_slot(&io.meta);
        self.watch_passed(id, io.bios);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.insert(&cx, id, At::Tail);
        let pick = self.policy.pick(&cx, hw);
        (id, pick)
    }

    /// Makes that I/O a token for the device, if the policy has picked it.
    #[inline]
    pub(crate) fn picked_token(
        &self,
        io: PluggedRequest,
        id: RequestId,
        hw: HwQueue,
        tag: Tag,
    ) -> Inflight {
        let PluggedRequest { meta, bio, bios } = io;
        let pool = self.env.picked();
        Inflight::new(Chain { head: bio, bios, retries: 0 }, id, tag, hw, self.now, &meta, pool)
    }

    /// Keeps that I/O as one that is held, if the policy has not picked it.
    #[inline(never)]
    pub(crate) fn keep(&mut self, io: PluggedRequest, id: RequestId) {
        self.env.unpicked();
        let PluggedRequest { meta, bio, bios } = io;
        self.put_chain(id, Chain { head: bio, bios, retries: 0 });
        self.hold(id);
        self.index_held(id, &meta);
    }

    /// May an I/O pass? Not without a slot, nor into a flush sequence.
    #[inline]
    pub(crate) fn lets_pass(&self, meta: &IoMeta) -> bool {
        meta.op != Op::Flush && !meta.flags.intersects(self.sequenced) && self.has_slot_for(meta)
    }

    /// Gives a slot to an I/O that [may pass](Self::lets_pass).
    #[inline]
    pub(crate) fn pass(&mut self, io: &PluggedRequest, hw: HwQueue) -> RequestId {
        let id = self.take_slot(&io.meta);
        if self.notes_passing {
            self.note_passing(id, io.bios, hw);
        }
        id
    }

    /// Out of line: as a rule there is nothing to note.
    #[inline(never)]
    fn note_passing(&mut self, id: RequestId, bios: u32, hw: HwQueue) {
        if self.bypass == Bypass::Told {
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.policy.passed(&cx, id, hw);
        }
        self.watch_passed(id, bios);
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
