//! The next request for the device (`spec/bfq.md` section 6).

use super::budget::{self, Reason};
use super::notes::Kind;
use super::wf2q::Class;
use super::{Bfq, HEAD, NOBODY, State, habits};
use crate::{Cx, Pick};
use blkmq_core::{IoMeta, Nanos, RequestId};

/// The factor by which async I/O is charged, where that harms no queue, because no submitter waits for it.
const ASYNC_COSTS: u64 = 3;

impl Bfq {
    pub(super) fn choose(&mut self, cx: &Cx<'_>) -> Pick {
        if let Some(rq) = self.lists.front(HEAD) {
            return Pick::Issue(self.issue_head(cx, rq));
        }
        if self.queued == 0 {
            return Pick::Empty;
        }
        if self.tunables.strict && self.in_driver > 0 {
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
        if self.serving != NOBODY && self.is_timed_out() && self.may_end_for_time() {
            self.expire(cx, Reason::Timeout);
        }
        loop {
            if self.serving == NOBODY {
                self.begin_slot(cx);
            }
            let q = self.serving;
            match self.queues[q].next {
                Some(next) if self.charge_of(q, next) > self.budget_left(q) => {
                    self.expire(cx, Reason::Exhausted);
                }
                Some(_) => {
                    self.stop_idling(cx);
                    return Some(q);
                }
                // While the queue drains, no request arrives that is worth waiting for.
                None if self.is_waited_for(q) && !cx.env.is_draining() => match self.inject() {
                    None if self.is_full() => self.expire(cx, Reason::NoMore),
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
        let q = self.serving;
        self.time_counts() && !(self.queues[q].is_empty() && self.better_to_idle(q))
    }

    /// While the device is kept idle for the queue in service, time counts only if at least a third of its budget is
    /// left.
    pub(super) fn time_counts(&self) -> bool {
        let q = self.serving;
        self.slot.idle.is_none() || budget::much_left(self.wf.budget(q), self.wf.service(q))
    }

    /// Returns whether an empty queue in service is worth waiting for: not once its last process sends elsewhere, or has left.
    fn is_waited_for(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.procs > 0
            && (self.slot.idle.is_some() || (queue.dispatched > 0 && self.better_to_idle(q)))
    }

    /// Returns whether requests that wait here hold all tags, so that none can arrive before one of them is issued.
    fn is_full(&self) -> bool {
        self.queued >= self.tags
    }

    /// Begins the slot of the next queue.
    fn begin_slot(&mut self, cx: &Cx<'_>) {
        let q = self.wf.pick(self.now).expect("requests wait, so a queue is busy");
        self.serving = q;
        self.warmth.another();
        self.queues[q].fifo_checked = false;
        self.forgive_waiting(q);
        let queue = &self.queues[q];
        let longer = if queue.raising.is_soft_rt() {
            1
        } else {
            u64::from(self.wf.weight(q) / queue.priority.weight()).max(1)
        };
        self.slot.began = self.now;
        self.slot.ends = self.now + Nanos(self.tunables.timeout.0.saturating_mul(longer));
        self.note_turn(cx, self.wf.level(q));
    }

    /// Returns whether the queue in service has used up its time.
    #[inline]
    pub(super) fn is_timed_out(&self) -> bool {
        self.now >= self.slot.ends
    }

    #[inline]
    pub(super) fn budget_left(&self, q: u32) -> u64 {
        self.wf.budget(q).saturating_sub(self.wf.service(q))
    }

    /// The charge of `q` for serving `rq`.
    #[inline]
    pub(super) fn charge_of(&self, q: u32, rq: RequestId) -> u64 {
        let sectors = u64::from(self.items[rq.index()].sectors);
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
        if self.is_serving(q) {
            self.sample_dispatch(rq);
        }
        self.dispatch(cx, q, rq);
        if self.is_serving(q) {
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
        self.measure_dispatch(&meta);
        if self.is_serving(q) {
            self.serving_position = meta.end();
        }
        self.in_driver += 1;
        self.items[rq.index()].state = State::Issued;
        let level = self.wf.level(q);
        self.take_out(q, rq, meta.sector);
        self.note_served(cx, level, Kind::of(&meta), meta.sectors);
        self.left_empty(cx, q);
    }

    /// A request goes to the device, which is counted there afterwards: updates the device's rate.
    #[inline]
    pub(super) fn measure_dispatch(&mut self, meta: &IoMeta) {
        let far = habits::is_far(self.last_position, meta.sector, meta.sectors, self.rotational);
        let changed = self.rate.dispatched(&super::rate::Dispatch {
            now: self.now,
            sectors: meta.sectors,
            far,
            in_driver: self.in_driver,
            last_completion: self.last_completion,
        });
        if changed {
            self.adapt_budget();
        }
        self.last_position = meta.end();
    }

    /// Issues a requeued request, or one that goes ahead of everything.
    fn issue_head(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        self.lists.remove(rq);
        let item = &mut self.items[rq.index()];
        item.state = State::Issued;
        let q = item.queue;
        self.queues[q].dispatched += 1;
        self.in_driver += 1;
        let meta = cx.requests.get(rq);
        let level = self.wf.level(q);
        self.note_served(cx, level, Kind::of(meta), meta.sectors);
        self.recount(q);
        rq
    }

    /// The rate, or the duration of a slot, has changed.
    pub(super) fn adapt_budget(&mut self) {
        // Budgets stay far below the values at which virtual time would overflow.
        self.auto_budget = self.rate.sectors_in(self.tunables.timeout).clamp(1, i32::MAX as u64);
    }
}
