//! The next request for the device (`spec/bfq.md` section 6).

use super::budget::{self, Reason};
use super::held::State;
use super::{Bfq, NOBODY, Senders, habits};
use crate::{Cx, Pick};
use blkmq_core::{GroupIndex, Nanos, RequestId};

/// The number of busy queues that are examined for a request to inject.
const LOOK_AT: usize = 16;

impl Bfq {
    pub(super) fn choose(&mut self, cx: &Cx<'_>) -> Pick {
        if let Some(rq) = self.held.head() {
            self.issue_head(cx, rq);
            return Pick::Issue(rq);
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
    pub(super) fn select(&mut self, cx: &Cx<'_>) -> Option<u32> {
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
                Some(next) if self.charge_of(q, next) > self.queues.budget_left(q) => {
                    self.expire(cx, Reason::Exhausted);
                }
                Some(_) => {
                    self.slot.stop_idling(cx, &self.queues.groups, self.now);
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
    pub(super) fn may_end_for_time(&self) -> bool {
        let q = self.slot.queue;
        self.time_counts() && !(self.queues[q].is_empty() && self.idling().is_better(q))
    }

    /// While the device is kept idle for the queue in service, time counts only if at least a third of its budget is
    /// left.
    pub(super) fn time_counts(&self) -> bool {
        let (q, wf) = (self.slot.queue, &self.queues.wf);
        self.slot.idle.is_none() || budget::much_left(wf.budget(q), wf.service(q))
    }

    /// Returns whether an empty queue in service is worth waiting for: not once its last process sends elsewhere, or has left.
    pub(super) fn is_waited_for(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.procs > 0
            && (self.slot.idle.is_some() || (queue.dispatched > 0 && self.idling().is_better(q)))
    }

    /// Begins the slot of the next queue.
    pub(super) fn begin_slot(&mut self, cx: &Cx<'_>) {
        let now = self.now;
        let q = self.queues.wf.pick(now).expect("requests wait, so a queue is busy");
        self.device.warmth.another();
        let weight = self.queues.wf.weight(q);
        let queue = &mut self.queues[q];
        queue.fifo_checked = false;
        queue.raising.forgive_waiting(queue.waiting_since, now);
        let longer = if queue.raising.is_soft_rt() {
            1
        } else {
            u64::from(weight / queue.priority.weight()).max(1)
        };
        let length = Nanos(self.tunables.timeout.0.saturating_mul(longer));
        let level = self.queues.level(q);
        self.slot.begin(q, level, now, length);
        self.queues.groups.turn(cx, level, now);
    }

    /// The queue to inject from, while the device is kept idle for the queue in service.
    pub(super) fn inject(&mut self) -> Option<u32> {
        if !self.tunables.injection {
            return None;
        }
        let q = self.slot.queue;
        let fits = |other: &u32| self.can_be_injected(*other);
        self.own_async(q)
            .or_else(|| self.queues.waker_of(q).filter(fits))
            .or_else(|| self.queues.woken_by(q).filter(fits))
            .or_else(|| if self.idling().boosts(q) { None } else { self.anybody_for(q) })
    }

    /// Returns whether `q` has a request that fits its budget.
    pub(super) fn can_be_injected(&self, q: u32) -> bool {
        let Some(next) = self.queues[q].next else { return false };
        !self.slot.is_of(q) && self.charge_of(q, next) <= self.queues.budget_left(q)
    }

    /// The async queue of the process that is waited for, if that is the only one of `q`, and the next request there is
    /// from that process.
    pub(super) fn own_async(&self, q: u32) -> Option<u32> {
        let Senders::One(proc) = self.queues[q].senders else { return None };
        if self.queues[q].procs != 1 {
            return None;
        }
        let proc = self.procs.at(proc);
        let group = proc.group.unwrap_or(GroupIndex::ROOT);
        let queue = self.procs.queue_of(self.queues.groups.shared_key(group, proc.ioprio))?;
        let next = self.queues[queue].next?;
        let own = self.held[next].owner == proc.key;
        (own && self.can_be_injected(queue)).then_some(queue)
    }

    /// The first queue that fits, of those that have been busy for longest.
    pub(super) fn anybody_for(&mut self, q: u32) -> Option<u32> {
        let queue = &self.queues[q];
        let always = !queue.raising.is_raised() || !queue.short_think;
        let waited =
            self.slot.idle.is_some() && self.now >= self.slot.idle_began + self.tunables.slice_idle;
        if self.device.in_driver >= queue.injection.limit_after(waited) {
            return None;
        }
        let fits = |other: &u32| {
            let raised = self.queues[*other].raising.is_raised();
            (always || raised) && self.can_be_injected(*other) && !self.is_too_large(*other)
        };
        let found = self.queues.busy().take(LOOK_AT).find(fits)?;
        self.sampling.injected = true;
        Some(found)
    }

    /// On a device without moving parts, one large request at a time is enough delay.
    pub(super) fn is_too_large(&self, q: u32) -> bool {
        let next = self.queues[q].next.expect("it was found to have one");
        !self.device.rotational
            && self.device.in_driver >= 1
            && self.held[next].sectors >= habits::LARGE
    }

    /// Serves the next request of `q`.
    pub(super) fn serve(&mut self, cx: &Cx<'_>, q: u32) -> RequestId {
        let rq = self.queues[q].next.expect("it was selected for having one");
        let charge = self.charge_of(q, rq);
        self.queues[q].serve(charge, self.now);
        self.queues.wf.serve(q, charge);
        if self.slot.is_of(q) {
            self.sampling.dispatched(rq);
        }
        self.dispatch(cx, q, rq);
        if self.slot.is_of(q) {
            self.queues.review_raising(q, self.now, &self.device.rate);
            if self.queues.is_idle_class(q) && self.queues.others_are_busy() {
                self.expire(cx, Reason::Exhausted);
            }
        }
        rq
    }

    /// Moves `rq` from `q` to the device.
    pub(super) fn dispatch(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId) {
        let meta = cx.requests.get(rq);
        self.queues[q].dispatched += 1;
        self.device.dispatched(meta, self.now, self.tunables.timeout);
        if self.slot.is_of(q) {
            self.slot.position = meta.end();
        }
        self.held[rq].state = State::Issued;
        let level = self.queues.level(q);
        self.take_out(q, rq, meta.sector);
        self.queues.groups.served(cx, level, meta, self.now);
        self.left_empty(cx, q);
    }

    /// Issues a requeued request, or one that goes ahead of everything.
    pub(super) fn issue_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held.take_head(rq);
        self.held[rq].state = State::Issued;
        let q = self.held[rq].queue;
        self.queues[q].dispatched += 1;
        self.device.in_driver += 1;
        let level = self.queues.level(q);
        self.queues.groups.served(cx, level, cx.requests.get(rq), self.now);
        self.queues.recount(q);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{add_queue, with_a_queue};
    use super::*;

    #[test]
    fn a_woken_queue_is_let_in_while_it_has_io_and_no_other_waker() {
        let let_in = |still: bool, busy: bool| {
            let (mut bfq, q) = with_a_queue("");
            let (woken, other) = (add_queue(&mut bfq), add_queue(&mut bfq));
            bfq.slot.queue = q;
            bfq.queues[q].waker.woken = Some(bfq.queues.link(woken));
            let waker = if still { q } else { other };
            bfq.queues[woken].waker.queue = Some(bfq.queues.link(waker));
            bfq.queues[woken].next = Some(RequestId::new(0, 0));
            bfq.queues[woken].busy = busy;
            bfq.queues.wf.set_budget(woken, 8);
            bfq.inject() == Some(woken)
        };
        assert!(let_in(true, true));
        assert!(!let_in(false, true), "it has found another one");
        assert!(!let_in(true, false));
    }
}
