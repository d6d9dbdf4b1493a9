//! The ways out of a queue: to the device, into another request, or back to the submitter; and requests that the
//! device returns (`spec/bfq.md` section 7).

use super::budget::Reason;
use super::held::{State, Ways};
use super::notes::Kind;
use super::{Bfq, NOBODY};
use crate::Cx;
use blkmq_core::{Instant, RequestId};

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
            self.queues.retire(cx, q, self.now, &self.tunables);
        }
    }

    /// A held request was withdrawn, or fused into another one.
    pub(super) fn remove_held(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let item = self.held[rq];
        assert!(item.rq == rq, "{rq:?} is not held");
        let (q, kind) = (item.queue, Kind::of(cx.requests.get(rq)));
        let level = self.queues.level(q);
        match item.state {
            State::Head => self.held.take_head(rq),
            State::Queued => {
                let sector = self.held.sector(rq).expect("it waits in the order");
                self.take_out(q, rq, sector);
            }
            State::Free | State::Issued => panic!("{rq:?} is not held"),
        }
        self.queues.groups.unqueued(cx, level, kind, self.now);
        if item.state == State::Queued {
            self.left_empty(cx, q);
        }
        self.release(cx, rq);
    }

    /// An issued request is back from the device.
    pub(super) fn back(&mut self, cx: &Cx<'_>, rq: RequestId, completed: Instant) {
        let q = self.held[rq].queue;
        let (in_driver, most) = (self.device.in_driver, self.device.hw_tag.most);
        let injection = &mut self.queues[q].injection;
        self.sampling.completed(injection, rq, completed, in_driver, most);
        let sparse = if self.slot.queue == NOBODY {
            None
        } else {
            let queue = &self.queues[self.slot.queue];
            queue.short_think.then_some(queue.dispatched + queue.queued)
        };
        let link = self.queues.link(q);
        let (waiting, timeout) = (self.held.queued, self.tunables.timeout);
        self.device.completed(link, completed, waiting, sparse, timeout);
        let queue = &mut self.queues[q];
        queue.dispatched -= 1;
        queue.think.last_end = queue.think.last_end.max(completed);
        if queue.dispatched == 0 {
            if queue.raising.soft_rt_due {
                queue.run_empty(self.now, self.tunables.slice_idle);
            }
            if !queue.busy {
                queue.idle_since = Some(completed);
                self.queues.recount(q);
            }
        }
        if self.slot.is_of(q) {
            self.after_completion(cx, q);
        }
    }

    /// Decides, after a request of the queue in service has completed, whether to continue, to wait, or to end the
    /// slot.
    #[inline]
    pub(super) fn after_completion(&mut self, cx: &Cx<'_>, q: u32) {
        let empty = self.queues[q].is_empty();
        let timed_out = self.slot.is_timed_out(self.now);
        if !empty && !timed_out {
            return;
        }
        if empty && self.idling().is_better(q) {
            if self.queues[q].dispatched == 0 && self.slot.idle.is_none() {
                let span = self.idling().span(q);
                self.slot.begin_idling(self.now, span, cx.stats);
            }
        } else if timed_out && self.time_counts() {
            self.expire(cx, Reason::Timeout);
        } else if empty {
            self.expire(cx, Reason::NoMore);
        }
    }

    /// A request has completed, or was withdrawn or absorbed.
    #[inline]
    pub(super) fn release(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let item = &mut self.held[rq];
        item.state = State::Free;
        let q = item.queue;
        self.procs.end(item.proc);
        self.queues[q].allocated -= 1;
        if self.queues[q].procs == 0 {
            self.free_if_unused(cx, q);
        }
    }
}
