//! Merging: which held request an I/O joins, and how two held requests that meet are fused (`merge.rs` has the
//! rules).

use super::{Cx, Elevator, Grown, IoMeta, Kind, NoMerges, Op, PluggedRequest, RequestId};
use crate::BioTable;
use crate::elevator::merge::{self, Fit};

impl Elevator {
    /// Merges a bio into a held request if it can, and takes it out of `bio` then. O(1) look-ups.
    #[cfg(feature = "compare")]
    pub(crate) fn merge<P>(&mut self, table: &BioTable<P>, bio: &mut Option<PluggedRequest>) {
        if let Some((into, kind)) = bio.as_ref().and_then(|proto| self.merge_target(&proto.meta))
            && let Some(proto) = bio.take()
        {
            self.join(table, into, kind, proto);
        }
    }

    #[inline]
    pub(super) fn merge_target(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        if self.held == 0 || self.config.nomerges == NoMerges::None || !merge::mergeable(io) {
            return None;
        }
        self.find(io)
    }

    /// The request that `io` should join: the one in the one-hit cache, else one that ends where `io` starts, else
    /// one that starts where `io` ends.
    #[inline]
    fn find(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        if let Some(last) = self.last_merge
            && merge::could_join(self.requests.get(last), io)
            && let Some(kind) = self.fits(last, io)
        {
            return Some((last, kind));
        }
        if self.config.nomerges == NoMerges::Simple || !self.index.may_touch(io.sector, io.end()) {
            return None;
        }
        self.find_indexed(io)
    }

    #[inline(never)]
    fn find_indexed(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        if let Some(hit) = self.ending_at(io) {
            return Some(hit);
        }
        if !self.facts.front_merges {
            return None;
        }
        let id = self.index.starting_at(io.end()).find(|id| self.alike(*id, io))?;
        self.fits(id, io).map(|kind| (id, kind))
    }

    /// A request that ends where `io` starts and has room for it.
    fn ending_at(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        loop {
            let id = self.index.ending_at(io.sector).find(|id| self.alike(*id, io))?;
            match self.fits(id, io) {
                Some(kind) => return Some((id, kind)),
                // That request was full and has left the index; there may be another.
                None if !self.index.contains(id) => {}
                None => return None,
            }
        }
    }

    fn alike(&self, id: RequestId, io: &IoMeta) -> bool {
        !matches!(self.fit(self.requests.get(id), io), Fit::No)
    }

    /// As [`merge::fit`], within the length to which requests are shortened for latency goals.
    fn fit(&self, rq: &IoMeta, io: &IoMeta) -> Fit {
        let fit = merge::fit(&self.config.limits, rq, io);
        if rq.sectors.saturating_add(io.sectors) > self.longest {
            self.fit_short(rq, fit)
        } else {
            fit
        }
    }

    #[cold]
    fn fit_short(&self, rq: &IoMeta, fit: Fit) -> Fit {
        let is_short = matches!(rq.op, Op::Read | Op::Write) && self.shortens(rq.group);
        if is_short { Fit::No } else { fit }
    }

    /// Do geometry, limits and policy agree that `io` joins `id`? A full request leaves the index for good.
    fn fits(&mut self, id: RequestId, io: &IoMeta) -> Option<Kind> {
        match self.fit(self.requests.get(id), io) {
            Fit::Merge(kind) => {
                let cx = Cx::new(self.now, &self.requests, &self.env);
                self.policy.may_merge(&cx, id, io).then_some(kind)
            }
            Fit::Full => {
                self.unindex(id);
                None
            }
            Fit::No => None,
        }
    }

    pub(super) fn join<P>(
        &mut self,
        table: &BioTable<P>,
        into: RequestId,
        kind: Kind,
        proto: PluggedRequest,
    ) {
        self.count_merged(&proto.meta);
        self.watch_joined(table, &proto, kind);
        let old = *self.requests.get(into);
        *self.requests.get_mut(into) = merge::joined(&old, &proto.meta, kind);
        let chain = self.chains[into.index()].as_mut().expect("a held request has its bios");
        chain.bios += proto.bios;
        if kind == Kind::Front {
            let behind = std::mem::replace(&mut chain.head, proto.bio);
            table.append(&mut chain.head, behind);
        } else {
            table.append(&mut chain.head, proto.bio);
        }
        self.rekey(into);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        let edge = match kind {
            Kind::Back => Grown::Back,
            Kind::Front => Grown::Front { old_sector: old.sector },
            Kind::Discard => Grown::Discard,
        };
        self.policy.grown(&cx, into, edge);
        self.last_merge = Some(into);
        match kind {
            Kind::Back => {
                self.counters.back.add(1);
                self.absorb_next(table, into);
            }
            Kind::Front => {
                self.counters.front.add(1);
                self.absorb_into_former(table, into);
            }
            Kind::Discard => self.counters.discard.add(1),
        }
    }

    fn rekey(&mut self, id: RequestId) {
        if self.index.remove(id) {
            let meta = self.requests.get(id);
            self.index.insert(id, meta.sector, meta.end());
        }
    }

    /// Called when `id` has grown at its end: fuses the request that starts there into it.
    fn absorb_next<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let meta = *self.requests.get(id);
        let next = self
            .index
            .starting_at(meta.end())
            .find(|n| *n != id && self.alike(id, self.requests.get(*n)));
        if let Some(next) = next {
            self.absorb(table, id, next);
        }
    }

    /// Called when `id` has grown at its start: fuses it into the request that ends there.
    fn absorb_into_former<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let meta = *self.requests.get(id);
        let former = self.index.ending_at(meta.sector).find(|f| *f != id && self.alike(*f, &meta));
        if let Some(former) = former {
            self.absorb(table, former, id);
        }
    }

    fn absorb<P>(&mut self, table: &BioTable<P>, into: RequestId, gone: RequestId) {
        let other = *self.requests.get(gone);
        let fit = self.fit(self.requests.get(into), &other);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        if fit != Fit::Merge(Kind::Back) || !self.policy.may_merge(&cx, into, &other) {
            return;
        }
        let merged = merge::joined(self.requests.get(into), &other, Kind::Back);
        *self.requests.get_mut(into) = merged;
        let tail = self.chains[gone.index()].take().expect("a held request has its bios");
        let chain = self.chains[into.index()].as_mut().expect("a held request has its bios");
        chain.bios += tail.bios;
        table.append(&mut chain.head, tail.head);
        self.unindex(gone);
        self.rekey(into);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.absorbed(&cx, into, gone);
        self.last_merge = Some(into);
        self.counters.request.add(1);
        self.count_merged(&other);
        self.watch_fused(gone, &other);
        self.release(gone);
        self.free_slot(gone);
    }

    #[inline]
    pub(super) fn unindex(&mut self, id: RequestId) {
        self.index.remove(id);
        if self.last_merge == Some(id) {
            self.last_merge = None;
        }
    }
}
