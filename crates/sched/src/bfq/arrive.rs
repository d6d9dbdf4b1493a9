//! The arrival of a request (`spec/bfq.md` section 5).

use super::budget::Reason;
use super::held::{Item, State, Ways};
use super::notes::Kind;
use super::procs::Key;
use super::wf2q::{From, When};
use super::{Bfq, NOBODY};
use crate::Cx;
use blkmq_core::{IoMeta, Nanos, RequestId};

/// A single request below this many sectors may still grow if the device waits a little longer.
const SMALL: u32 = 32;

/// Returns whether a single request of this many sectors might still grow.
pub(super) fn may_grow(sectors: u32) -> bool {
    sectors < SMALL
}

impl Bfq {
    /// Files a request in the order of its queue.
    pub(super) fn arrive(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let meta = cx.requests.get(rq);
        let (p, q) = self.sender(cx, meta);
        let q = if self.queues[q].sync { self.cooperate(cx, p, q, meta) } else { q };
        if self.queues[q].sync {
            self.learn_habits(q);
        }
        let queue = &mut self.queues[q];
        queue.seeks.push(self.device.is_far(queue.last_end, meta));
        self.hold(rq, p, q, State::Queued, meta);
        self.add(cx, q, rq, meta);
        self.queues[q].last_end = meta.end();
        if self.slot.is_of(q) && self.slot.idle.is_some() {
            self.stop_waiting(cx, q, meta.sectors);
        }
    }

    /// Inserts a request that goes ahead of everything.
    pub(super) fn arrive_at_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let meta = cx.requests.get(rq);
        let (p, q) = self.sender(cx, meta);
        self.hold(rq, p, q, State::Head, meta);
        self.push_head(cx, rq);
    }

    /// Inserts a requeued request, or one that goes ahead of everything.
    pub(super) fn push_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held.push_head(rq);
        let (level, kind) = (self.queues.level(self.held[rq].queue), Kind::of(cx.requests.get(rq)));
        self.queues.groups.queued(cx, level, kind, self.slot.is_on(level), self.now);
    }

    /// Records the state of a request that is held from now on.
    #[inline]
    pub(super) fn hold(&mut self, rq: RequestId, p: u32, q: u32, state: State, meta: &IoMeta) {
        let queue = &mut self.queues[q];
        self.held.hold(Item {
            rq,
            queue: q,
            proc: p,
            owner: Key::process(meta.owner),
            sectors: meta.sectors,
            state,
            since: self.now,
            due: self.now + self.tunables.fifo_expire[usize::from(queue.sync)],
        });
        self.procs.begin(p);
        queue.allocated += 1;
    }

    /// Updates the habits of the process on an arrival.
    #[inline]
    pub(super) fn learn_habits(&mut self, q: u32) {
        let idle_class = self.queues.is_idle_class(q);
        self.queues[q].learn_habits(self.now, self.tunables.slice_idle, idle_class);
    }

    /// Adds a request to its queue.
    pub(super) fn add(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId, meta: &IoMeta) {
        if self.queues[q].is_empty() {
            self.sample_first(q);
        }
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.sync {
            queue.share.arrived(now, queue.idle_until(now));
        }
        let factor = queue.raising.factor;
        self.held.file(queue, rq, meta.sector);
        let another = self.compete(q, rq, meta.sector);
        let level = self.queues.level(q);
        self.queues.groups.queued(cx, level, Kind::of(meta), self.slot.is_on(level), now);
        let mut interactive = false;
        if self.queues[q].busy {
            if self.tunables.low_latency {
                self.queues.raise_rare_async(q, now, &self.device.rate);
            }
            if another {
                self.next_changed(q);
            }
        } else {
            interactive = self.wake(cx, q);
        }
        self.refile(q);
        let raising = &mut self.queues[q].raising;
        if self.tunables.low_latency && (factor == 1 || raising.factor == 1 || interactive) {
            raising.started = now;
        }
    }

    /// The request `rq`, at `sector`, competes with the next request of `q`. Returns whether the next one has changed.
    #[inline]
    pub(super) fn compete(&mut self, q: u32, rq: RequestId, sector: u64) -> bool {
        let (head, ways) = (self.device.last_position, Ways::of(&self.tunables));
        self.held.compete(&mut self.queues[q], rq, sector, head, ways)
    }

    /// A queue that had no request waiting gets one: samples its arrival for wakers and injection.
    #[inline]
    pub(super) fn sample_first(&mut self, q: u32) {
        if !self.queues[q].sync || !self.tunables.injection {
            return;
        }
        if let Some(last) = self.device.last_completed {
            let since = self.now.since(self.device.last_completion);
            self.queues.look_for_waker(q, last, since, self.now, self.tunables.slice_idle);
        }
        let queue = &mut self.queues[q];
        let (injection, in_service) = (&mut queue.injection, self.slot.is_of(q));
        let in_driver = self.device.in_driver;
        self.sampling.arrived(injection, queue.short_think, in_service, in_driver, self.now);
    }

    /// Makes a queue busy (section 5.1). Returns whether it looks interactive.
    pub(super) fn wake(&mut self, cx: &Cx<'_>, q: u32) -> bool {
        let now = self.now;
        let urgent = self.budget_on_wake(q);
        self.queues[q].wake(now);
        let interactive = self.queues.raise_on_arrival(q, now, &self.device, &self.tunables);
        let from = if self.queues[q].back_soon { From::WhereItStopped } else { From::Now };
        self.queues.put_on(q, from, now);
        if self.slot.queue != NOBODY && self.preempts(q, urgent) {
            self.expire(cx, Reason::Preempted);
        }
        interactive
    }

    /// Sets the budget with which a queue becomes busy. Returns whether it was away for so short a time that it
    /// continues immediately with its remaining budget.
    pub(super) fn budget_on_wake(&mut self, q: u32) -> bool {
        let slices = Nanos(self.tunables.slice_idle.0.saturating_mul(3));
        let queue = &self.queues[q];
        let in_time = self.now <= queue.think.last_end + slices;
        let (left, max_budget) = (self.queues.budget_left(q), queue.max_budget);
        let urgent = queue.back_soon && in_time && left > 0;
        self.queues.wf.set_service(q, 0);
        if urgent {
            self.queues.wf.set_budget(q, left.min(max_budget));
        } else {
            let next = self.queues[q].next.expect("it has just got one");
            let budget = max_budget.max(self.charge_of(q, next));
            self.queues.wf.set_budget(q, budget);
            self.queues[q].back_soon = false;
        }
        urgent
    }

    /// Returns whether `q`, which has just become busy, should be served instead of the queue in service.
    pub(super) fn preempts(&self, q: u32, urgent: bool) -> bool {
        let serving = self.slot.queue;
        let (new, old) = (&self.queues[q].raising, &self.queues[serving].raising);
        let urgent = urgent && new.factor >= old.factor;
        (urgent || self.queues.outranks(q, serving) || !self.idling().is_better(serving))
            && self.queues.wf.may_preempt()
    }

    /// The next request of a waiting queue has changed: its budget must suffice for it.
    pub(super) fn next_changed(&mut self, q: u32) {
        if self.slot.is_of(q) {
            // The budget of a queue in service does not change.
            return;
        }
        let Some(next) = self.queues[q].next else { return };
        let needed = self.charge_of(q, next).max(self.queues.wf.service(q));
        let budget = self.queues[q].max_budget.max(needed);
        if budget != self.queues.wf.budget(q) {
            self.queues.wf.set_budget(q, budget);
            self.queues.wf.requeue(q, When::Waiting, self.now);
        }
    }

    /// A request has arrived for which the device was kept idle.
    pub(super) fn stop_waiting(&mut self, cx: &Cx<'_>, q: u32, sectors: u32) {
        let late = self.slot.is_timed_out(self.now);
        let may_grow = self.queues[q].queued == 1 && may_grow(sectors);
        if may_grow && !late && self.idling().boosts(q) {
            return;
        }
        self.slot.stop_idling(cx, &self.queues.groups, self.now);
        if late {
            self.expire(cx, Reason::Timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, with_a_queue};
    use super::*;

    #[test]
    fn a_queue_that_was_split_off_keeps_its_habits_for_two_seconds() {
        let learns = |after: Nanos| {
            let (mut bfq, q) = with_a_queue("");
            bfq.queues[q].split = Some(at(7));
            // Nothing is known, which counts as short.
            bfq.queues[q].short_think = false;
            bfq.now = at(7) + after;
            bfq.learn_habits(q);
            bfq.queues[q].short_think
        };
        assert!(!learns(Nanos::from_secs(2)));
        assert!(learns(Nanos(2_000_000_001)));
    }
}
