//! The way of an I/O into an elevator: it merges in its submitter's [`Plug`], the private batch that no other thread
//! sees (`spec/framework.md` section 5); in the elevator it merges, waits for a slot, or goes through a flush sequence.
//!
//! Merging decides which held request an I/O joins, and how two held requests that meet are fused (`merge.rs` has the
//! rules). I/Os wait for a slot by group as the [`Lobby`](crate::elevator::lobby::Lobby) decides.
//!
//! Flush sequences follow the decisions of [`FlushQueues`](crate::elevator::flush::FlushQueues) (`spec/framework.md`
//! section 12). A request in a sequence keeps its slot from the first step to the last. A flush has no slot and no bio
//! of its own: it is issued in the name of the first request that it serves, takes a driver tag as every request does,
//! and leaves ahead of the requests that the policy holds. Data goes to the policy like any other request: to the tail,
//! or to the head if it has waited for a flush already. A request in a sequence never merges.

use super::{Elevator, Grown};
use crate::elevator::flush::{Next, Sequence};
use crate::elevator::lobby::{Slots, Turn};
use crate::elevator::merge::{Fit, Kind};
use crate::elevator::{At, Chain, Done, HwQueue, Inflight, Instant, Place, Tag, merge};
use crate::shared::hctx::{Handback, PluggedRequest, Verdict, Way};
use crate::shared::hub::{Ask, Shard};
use crate::shared::slots::Bio;
use crate::sync::{Consumer, Producer};
use crate::{BioTable, NoMerges};
use blkmq_core::{IoFlags, IoMeta, IoResult, Limits, Op, RequestId, SubmitterId};
use blkmq_sched::GroupChange;

impl Elevator {
    /// Merges `bio` into a held request if possible, and leaves `None` then. O(1) look-ups.
    pub(crate) fn merge<P>(&mut self, table: &BioTable<P>, bio: &mut Option<PluggedRequest>) {
        if let Some((into, kind)) = bio.as_ref().and_then(|proto| self.merge_target(&proto.meta))
            && let Some(proto) = bio.take()
        {
            self.join(table, into, kind, proto);
        }
    }

    /// Returns whether an I/O that could merge also needs a free slot.
    #[inline]
    pub(crate) fn slots_come_first(&self) -> bool {
        self.config.slots_first
    }

    /// The place for an I/O like `io`: in a held request, or in a slot of its own. `None` if it needs a slot and may
    /// not have one. O(1) look-ups.
    #[inline]
    pub(crate) fn place(&mut self, io: &IoMeta) -> Option<Place> {
        match self.merge_target(io) {
            Some(_) if self.config.slots_first && self.lacks_slot_for(io) => None,
            Some((into, kind)) => Some(Place::Join(into, kind)),
            None if self.has_slot_for(io) => Some(Place::Slot),
            None => None,
        }
    }

    /// Out of line, to keep [`place`](Self::place) small in the other modes.
    #[cold]
    #[inline(never)]
    fn lacks_slot_for(&self, io: &IoMeta) -> bool {
        !self.has_slot_for(io)
    }

    /// Returns whether requests may merge at all.
    #[inline]
    pub(super) fn merges(&self) -> bool {
        !matches!(self.config.nomerges, NoMerges::None)
    }

    #[inline]
    fn merge_target(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        if self.slots.held == 0 || !self.merges() || !merge::mergeable(io) {
            return None;
        }
        self.find(io)
    }

    /// Adds a held request to the index, if other I/Os may merge with it.
    #[inline]
    pub(super) fn index_held(&mut self, id: RequestId, meta: &IoMeta) {
        if self.merges() && merge::mergeable(meta) {
            self.index.insert(id, meta.sector, meta.end());
            if self.last_merge.is_none() {
                self.last_merge = Some(id);
            }
        }
    }

    /// The request that `io` should join: the one in the one-hit cache, else one that ends where `io` starts, else
    /// one that starts where `io` ends.
    #[inline]
    fn find(&mut self, io: &IoMeta) -> Option<(RequestId, Kind)> {
        if let Some(last) = self.last_merge
            && merge::could_join(self.slots.requests.get(last), io)
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
                // The request was full and has left the index; there may be another.
                None if !self.index.contains(id) => {}
                None => return None,
            }
        }
    }

    fn alike(&self, id: RequestId, io: &IoMeta) -> bool {
        !matches!(self.fit(self.slots.requests.get(id), io), Fit::No)
    }

    /// Like [`merge::fit`], but within the length to which requests are shortened for latency goals.
    fn fit(&self, rq: &IoMeta, io: &IoMeta) -> Fit {
        let fit = merge::fit(&self.config.limits, rq, io);
        if rq.sectors.saturating_add(io.sectors) > self.fast.longest {
            self.fit_short(rq, fit)
        } else {
            fit
        }
    }

    #[cold]
    fn fit_short(&self, rq: &IoMeta, fit: Fit) -> Fit {
        let is_short = matches!(rq.op, Op::Read | Op::Write)
            && self.watch.as_ref().is_some_and(|watch| watch.shortens(rq.group));
        if is_short { Fit::No } else { fit }
    }

    /// Returns where `io` joins `id` if geometry, limits and policy agree that it does, or `None` if not. A full
    /// request leaves the index for good.
    fn fits(&mut self, id: RequestId, io: &IoMeta) -> Option<Kind> {
        match self.fit(self.slots.requests.get(id), io) {
            Fit::Merge(kind) => {
                self.policy.may_merge(&self.slots.cx(&self.env), id, io).then_some(kind)
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
        if let Some(watch) = &mut self.watch {
            watch.joined(self.slots.now, table, &proto, kind);
        }
        let old = *self.slots.requests.get(into);
        *self.slots.requests.get_mut(into) = merge::joined(&old, &proto.meta, kind);
        let chain = self.slots.chains[into.index()].as_mut().expect("a held request has its bios");
        chain.bios += proto.bios;
        if kind == Kind::Front {
            let behind = std::mem::replace(&mut chain.head, proto.bio);
            table.append(&mut chain.head, behind);
        } else {
            table.append(&mut chain.head, proto.bio);
        }
        self.rekey(into);
        let edge = match kind {
            Kind::Back => Grown::Back,
            Kind::Front => Grown::Front { old_sector: old.sector },
            Kind::Discard => Grown::Discard,
        };
        self.policy.grown(&self.slots.cx(&self.env), into, edge);
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
            let meta = self.slots.requests.get(id);
            self.index.insert(id, meta.sector, meta.end());
        }
    }

    /// Called when `id` has grown at its end: fuses the request that starts there into it.
    fn absorb_next<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let meta = *self.slots.requests.get(id);
        let next = self
            .index
            .starting_at(meta.end())
            .find(|n| *n != id && self.alike(id, self.slots.requests.get(*n)));
        if let Some(next) = next {
            self.absorb(table, id, next);
        }
    }

    /// Called when `id` has grown at its start: fuses it into the request that ends there.
    fn absorb_into_former<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let meta = *self.slots.requests.get(id);
        let former = self.index.ending_at(meta.sector).find(|f| *f != id && self.alike(*f, &meta));
        if let Some(former) = former {
            self.absorb(table, former, id);
        }
    }

    fn absorb<P>(&mut self, table: &BioTable<P>, into: RequestId, gone: RequestId) {
        let other = *self.slots.requests.get(gone);
        let fit = self.fit(self.slots.requests.get(into), &other);
        let cx = self.slots.cx(&self.env);
        if fit != Fit::Merge(Kind::Back) || !self.policy.may_merge(&cx, into, &other) {
            return;
        }
        let merged = merge::joined(self.slots.requests.get(into), &other, Kind::Back);
        *self.slots.requests.get_mut(into) = merged;
        let tail = self.slots.chains[gone.index()].take().expect("a held request has its bios");
        let chain = self.slots.chains[into.index()].as_mut().expect("a held request has its bios");
        chain.bios += tail.bios;
        table.append(&mut chain.head, tail.head);
        self.unindex(gone);
        self.rekey(into);
        self.policy.absorbed(&self.slots.cx(&self.env), into, gone);
        self.last_merge = Some(into);
        self.counters.request.add(1);
        self.count_merged(&other);
        if let Some(watch) = &mut self.watch {
            watch.fused(self.slots.now, gone, &other);
        }
        self.release(gone);
        self.slots.free(gone);
    }

    #[inline]
    pub(super) fn unindex(&mut self, id: RequestId) {
        self.index.remove(id);
        if self.last_merge == Some(id) {
            self.last_merge = None;
        }
    }

    /// Returns whether I/Os without a slot wait in the lobby, by group, and not in staging.
    #[inline]
    pub(crate) fn has_lobby(&self) -> bool {
        self.lobby.is_open()
    }

    #[inline]
    pub(crate) fn some_wait(&self) -> bool {
        !self.lobby.is_empty()
    }

    /// The number of I/Os that wait in the lobby.
    pub(crate) fn in_lobby(&self) -> usize {
        self.lobby.waiting()
    }

    /// The I/Os that wait for a slot, by group.
    pub(crate) fn lobby(&self) -> impl Iterator<Item = &IoMeta> {
        self.lobby.all()
    }

    /// Notifies the lobby of a change to a group, if the policy shares by group or groups have latency goals.
    pub(super) fn regroup_lobby(&mut self, change: GroupChange) {
        let has_goals = self.watch.as_ref().is_some_and(|watch| watch.goals.is_some());
        if self.facts.shares_by_group || has_goals {
            let Self { lobby, slots, flushes, config, .. } = self;
            let held = slots.live().filter(|(id, _, waits)| *waits && !flushes.has(*id));
            let held = held.map(|(id, io, _)| (id, io));
            lobby.regroup(change, (slots.requests.capacity(), held), config.credit);
        }
    }

    /// Admits an I/O of a submitter: into a held request, into a slot, or into the lobby. O(1) look-ups, or O(log
    /// groups).
    pub(crate) fn take_in<P>(
        &mut self,
        table: &BioTable<P>,
        by: SubmitterId,
        proto: PluggedRequest,
    ) {
        match self.place(&proto.meta) {
            Some(Place::Slot) if !self.may_pass(&proto.meta) => {
                self.lobby.push(self.slots.now, by, proto);
            }
            Some(place) => self.admit(table, place, proto),
            None => self.lobby.push(self.slots.now, by, proto),
        }
    }

    /// Returns whether an I/O would overtake no other by taking a slot. A bare flush never does, because it has slots
    /// of its own.
    fn may_pass(&self, io: &IoMeta) -> bool {
        self.lobby.is_empty() || io.op == Op::Flush
    }

    /// Puts an I/O that waited in an earlier queue into the lobby.
    pub(crate) fn adopt(&mut self, by: SubmitterId, proto: PluggedRequest) {
        self.lobby.push(self.slots.now, by, proto);
    }

    /// Takes all I/Os out of the lobby, in the order of arrival.
    pub(crate) fn take_waiting(&mut self) -> Vec<(SubmitterId, PluggedRequest)> {
        self.lobby.take_all()
    }

    /// Takes the oldest I/O of `by` that waits in the lobby and that `is` accepts.
    #[cold]
    pub(crate) fn withdraw_waiting(
        &mut self,
        by: SubmitterId,
        is: impl Fn(&PluggedRequest) -> bool,
    ) -> Option<PluggedRequest> {
        self.lobby.remove(by, is)
    }

    /// Returns whether an I/O has entered the lobby since slots were last given out.
    #[inline]
    pub(crate) fn has_newcomers(&self) -> bool {
        self.lobby.is_fresh()
    }

    /// Gives out the free slots in the order of the lobby: first to groups that have less than their part, due floors
    /// ahead, then to any group. O(log groups) for each slot, or O(waiting groups) if no waiting I/O may have a free
    /// slot.
    pub(crate) fn fill<P>(&mut self, table: &BioTable<P>) {
        self.lobby.advance(self.slots.now);
        let queues = u32::from(self.config.hw_queues);
        let all = self.config.nr_requests * queues;
        let enough = self.config.hw_queue_depth * queues;
        self.give_out(table, Slots { all, enough });
        if self.slots.has_any(self.lobby.has_flush()) && !self.lobby.is_empty() {
            self.give_out(table, Slots::EVERYTHING);
        }
    }

    /// One round over the waiting groups, in which no group gets more than its part of the slots.
    fn give_out<P>(&mut self, table: &BioTable<P>, slots: Slots) {
        while self.slots.has_any(self.lobby.has_flush()) {
            let Some(turn) = self.lobby.next() else { break };
            let Some(meta) = self.lobby.first(turn).copied() else { break };
            if self.lobby.has_its_part(turn, slots) {
                self.lobby.pass_over_group(turn);
                continue;
            }
            match self.place(&meta) {
                None => self.lobby.pass_over(turn),
                Some(place @ Place::Join(..)) => {
                    let proto = self.lobby.pop(turn);
                    self.admit(table, place, proto);
                }
                Some(Place::Slot) => {
                    let proto = self.lobby.take(turn);
                    self.admit(table, Place::Slot, proto);
                    // The next I/Os in its line may be adjacent to it.
                    self.join_line(table, turn);
                }
            }
        }
        self.lobby.end_round();
    }

    /// Merges I/Os from the front of a line until one needs a slot.
    fn join_line<P>(&mut self, table: &BioTable<P>, turn: Turn) {
        while let Some(meta) = self.lobby.first(turn).copied()
            && let Some(place @ Place::Join(..)) = self.place(&meta)
        {
            let proto = self.lobby.pop(turn);
            self.admit(table, place, proto);
        }
    }
}

/// The bios of a request in a sequence, which never merges.
const BIOS: u32 = 1;

impl Elevator {
    /// Begins the flush sequence of `proto`, which asks for a flush. The caller has seen that a slot is free.
    #[cold]
    pub(super) fn insert_sequence<P>(&mut self, table: &BioTable<P>, proto: PluggedRequest) {
        let PluggedRequest { meta, bio, bios } = proto;
        let steps = Sequence::of(self.config.cache, meta.op, meta.flags)
            .expect("bare flushes for a device without a cache are answered at once");
        assert!(bios == BIOS, "what asks for a flush merges with nothing");
        // The device does not see the flags of the sequence, and a thread always waits for such an I/O.
        let flags = meta.flags.without(self.sequenced) | IoFlags::SYNC;
        let meta = IoMeta { flags, ..meta };
        let is_bare = meta.op == Op::Flush;
        let id = if is_bare { self.slots.fill(&meta) } else { self.slots.take(&meta) };
        self.put(table, id, Chain { head: bio, bios, retries: 0 });
        if self.flushes.enter(self.slots.now, meta.hw, id, steps) {
            self.give_policy(id, At::Tail);
        } else {
            self.counters.flushes_asked.add(1);
        }
    }

    /// Turns a picked request, which may be in a sequence, into a token for the device.
    #[inline(never)]
    pub(super) fn issue_step(&mut self, id: RequestId, hw: HwQueue, tag: Tag) -> Inflight {
        let rq = self.issue_plain(id, hw, tag);
        match self.flushes.way(id) {
            Way::Plain => rq,
            Way::Data => rq.into_data_step(),
            Way::Flush => rq.into_flush(),
        }
    }

    /// Takes back a request that its pump did not end: requeues it, or makes the next step of its sequence. `end`
    /// receives the bios of requests that end in this call. Returns whether slots became free.
    #[cold]
    pub(crate) fn take_back(&mut self, back: Handback, mut end: impl FnMut(Bio, IoResult)) -> bool {
        let Handback { rq, verdict, at } = back;
        let Verdict::Done(result) = verdict else {
            self.requeue(rq);
            return false;
        };
        let (id, way, issued) = (rq.id, rq.way(), rq.issued);
        // Each step has the full number of retries.
        self.slots.put_chain(id, Chain { head: rq.into_head(), bios: BIOS, retries: 0 });
        match way {
            Way::Plain => unreachable!("a plain request that is done goes to its submitters"),
            Way::Data => self.data_done(&Done { rq: id, result, issued, completed: at }, &mut end),
            Way::Flush => self.flushed(&Done { rq: id, result, issued, completed: at }, &mut end),
        }
    }

    /// Takes back `rq`, which is to be issued again later. It goes to the head, where no I/O merges with it.
    fn requeue(&mut self, rq: Inflight) {
        let (id, way) = (rq.id, rq.way());
        if let Some(watch) = &mut self.watch {
            watch.requeued(&self.slots, id, way);
        }
        self.slots.put_chain(id, rq.into_chain());
        self.counters.requeues.add(1);
        if way == Way::Flush {
            self.slots.held += 1;
            self.carriers.push_front(id);
            return;
        }
        self.give_policy(id, At::Head);
    }

    fn data_done(&mut self, done: &Done, end: &mut impl FnMut(Bio, IoResult)) -> bool {
        let id = done.rq;
        self.policy.completed(&self.slots.cx(&self.env), done);
        self.count_done(done);
        self.note_completed(done);
        let hw = self.slots.requests.get(id).hw;
        if let Some(result) = self.flushes.data_done(self.slots.now, hw, id, done.result) {
            self.end(id, result, end);
            return true;
        }
        self.counters.flushes_asked.add(1);
        false
    }

    fn flushed(&mut self, done: &Done, end: &mut impl FnMut(Bio, IoResult)) -> bool {
        let hw = self.slots.requests.get(done.rq).hw;
        if let Some(watch) = &mut self.watch {
            watch.flushed(&self.slots, done);
        }
        self.flushes.flushed(hw, done.rq, done.result);
        let mut freed = false;
        while let Some((id, next)) = self.flushes.next_served(hw) {
            match next {
                Next::Data => self.released.push(id),
                Next::End { result, data } => {
                    self.counters.dataless.add((!data).into());
                    self.note_served(&Done { rq: id, ..*done });
                    self.end(id, result, end);
                    freed = true;
                }
            }
        }
        // Each is inserted at the head, so the last one is inserted first, and they leave in order of arrival.
        while let Some(id) = self.released.pop() {
            self.give_policy(id, At::Head);
        }
        freed
    }

    /// Notes a request that ends with a flush.
    fn note_served(&mut self, done: &Done) {
        let Some(watch) = &mut self.watch else { return };
        watch.served(&self.slots, done, self.fast.is_sampled);
        if self.fast.is_sampled && self.slots.requests.get(done.rq).op == Op::Flush {
            self.sample_completed(done);
        }
        self.some_ended = true;
    }

    fn end(&mut self, id: RequestId, result: IoResult, end: &mut impl FnMut(Bio, IoResult)) {
        let chain =
            self.slots.chains[id.index()].take().expect("between two steps it has its bios");
        end(chain.head, result);
        self.slots.free(id);
    }

    #[inline]
    pub(crate) fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Begins the flushes that may begin. Returns the time at which to try again if no event comes before; `None` if no
    /// request waits for a flush.
    pub(crate) fn begin_flushes(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for hw in self.flushes.hws() {
            if let Some(carrier) = self.flushes.begin(self.slots.now, hw) {
                self.counters.flushes_issued.add(1);
                self.slots.held += 1;
                self.carriers.push_back(carrier);
            }
            next = next.into_iter().chain(self.flushes.deadline(hw)).min();
        }
        next
    }
}

/// Requests that a plug holds before it must be flushed. (Linux: 64 if it spans several queues; here each
/// queue has plugs of its own.)
pub const PLUG_REQUESTS: usize = 32;
/// A last request of this many sectors (128 KiB) flushes the plug at the next append.
pub const PLUG_SECTORS: u32 = 256;

/// Requests in the order of submission.
#[derive(Debug)]
pub(crate) struct Plug {
    requests: Vec<PluggedRequest>,
    most: usize,
}

impl Plug {
    pub(crate) fn new(most: usize) -> Self {
        Self { requests: Vec::with_capacity(most), most }
    }

    /// Returns whether the plug must be flushed before another request is appended.
    #[inline]
    pub(crate) fn must_flush(&self, merging: bool) -> bool {
        self.requests.len() >= self.most
            || merging && self.requests.last().is_some_and(|last| last.meta.sectors >= PLUG_SECTORS)
    }

    /// Returns where `io` would join the newest request, the one candidate that a plug looks at, or `None` if it does
    /// not fit.
    #[inline]
    pub(crate) fn fits(&self, limits: &Limits, nomerges: NoMerges, io: &IoMeta) -> Option<Kind> {
        let last = self.requests.last()?;
        // By value, so that the common case keeps `io` in registers.
        if merge::could_join(&last.meta, io) {
            fits(limits, nomerges, &last.meta, *io)
        } else {
            None
        }
    }

    /// Makes `io` part of the newest request, which it [`fits`](Self::fits).
    pub(crate) fn merge<P>(&mut self, table: &BioTable<P>, kind: Kind, io: PluggedRequest) {
        let last = self.requests.last_mut().expect("there is a request that it fits");
        last.meta = merge::joined(&last.meta, &io.meta, kind);
        last.bios += io.bios;
        if kind == Kind::Front {
            let behind = std::mem::replace(&mut last.bio, io.bio);
            table.append(&mut last.bio, behind);
        } else {
            table.append(&mut last.bio, io.bio);
        }
    }

    #[inline]
    pub(crate) fn append(&mut self, io: PluggedRequest) {
        assert!(self.requests.len() < self.most, "a full plug is flushed first");
        self.requests.push(io);
    }

    /// Takes out the oldest I/O that has this cookie and is merged with no other. O(requests).
    pub(crate) fn remove<P>(&mut self, table: &BioTable<P>, cookie: u64) -> Option<Bio> {
        let is = |io: &PluggedRequest| io.bios == 1 && table.is_io(&io.bio, cookie);
        let at = self.requests.iter().position(is)?;
        Some(self.requests.remove(at).bio)
    }

    /// All requests, in the order of submission.
    #[inline]
    pub(crate) fn requests(&self) -> &[PluggedRequest] {
        &self.requests
    }

    /// The newest request, without taking it.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&PluggedRequest> {
        self.requests.last()
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<PluggedRequest> {
        self.requests.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes all requests out, in the order of submission or in any other.
    #[inline]
    pub(crate) fn drain(&mut self) -> Emptied<'_> {
        Emptied { requests: &mut self.requests, at: 0 }
    }

    /// Takes out the oldest `most` requests, in the order of submission. O(requests).
    pub(crate) fn drain_first(&mut self, most: usize) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.requests.drain(..most)
    }
}

/// The requests of a plug that is being emptied. If a panic interrupts that, the rest goes to the orphans.
///
/// Requests stay where they are, without their bios, until all have been taken.
pub(crate) struct Emptied<'a> {
    requests: &'a mut Vec<PluggedRequest>,
    /// The place of the next one in the order of submission.
    at: usize,
}

impl Emptied<'_> {
    /// The next request in the order of submission, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&PluggedRequest> {
        self.requests.get(self.at)
    }

    /// The requests that are left, if they are taken in the order of submission.
    #[inline]
    pub(crate) fn rest(&self) -> &[PluggedRequest] {
        &self.requests[self.at..]
    }

    /// Takes the request at `place`.
    ///
    /// # Panics
    /// If there is none, or if it has been taken.
    #[inline(always)]
    pub(crate) fn take_at(&mut self, place: usize) -> (&IoMeta, Chain) {
        let PluggedRequest { meta, bio, bios } = &mut self.requests[place];
        (meta, Chain { head: bio.take(), bios: *bios, retries: 0 })
    }

    /// Takes the next request in the order of submission, which has been [seen](Self::peek).
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    pub(crate) fn take_next(&mut self) -> (&IoMeta, Chain) {
        let at = self.at;
        self.at += 1;
        self.take_at(at)
    }

    /// Ends the emptying, after all requests have been taken. O(1).
    #[inline]
    pub(crate) fn end(self) {
        debug_assert!(self.requests.iter().all(|io| io.bio.is_taken()), "something is left");
        self.requests.clear();
        std::mem::forget(self);
    }
}

impl Iterator for Emptied<'_> {
    type Item = PluggedRequest;

    #[inline]
    fn next(&mut self) -> Option<PluggedRequest> {
        let io = self.requests.get_mut(self.at)?;
        self.at += 1;
        Some(PluggedRequest { meta: io.meta, bio: io.bio.take(), bios: io.bios })
    }
}

impl Drop for Emptied<'_> {
    #[inline]
    fn drop(&mut self) {
        self.requests.drain(..).filter(|io| !io.bio.is_taken()).for_each(|io| io.bio.orphan());
    }
}

#[inline(never)]
fn fits(limits: &Limits, nomerges: NoMerges, last: &IoMeta, io: IoMeta) -> Option<Kind> {
    // Policies, which may allow merges of different owners, are not asked here.
    let apart = last.owner != io.owner || nomerges == NoMerges::None;
    if apart || !merge::mergeable(&io) || !merge::mergeable(last) {
        return None;
    }
    match merge::fit(limits, last, &io) {
        Fit::Merge(kind) => Some(kind),
        Fit::No | Fit::Full => None,
    }
}

/// The runner's ends of a submitter's rings.
pub(crate) struct Staging {
    pub(crate) protos: Consumer<PluggedRequest>,
    /// I/Os that the submitter wants cancelled.
    pub(crate) asks: Consumer<Ask>,
}

/// The caller's own submission, which need not be staged when the elevator is free.
pub(crate) struct Own<'a> {
    pub(crate) id: SubmitterId,
    pub(crate) plug: &'a mut Plug,
    pub(crate) staging: &'a mut Producer<PluggedRequest>,
}

/// Stages the caller's plug: a later pass finds it, in this queue or in the queue that takes over.
#[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
pub(crate) fn stage(shard: &Shard, own: Own<'_>) {
    let mut plug = own.plug.drain();
    for proto in &mut plug {
        // Staging holds a submitter's whole credit.
        own.staging.put(proto);
    }
    plug.end();
    own.staging.publish();
    shard.pending.set(own.id.0);
}
