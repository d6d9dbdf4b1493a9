//! Requests in flush sequences: carries out the decisions of [`FlushQueues`](crate::elevator::flush::FlushQueues)
//! (`spec/framework.md` section 12).
//!
//! Such a request keeps its slot from the first step to the last. A flush has no slot and no bio of its own: it is
//! issued in the name of the first request that it serves, takes a driver tag as every request does, and leaves ahead
//! of the requests that the policy holds. Data goes to the policy like any other request: to the tail, or to the head
//! if it has waited for a flush already. A request in a sequence merges with nothing.

use super::{
    At, Chain, Cx, Done, Elevator, HwQueue, Inflight, Instant, Op, PluggedRequest, RequestId, Tag,
};
use crate::BioTable;
use crate::elevator::flush::{Next, Sequence};
use crate::shared::inflight::{Handback, Verdict, Way};
use crate::shared::slots::Bio;
use blkmq_core::{IoFlags, IoMeta, IoResult};

/// A sequence has one bio: an I/O that asks for a flush merges with nothing.
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
        let id = self.requests.alloc(meta).expect("a free slot was seen");
        self.put_chain(id, Chain { head: bio, bios, retries: 0 });
        self.counters.inserted.add(1);
        self.watch_inserted(table, id);
        if meta.op != Op::Flush {
            let used = self.used(meta.hw);
            used.all += 1;
            used.limited += u32::from(!meta.is_sync_read());
        }
        if self.flushes.enter(self.now, meta.hw, id, steps) {
            self.insert_data(id, At::Tail);
        } else {
            self.counters.flushes_asked.add(1);
        }
    }

    fn insert_data(&mut self, id: RequestId, at: At) {
        self.hold(id);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.insert(&cx, id, at);
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

    /// Takes back a request that its pump did not end: requeues it, or makes the next step of its sequence. `end` is
    /// given the bios of requests that end by that. True if slots became free.
    #[cold]
    pub(crate) fn take_back(&mut self, back: Handback, mut end: impl FnMut(Bio, IoResult)) -> bool {
        let Handback { rq, verdict, at } = back;
        let Verdict::Done(result) = verdict else {
            self.requeue(rq);
            return false;
        };
        let (id, way, issued) = (rq.id, rq.way(), rq.issued);
        // Each step has the full number of retries.
        self.put_chain(id, Chain { head: rq.into_head(), bios: BIOS, retries: 0 });
        match way {
            Way::Plain => unreachable!("a plain request that is done goes to its submitters"),
            Way::Data => self.data_done(&Done { rq: id, result, issued, completed: at }, &mut end),
            Way::Flush => self.flushed(&Done { rq: id, result, issued, completed: at }, &mut end),
        }
    }

    fn data_done(&mut self, done: &Done, end: &mut impl FnMut(Bio, IoResult)) -> bool {
        let id = done.rq;
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.completed(&cx, done);
        self.count_done(done);
        self.watch_completed(done);
        let hw = self.requests.get(id).hw;
        if let Some(result) = self.flushes.data_done(self.now, hw, id, done.result) {
            self.end(id, result, end);
            return true;
        }
        self.counters.flushes_asked.add(1);
        false
    }

    fn flushed(&mut self, done: &Done, end: &mut impl FnMut(Bio, IoResult)) -> bool {
        let hw = self.requests.get(done.rq).hw;
        self.watch_flushed(done);
        self.flushes.flushed(hw, done.rq, done.result);
        let mut freed = false;
        while let Some((id, next)) = self.flushes.next_served(hw) {
            match next {
                Next::Data => self.released.push(id),
                Next::End { result, data } => {
                    self.counters.dataless.add((!data).into());
                    self.watch_served(id, done);
                    self.end(id, result, end);
                    freed = true;
                }
            }
        }
        // Each goes to the head, so the last one goes first: they leave in the order in which they came.
        while let Some(id) = self.released.pop() {
            self.insert_data(id, At::Head);
        }
        freed
    }

    fn end(&mut self, id: RequestId, result: IoResult, end: &mut impl FnMut(Bio, IoResult)) {
        let chain = self.chains[id.index()].take().expect("between two steps it has its bios");
        end(chain.head, result);
        self.free_slot(id);
    }

    /// Are there requests in flush sequences?
    #[inline]
    pub(crate) fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Begins the flushes that may begin. Returns the time of the next look if requests wait for a flush and nothing
    /// happens before.
    pub(crate) fn begin_flushes(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for hw in self.flushes.hws() {
            if let Some(carrier) = self.flushes.begin(self.now, hw) {
                self.counters.flushes_issued.add(1);
                self.held += 1;
                self.carriers.push_back(carrier);
            }
            next = next.into_iter().chain(self.flushes.deadline(hw)).min();
        }
        next
    }
}
