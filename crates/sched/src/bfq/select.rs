//! The next request for the device (`spec/bfq.md` section 6).

use super::budget::{self, Reason};
use super::held::State;
use super::wf2q::Class;
use super::{Bfq, NOBODY};
use crate::{Cx, Pick};
use blkmq_core::{Nanos, RequestId};

/// The factor by which async I/O is charged, where that harms no queue, because no submitter waits for it.
const ASYNC_COSTS: u64 = 3;

impl Bfq {
    pub(super) fn choose(&mut self, cx: &Cx<'_>) -> Pick {
        if let Some(rq) = self.held.head() {
            return Pick::Issue(self.issue_head(cx, rq));
        }
        if self.held.queued == 0 {
            return Pick::Empty;
        }
        if self.tunables.strict && self.device.in_driver > 0 {
            return Pick::WaitCompletion;
        }
        match self.select(cx) {
            Some(q) => Pick::Issue(self.serve(cx, q)),
            // The device is kept idle for the queue in service, at most until that time, or until the queue's last
            // request is back.
            None => self.slot.idle.map_or(Pick::WaitCompletion, Pick::WaitUntil),
        }
    }

    /// The queue to serve: usually the one in service. `None`: the device is kept idle for it.
    fn select(&mut self, cx: &Cx<'_>) -> Option<u32> {
        if self.slot.queue != NOBODY && self.slot.is_timed_out(self.now) && self.may_end_for_time()
        {
            self.expire(cx, Reason::Timeout);
        }
        loop {
            if self.slot.queue == NOBODY {
                self.begin_slot(cx);
            }
            let q = self.slot.queue;
            match self.queues[q].next {
                Some(next) if self.charge_of(q, next) > self.budget_left(q) => {
                    self.expire(cx, Reason::Exhausted);
                }
                Some(_) => {
                    self.slot.stop_idling(cx, &self.groups, self.now);
                    return Some(q);
                }
                // While the queue drains, no request arrives that is worth waiting for.
                None if self.is_waited_for(q) && !cx.env.is_draining() => match self.inject() {
                    None if self.held.is_full() => self.expire(cx, Reason::NoMore),
                    injected => return injected,
                },
                None => self.expire(cx, Reason::NoMore),
            }
        }
    }

    /// Returns whether the slot of the queue in service, whose time is over, may end. False while the device is kept
    /// idle for the queue and less than a third of its budget is left. False also if the queue is empty and worth
    /// waiting for.
    fn may_end_for_time(&self) -> bool {
        let q = self.slot.queue;
        self.time_counts() && !(self.queues[q].is_empty() && self.better_to_idle(q))
    }

    /// While the device is kept idle for the queue in service, time counts only if at least a third of its budget is
    /// left.
    pub(super) fn time_counts(&self) -> bool {
        let q = self.slot.queue;
        self.slot.idle.is_none() || budget::much_left(self.wf.budget(q), self.wf.service(q))
    }

    /// Returns whether an empty queue in service is worth waiting for: not once its last process sends elsewhere, or has left.
    fn is_waited_for(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.procs > 0
            && (self.slot.idle.is_some() || (queue.dispatched > 0 && self.better_to_idle(q)))
    }

    /// Begins the slot of the next queue.
    fn begin_slot(&mut self, cx: &Cx<'_>) {
        let q = self.wf.pick(self.now).expect("requests wait, so a queue is busy");
        self.device.warmth.another();
        self.queues[q].fifo_checked = false;
        self.forgive_waiting(q);
        let queue = &self.queues[q];
        let longer = if queue.raising.is_soft_rt() {
            1
        } else {
            u64::from(self.wf.weight(q) / queue.priority.weight()).max(1)
        };
        let level = self.wf.level(q);
        let length = Nanos(self.tunables.timeout.0.saturating_mul(longer));
        self.slot.begin(q, level, self.now, length);
        self.groups.turn(cx, level, self.now);
    }

    #[inline]
    pub(super) fn budget_left(&self, q: u32) -> u64 {
        self.wf.budget(q).saturating_sub(self.wf.service(q))
    }

    /// The charge of `q` for serving `rq`.
    #[inline]
    pub(super) fn charge_of(&self, q: u32, rq: RequestId) -> u64 {
        let sectors = u64::from(self.held[rq].sectors);
        let queue = &self.queues[q];
        if queue.sync || queue.raising.is_raised() || self.is_asymmetric(Some(q)) {
            sectors
        } else {
            sectors * ASYNC_COSTS
        }
    }

    /// Serves the next request of `q`.
    fn serve(&mut self, cx: &Cx<'_>, q: u32) -> RequestId {
        let rq = self.queues[q].next.expect("it was selected for having one");
        let charge = self.charge_of(q, rq);
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.served == 0 {
            queue.first_io = now;
        }
        queue.served += charge;
        if queue.raising.is_raised() {
            queue.raising.served += charge;
        }
        self.wf.serve(q, charge);
        if self.slot.is_of(q) {
            self.sample_dispatch(rq);
        }
        self.dispatch(cx, q, rq);
        if self.slot.is_of(q) {
            self.review_raising(q);
            if self.wf.class(q) == Class::Idle && self.others_are_busy() {
                self.expire(cx, Reason::Exhausted);
            }
        }
        rq
    }

    /// Moves `rq` from `q` to the device.
    fn dispatch(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId) {
        let meta = *cx.requests.get(rq);
        self.queues[q].dispatched += 1;
        self.device.dispatched(&meta, self.now, self.tunables.timeout);
        if self.slot.is_of(q) {
            self.slot.position = meta.end();
        }
        self.held[rq].state = State::Issued;
        let level = self.wf.level(q);
        self.take_out(q, rq, meta.sector);
        self.groups.served(cx, level, &meta, self.now);
        self.left_empty(cx, q);
    }

    /// Issues a requeued request, or one that goes ahead of everything.
    fn issue_head(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        self.held.take_head(rq);
        let item = &mut self.held[rq];
        item.state = State::Issued;
        let q = item.queue;
        self.queues[q].dispatched += 1;
        self.device.in_driver += 1;
        let meta = cx.requests.get(rq);
        let level = self.wf.level(q);
        self.groups.served(cx, level, meta, self.now);
        self.recount(q);
        rq
    }
}
