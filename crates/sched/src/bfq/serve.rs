//! Service: the slot of the queue in service, the selection of the next request for the device (`spec/bfq.md` section
//! 6), the end of a slot (section 8), and the ways out of a queue: to the device and back (section 7), into another
//! request, or back to the submitter. Also the decision whether, and for how long, the device is kept idle for the
//! queue in service while it is empty (section 10).
//!
//! There are two reasons to idle. Idling is faster if the next request will be close and soon. Without idling, other
//! queues would take the share that this queue has by its weight.

use super::device::{self, Device};
use super::groups::Groups;
use super::habits::{self, Pace, Reason, Slot};
use super::held::{Plug, State, Ways};
use super::queues::Queues;
use super::tunables::Tunables;
use super::wf2q::When;
use super::{Bfq, NOBODY, Senders};
use crate::{Cx, Event, Pick, StatsLevel};
use blkmq_core::{GroupIndex, Instant, Nanos, RequestId};

/// The queue in service, and its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The queue in service.
    pub(super) queue: u32,
    began: Instant,
    /// The end of its time.
    ends: Instant,
    /// The end of the last request dispatched from a queue in service.
    pub(super) position: u64,
    /// The time until which the device is kept idle for the queue, if it is.
    pub(super) idle: Option<Instant>,
    /// The time at which the idling began.
    idle_began: Instant,
    /// Statistics were on at that time.
    idle_counted: bool,
}

impl Turn {
    pub(super) const NONE: Self = Self {
        queue: NOBODY,
        began: Instant::ZERO,
        ends: Instant::ZERO,
        position: 0,
        idle: None,
        idle_began: Instant::ZERO,
        idle_counted: false,
    };

    /// Begins the slot of `queue`.
    pub(super) fn begin(&mut self, queue: u32, now: Instant, length: Nanos) {
        (self.queue, self.began, self.ends) = (queue, now, now + length);
    }

    /// Returns whether `queue` is in service.
    #[inline]
    pub(super) fn is_of(&self, queue: u32) -> bool {
        debug_assert!(queue != NOBODY);
        self.queue == queue
    }

    /// Returns whether the queue in service has used up its time.
    #[inline]
    pub(super) fn is_timed_out(&self, now: Instant) -> bool {
        now >= self.ends
    }

    /// The length of a slot that ends at `now`, without idling that ended without a request.
    pub(super) fn length(&self, reason: Reason, now: Instant) -> Nanos {
        let until = if reason == Reason::TooIdle { self.idle_began } else { now };
        until.since(self.began)
    }

    /// Keeps the device idle for the queue in service, which is empty.
    fn begin_idling(&mut self, now: Instant, span: Nanos, stats: StatsLevel) {
        self.idle = Some(now + span);
        self.idle_began = now;
        self.idle_counted = stats >= StatsLevel::Full;
    }

    #[inline]
    pub(super) fn stop_idling(&mut self, cx: &Cx<'_>, groups: &Groups, now: Instant) {
        if self.idle.take().is_some()
            && self.idle_counted
            && let Some(level) = groups.in_turn
        {
            groups.note_queue(cx, level, Event::Idle(now.since(self.idle_began)));
        }
    }

    /// Shortens the current idling after the idle time was lowered to `span`.
    pub(super) fn shorten_idling(&mut self, span: Nanos) {
        self.idle = self.idle.map(|until| until.min(self.idle_began + span));
    }
}

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

/// The grounds on which the device is kept idle.
#[derive(Clone, Copy)]
pub(super) struct Idling<'a> {
    pub(super) queues: &'a Queues,
    pub(super) device: &'a Device,
    pub(super) tunables: &'a Tunables,
}

impl Idling<'_> {
    /// Returns whether the device should be kept idle for `q`, if `q` is empty.
    pub(super) fn is_better(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        if self.tunables.strict {
            return true;
        }
        if self.tunables.slice_idle == Nanos::ZERO || !queue.sync || self.queues.is_idle_class(q) {
            return false;
        }
        self.boosts(q) || self.is_needed(q)
    }

    /// Returns whether idling increases throughput.
    pub(super) fn boosts(self, q: u32) -> bool {
        let queue = &self.queues[q];
        let serial = !self.device.hw_tag.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.device.rotational && serial)
            || ((self.device.rotational || serial) && sequential);
        boosts && self.queues.raised_busy == 0
    }

    /// Returns whether `q` would get less than its share without idling.
    fn is_needed(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        let busy = self.queues.busy_queues();
        let exposed = queue.raising.is_raised()
            && (self.queues.raised_busy < busy || self.device.in_driver >= queue.dispatched + 4);
        exposed || self.queues.is_asymmetric(q) || busy == 1
    }

    /// The time for which the device is kept idle for `q`.
    pub(super) fn span(self, q: u32) -> Nanos {
        let queue = &self.queues[q];
        let span = self.tunables.slice_idle;
        if queue.raising.is_raised() {
            span.max(RAISED_IDLE)
        } else if queue.seeks.is_seeky() && !self.queues.is_asymmetric(q) {
            span.min(device::AT_ONCE)
        } else {
            span
        }
    }
}

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
            // The device is kept idle for the queue in service, until that time or its last completion.
            None => self.slot.idle.map_or(Pick::WaitCompletion, Pick::WaitUntil),
        }
    }

    /// The queue to serve, usually the one in service; `None` if the device is kept idle for it.
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

    /// Returns whether the slot of the queue in service, whose time is over, may end: not if time does not count, and
    /// not if the queue is empty and worth waiting for.
    fn may_end_for_time(&self) -> bool {
        let q = self.slot.queue;
        self.time_counts() && !(self.queues[q].is_empty() && self.idling().is_better(q))
    }

    /// Returns whether time counts: while the device is kept idle, only with at least a third of the budget left.
    fn time_counts(&self) -> bool {
        let (q, wf) = (self.slot.queue, &self.queues.wf);
        self.slot.idle.is_none() || habits::much_left(wf.budget(q), wf.service(q))
    }

    /// Returns whether an empty queue in service is waited for: not if its last process has left or sends elsewhere.
    fn is_waited_for(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.procs > 0
            && (self.slot.idle.is_some() || (queue.dispatched > 0 && self.idling().is_better(q)))
    }

    /// Begins the slot of the next queue.
    fn begin_slot(&mut self, cx: &Cx<'_>) {
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
        self.slot.begin(q, now, length);
        self.queues.groups.begin_turn(cx, self.queues.wf.level(q), now);
    }

    /// The queue to inject from, while the device is kept idle for the queue in service.
    fn inject(&mut self) -> Option<u32> {
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
    fn can_be_injected(&self, q: u32) -> bool {
        let Some(next) = self.queues[q].next else { return false };
        !self.slot.is_of(q) && self.charge_of(q, next) <= self.queues.budget_left(q)
    }

    /// The async queue of the only process of `q`, which is waited for, if the next request there is from that process.
    fn own_async(&self, q: u32) -> Option<u32> {
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

    /// The first queue that fits, of the queues that have been busy for longest.
    fn anybody_for(&mut self, q: u32) -> Option<u32> {
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
    fn is_too_large(&self, q: u32) -> bool {
        let next = self.queues[q].next.expect("it was found to have one");
        !self.device.rotational
            && self.device.in_driver >= 1
            && self.held[next].sectors >= habits::LARGE
    }

    /// Serves the next request of `q`.
    fn serve(&mut self, cx: &Cx<'_>, q: u32) -> RequestId {
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
    fn dispatch(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId) {
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

    /// Issues a requeued request, or one that goes ahead of all others.
    fn issue_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held.take_head(rq);
        self.held[rq].state = State::Issued;
        let q = self.held[rq].queue;
        self.queues[q].dispatched += 1;
        self.device.in_driver += 1;
        let level = self.queues.level(q);
        self.queues.groups.served(cx, level, cx.requests.get(rq), self.now);
        self.queues.recount(q);
    }

    /// Serves all of a plug, which has just arrived, in this order.
    pub(super) fn serve_together(&mut self, cx: &Cx<'_>, plug: &Plug<'_>, order: &[u8]) {
        let Plug { q, sectors, rqs, .. } = *plug;
        let queue = &mut self.queues[q];
        queue.serve(sectors, self.now);
        queue.dispatched += rqs.len() as u32;
        // The age of the oldest request is checked when another one is left. No request is due, since requests expire
        // after a millisecond at the earliest.
        queue.fifo_checked |= rqs.len() > 1;
        let level = self.queues.level(q);
        self.sampling.dispatched(rqs[usize::from(order[0])]);
        for nth in &order[..rqs.len()] {
            let meta = cx.requests.get(rqs[usize::from(*nth)]);
            self.queues.wf.serve(q, meta.sectors.into());
            self.device.dispatched(meta, self.now, self.tunables.timeout);
            self.queues.groups.served(cx, level, meta, self.now);
        }
        self.slot.position = self.device.last_position;
    }

    /// Takes a waiting request, filed at `sector`, out of the order of its queue, and finds the next one.
    #[inline]
    fn take_out(&mut self, q: u32, rq: RequestId, sector: u64) {
        let queue = &mut self.queues[q];
        self.held.take_out(queue, rq);
        if queue.next == Some(rq) {
            self.held.choose_after(queue, sector, self.now, Ways::of(&self.tunables));
            self.next_changed(q);
        }
        self.refile(q);
    }

    /// Takes an empty queue off the service tree, after a request was taken out.
    #[inline]
    fn left_empty(&mut self, cx: &Cx<'_>, q: u32) {
        let queue = &self.queues[q];
        if queue.is_empty() && queue.busy && !self.slot.is_of(q) {
            self.queues.retire(cx, q, self.now, &self.tunables);
        }
    }

    /// Removes a held request that was withdrawn, or fused into another one.
    pub(super) fn remove_held(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let item = self.held[rq];
        assert!(item.rq == rq, "{rq:?} is not held");
        let (q, level) = (item.queue, self.queues.level(item.queue));
        match item.state {
            State::Head => self.held.take_head(rq),
            State::Queued => {
                let sector = self.held.sector(rq).expect("it waits in the order");
                self.take_out(q, rq, sector);
            }
            State::Free | State::Issued => panic!("{rq:?} is not held"),
        }
        self.queues.groups.unqueued(cx, level, cx.requests.get(rq), self.now);
        if item.state == State::Queued {
            self.left_empty(cx, q);
        }
        self.release(cx, rq);
    }

    /// Accounts for an issued request that the device has returned.
    pub(super) fn back(&mut self, cx: &Cx<'_>, rq: RequestId, completed: Instant) {
        let q = self.held[rq].queue;
        if let Some(sample) = self.sampling.take(rq, completed, &self.device) {
            self.queues[q].injection.learn(completed, &sample);
        }
        let sparse = if self.slot.queue == NOBODY {
            None
        } else {
            let queue = &self.queues[self.slot.queue];
            queue.short_think.then_some(queue.dispatched + queue.queued)
        };
        self.device.sample(self.held.queued, sparse);
        self.device.completed(self.queues.link(q), completed, self.tunables.timeout);
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

    /// Decides, after a completion of the queue in service, whether to continue, to wait, or to end the slot.
    #[inline]
    fn after_completion(&mut self, cx: &Cx<'_>, q: u32) {
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

    /// Frees the record of a request that has completed, or was withdrawn or absorbed.
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

    /// Ends the idling after its time is over.
    #[inline(never)]
    pub(super) fn idled(&mut self, cx: &Cx<'_>) {
        self.slot.stop_idling(cx, &self.queues.groups, self.now);
        if self.slot.is_timed_out(self.now) {
            self.expire(cx, Reason::Timeout);
        } else if self.queues[self.slot.queue].is_empty() {
            self.expire(cx, Reason::TooIdle);
        }
    }

    /// Ends the slot of the queue in service.
    pub(super) fn expire(&mut self, cx: &Cx<'_>, reason: Reason) {
        let (q, now) = (self.slot.queue, self.now);
        self.slot.stop_idling(cx, &self.queues.groups, now);
        self.charge_slot(q, reason);
        let queue = &mut self.queues[q];
        if self.tunables.low_latency {
            if !queue.raising.is_raised() {
                queue.raising.started = now;
            }
            if queue.is_empty() {
                queue.run_empty(now, self.tunables.slice_idle);
            }
        }
        if queue.shared && queue.seeks.is_seeky() {
            queue.to_split = true;
        }
        let kept = reason == Reason::Preempted && self.idling().is_needed(q);
        if self.queues[q].is_empty() && !kept {
            if self.queues[q].dispatched == 0 {
                self.queues[q].idle_since = Some(now);
            }
            self.queues.take_off(cx, q, When::Expiring, now);
        } else {
            self.queues.wf.requeue(q, When::Expiring, now);
            self.queues[q].waiting_since = now;
        }
        self.queues.wf.end_slot(q);
        self.slot.queue = NOBODY;
        self.sampling.slot_ended();
        let whole = matches!(reason, Reason::Timeout | Reason::Exhausted);
        let queue = &mut self.queues[q];
        queue.back_soon = !queue.busy && !whole;
        if !queue.back_soon {
            self.queues.wf.set_service(q, 0);
        }
        self.queues.recount(q);
        self.queues.groups.end_turn(cx, now.since(self.slot.began));
        self.free_if_unused(cx, q);
    }

    /// Charges `q` for its slot, and sets its next budget.
    fn charge_slot(&mut self, q: u32, reason: Reason) {
        let (queue, tunables) = (&self.queues[q], &self.tunables);
        let pace = Pace {
            time: self.slot.length(reason, self.now),
            seeky: queue.seeks.is_seeky(),
            rotational: self.device.rotational,
        };
        let mut slot = Slot {
            reason,
            sync: queue.sync,
            raised: queue.raising.is_raised(),
            in_flight: queue.dispatched > 0,
            service: self.queues.wf.service(q),
            budget: queue.max_budget,
            max: self.device.max_budget(tunables),
        };
        let budget = self.queues.wf.budget(q);
        if let Some(total) = slot.charge_for_time(&pace, budget, tunables.timeout) {
            self.queues.wf.set_budget(q, budget.max(total));
            if total > slot.service {
                self.queues.wf.serve(q, total - slot.service);
            }
            slot.service = total;
        }
        if reason == Reason::Preempted && slot.sync && !slot.raised {
            return;
        }
        let mut budget = slot.next_budget();
        if self.device.warmth.is_warm() && tunables.max_budget == 0 {
            budget = budget.min(slot.max);
        }
        self.queues[q].max_budget = budget;
        if let Some(next) = self.queues[q].next {
            let budget = budget.max(self.charge_of(q, next));
            self.queues.wf.set_budget(q, budget);
        }
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
