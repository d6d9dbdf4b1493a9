//! The next request for the device (`spec/bfq.md` section 6), and of a queue (section 4.1): the nearest to the head,
//! with a preference for the ones ahead of it, and at times the oldest.

use super::budget::{self, Reason};
use super::wf2q::Class;
use super::{Bfq, HEAD, NOBODY, State};
use crate::{Cx, Pick};
use blkmq_core::{Instant, Nanos, RequestId};

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

    /// Returns whether requests that wait here hold all tags, so that none can arrive before one of them is issued.
    fn is_full(&self) -> bool {
        self.queued >= self.tags
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
        self.items[rq.index()].state = State::Issued;
        let level = self.wf.level(q);
        self.take_out(q, rq, meta.sector);
        self.groups.served(cx, level, &meta, self.now);
        self.left_empty(cx, q);
    }

    /// Issues a requeued request, or one that goes ahead of everything.
    fn issue_head(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        self.lists.remove(rq);
        let item = &mut self.items[rq.index()];
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

/// The parameters for comparing distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// A request farther back than this counts as starting from the beginning, in sectors.
    pub(crate) back_max: u64,
    /// The factor by which distances backwards count.
    pub(crate) penalty: u64,
}

impl Ways {
    /// The weighted distance from `head` to `sector`; `None` if it is too far back.
    #[inline]
    fn length(self, head: u64, sector: u64) -> Option<u64> {
        if sector >= head {
            Some(sector - head)
        } else if head - sector <= self.back_max {
            Some((head - sector).saturating_mul(self.penalty))
        } else {
            None
        }
    }

    /// Returns whether the request at `first` is preferred to the one at `second`, with the head at `head`.
    #[inline]
    #[must_use]
    pub(crate) fn prefer_first(self, head: u64, first: u64, second: u64) -> bool {
        match (self.length(head, first), self.length(head, second)) {
            (Some(a), Some(b)) if a == b => first >= second,
            (Some(a), Some(b)) => a < b,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // Both start from the beginning: the lower one comes first.
            (None, None) => first <= second,
        }
    }
}

impl Bfq {
    #[inline]
    pub(super) fn ways(&self) -> Ways {
        Ways { back_max: self.tunables.back_seek_max, penalty: self.tunables.back_seek_penalty }
    }

    /// The new request `new`, at `sector`, competes with the next request of `q`. Returns whether the next request
    /// has changed.
    #[inline]
    pub(super) fn compete(&mut self, q: u32, new: RequestId, sector: u64) -> bool {
        let queue = &self.queues[q];
        let next = match queue.next {
            Some(old) if queue.next_is_due => old,
            Some(old) => {
                let at = self.order.filed(old).expect("the next request is in the order").1;
                let first = self.ways().prefer_first(self.device.last_position, at, sector);
                if first { old } else { new }
            }
            None => new,
        };
        self.queues[q].next.replace(next) != Some(next)
    }

    /// Selects the next request of a queue after the one at `sector` has been taken out: the oldest, if it is due and
    /// its age was not checked in this slot yet; else the nearest.
    #[inline]
    pub(super) fn choose_after(&mut self, q: u32, sector: u64) {
        self.queues[q].next_is_due = false;
        self.queues[q].next = None;
        if self.queues[q].is_empty() {
            return;
        }
        let lane = self.queues[q].lane as usize;
        if !self.queues[q].fifo_checked {
            self.queues[q].fifo_checked = true;
            let oldest = self.lists.front(lane).expect("it is not empty");
            if self.due(oldest) <= self.now {
                self.queues[q].next_is_due = true;
                self.queues[q].next = Some(oldest);
                return;
            }
        }
        let ahead =
            self.order.at_or_after(lane, sector).or_else(|| self.order.at_or_after(lane, 0));
        let ahead = ahead.expect("it is not empty");
        self.queues[q].next = Some(match self.order.before(lane, sector) {
            Some(b) if !self.ways().prefer_first(sector, ahead.sector, b.sector) => b.rq,
            _ => ahead.rq,
        });
    }

    /// The time from which a request goes ahead of the order.
    #[inline]
    fn due(&self, rq: RequestId) -> Instant {
        self.items[rq.index()].due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: Ways = Ways { back_max: 1_000, penalty: 2 };

    #[test]
    fn ahead_is_better_than_behind_at_half_the_distance() {
        assert!(WAYS.prefer_first(10_000, 10_019, 9_990));
        assert!(!WAYS.prefer_first(10_000, 10_021, 9_990));
        assert!(WAYS.prefer_first(10_000, 10_020, 9_990), "as far: the higher sector");
        assert!(!WAYS.prefer_first(10_000, 9_990, 10_020), "whichever is named first");
    }

    #[test]
    fn too_far_back_is_from_the_beginning() {
        assert!(WAYS.prefer_first(10_000, 90_000, 8_999));
        assert!(!WAYS.prefer_first(10_000, 90_000, 9_000), "just near enough");
        assert!(WAYS.prefer_first(10_000, 100, 200) && !WAYS.prefer_first(10_000, 200, 100));
        assert!(WAYS.prefer_first(10_000, 100, 100), "the one that is there already");
    }
}
