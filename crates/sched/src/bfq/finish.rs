//! The ways out of a queue: to the device, into another request, or back to the submitter; and requests that the
//! device returns (`spec/bfq.md` section 7).

use super::budget::Reason;
use super::held::{State, Ways};
use super::notes::Kind;
use super::weights::Weights;
use super::{Bfq, NOBODY};
use crate::{Cx, Event};
use blkmq_core::{Instant, Nanos, RequestId};

impl Bfq {
    /// Takes a waiting request, filed at `sector`, out of the order of its queue, and finds the next one.
    #[inline]
    pub(super) fn take_out(&mut self, q: u32, rq: RequestId, sector: u64) {
        let ways = Ways::of(&self.tunables);
        if self.held.take_out(&mut self.queues[q], rq, sector, self.now, ways) {
            self.next_changed(q);
        }
        self.refile(q);
    }

    /// After a request was taken out: an empty queue is taken off the service tree.
    #[inline]
    pub(super) fn left_empty(&mut self, cx: &Cx<'_>, q: u32) {
        let queue = &self.queues[q];
        if queue.is_empty() && queue.busy && !self.slot.is_of(q) {
            self.retire(cx, q);
        }
    }

    /// A held request was withdrawn, or fused into another one.
    pub(super) fn remove_held(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let item = self.held[rq];
        assert!(item.rq == rq, "{rq:?} is not held");
        let (q, meta) = (item.queue, cx.requests.get(rq));
        let level = self.wf.level(q);
        match item.state {
            State::Head => self.held.take_head(rq),
            State::Queued => {
                let sector = self.held.sector(rq).expect("it waits in the order");
                self.take_out(q, rq, sector);
            }
            State::Free | State::Issued => panic!("{rq:?} is not held"),
        }
        self.groups.unqueued(cx, level, Kind::of(meta), self.now);
        if item.state == State::Queued {
            self.left_empty(cx, q);
        }
        self.held[rq].state = State::Free;
        self.release(cx, item.proc, q);
    }

    /// An issued request is back from the device.
    pub(super) fn back(&mut self, cx: &Cx<'_>, rq: RequestId, completed: Instant) {
        let q = self.held[rq].queue;
        self.sample_completion(q, rq, completed);
        let sparse = if self.slot.queue == NOBODY {
            None
        } else {
            let queue = &self.queues[self.slot.queue];
            queue.short_think.then_some(queue.dispatched + queue.queued)
        };
        let (link, timeout) = (self.queues.link(q), self.tunables.timeout);
        self.device.completed(link, completed, self.held.queued, sparse, timeout);
        let queue = &mut self.queues[q];
        queue.dispatched -= 1;
        queue.think.last_end = queue.think.last_end.max(completed);
        if queue.dispatched == 0 && !queue.busy {
            queue.idle_since = Some(completed);
            self.recount(q);
        }
        let queue = &self.queues[q];
        if queue.raising.soft_rt_due && queue.dispatched == 0 {
            self.expect_soft_rt(q);
        }
        if self.slot.is_of(q) {
            self.after_completion(cx, q);
        }
    }

    /// Decides, after a request of the queue in service has completed, whether to continue, to wait, or to end the
    /// slot.
    #[inline]
    fn after_completion(&mut self, cx: &Cx<'_>, q: u32) {
        let empty = self.queues[q].is_empty();
        if !empty && !self.slot.is_timed_out(self.now) {
            return;
        }
        if empty && self.better_to_idle(q) {
            if self.queues[q].dispatched == 0 && self.slot.idle.is_none() {
                self.slot.begin_idling(self.now, self.idle_span(q), cx.stats);
            }
        } else if self.slot.is_timed_out(self.now) && self.time_counts() {
            self.expire(cx, Reason::Timeout);
        } else if empty {
            self.expire(cx, Reason::NoMore);
        }
    }

    /// Updates the counts that a queue contributes to: pending queues of its group, raised queues, queues of its
    /// weight.
    #[inline]
    pub(super) fn recount(&mut self, q: u32) {
        let queue = &self.queues[q];
        let pending = queue.busy || queue.dispatched > 0;
        let raised = queue.raising.is_raised();
        let weight = (pending && !raised).then(|| Weights::index(queue.priority.weight()));
        let counted_raised = queue.busy && raised;
        if queue.pending != pending {
            let level = self.wf.level(q);
            if pending {
                self.groups.begin(level);
            } else {
                self.groups.end(level);
            }
            self.queues[q].pending = pending;
        }
        let queue = &mut self.queues[q];
        if queue.counted_weight != weight {
            if let Some(old) = core::mem::replace(&mut queue.counted_weight, weight) {
                self.weights.remove(old);
            }
            if let Some(new) = weight {
                self.weights.add(new);
            }
        }
        if queue.counted_raised != counted_raised {
            queue.counted_raised = counted_raised;
            self.raised_busy =
                if counted_raised { self.raised_busy + 1 } else { self.raised_busy - 1 };
        }
    }

    /// Inserts a requeued request, or one that goes ahead of everything.
    pub(super) fn push_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held.push_head(rq);
        let q = self.held[rq].queue;
        let (level, kind) = (self.wf.level(q), Kind::of(cx.requests.get(rq)));
        self.groups.queued(cx, level, kind, self.slot.is_on(level), self.now);
    }

    /// Notes a completion.
    pub(super) fn note_completed(
        &self,
        cx: &Cx<'_>,
        rq: RequestId,
        issued: Instant,
        completed: Instant,
    ) {
        let item = &self.held[rq];
        let meta = cx.requests.get(rq);
        let bytes = meta.sectors.saturating_mul(blkmq_core::SECTOR_SIZE);
        let (wait, service): (Nanos, Nanos) = (issued.since(item.since), completed.since(issued));
        let what = Event::Completed { bytes, wait, service };
        self.groups.note(cx, self.wf.level(item.queue), Kind::of(meta), what);
    }
}
