//! The arrival of a request (`spec/bfq.md` section 5).

use super::budget::Reason;
use super::held::{Item, State, Ways};
use super::notes::Kind;
use super::wf2q::{From, ROOT, When};
use super::{Bfq, NOBODY, raising, senders};
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

    /// Records the state of a request that is held from now on.
    #[inline]
    pub(super) fn hold(&mut self, rq: RequestId, p: u32, q: u32, state: State, meta: &IoMeta) {
        let expire = self.tunables.fifo_expire[usize::from(self.queues[q].sync)];
        self.held.hold(Item {
            rq,
            queue: q,
            proc: p,
            owner: super::procs::Key::process(meta.owner),
            sectors: meta.sectors,
            state,
            since: self.now,
            due: self.now + expire,
        });
        self.procs.begin(p);
        self.queues[q].allocated += 1;
    }

    /// Updates the habits of the process on an arrival.
    #[inline]
    pub(super) fn learn_habits(&mut self, q: u32) {
        let (now, slice_idle) = (self.now, self.tunables.slice_idle);
        let idle_class = self.is_idle_class(q);
        let queue = &mut self.queues[q];
        // Of a queue that thinks for long also if the device was kept idle for it: or one that is always waited for would
        // keep the think time of a moment in which the machine stalled.
        let counts = !queue.busy || (queue.is_empty() && !queue.short_think);
        if counts && queue.dispatched == 0 {
            queue.think.arrived(now, slice_idle);
        }
        let just_split = queue.split.is_some_and(|at| now <= at + raising::LONG_IDLE);
        if idle_class || slice_idle == Nanos::ZERO || just_split {
            return;
        }
        let short = !queue.think.exceeds(Nanos(slice_idle.0 / 2));
        if short != queue.short_think {
            queue.short_think = short;
            self.think_time_changed(q);
        }
    }

    /// Adds a request to its queue.
    fn add(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId, meta: &IoMeta) {
        if self.queues[q].is_empty() {
            self.sample_first(q);
        }
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.sync {
            let idle = queue.is_empty() && queue.dispatched == 0;
            let idle = if idle { now.since(queue.think.last_end) } else { Nanos::ZERO };
            queue.share.arrived(now, idle);
        }
        self.held.file(&mut self.queues[q], rq, meta.sector);
        let queue = &self.queues[q];
        let factor = queue.raising.factor;
        let another = self.compete(q, rq, meta.sector);
        let level = self.wf.level(q);
        self.groups.queued(cx, level, Kind::of(meta), self.slot.is_on(level), now);
        let mut interactive = false;
        if self.queues[q].busy {
            self.raise_rare_async(q);
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
        if self.queues[q].sync && self.tunables.injection {
            self.look_for_waker(q);
            self.sample_arrival(q);
        }
    }

    /// Makes a queue busy (section 5.1). Returns whether it looks interactive.
    fn wake(&mut self, cx: &Cx<'_>, q: u32) -> bool {
        let now = self.now;
        let urgent = self.budget_on_wake(q);
        let queue = &mut self.queues[q];
        let forgiven = queue.idle_since.is_some_and(|at| now > at + senders::FORGIVEN);
        if !queue.just_created && queue.dispatched == 0 && forgiven {
            queue.in_burst = false;
        }
        queue.just_created = false;
        let interactive = self.raise_on_arrival(q);
        let queue = &mut self.queues[q];
        queue.backlogged = now;
        queue.waiting_since = now;
        queue.served = 0;
        queue.raising.soft_rt_due = false;
        queue.busy = true;
        let from = if queue.back_soon { From::WhereItStopped } else { From::Now };
        self.queues.link_busy(q);
        self.wf.activate(q, from, now);
        self.busy[self.wf.class(q) as usize] += 1;
        self.recount(q);
        if self.slot.queue != NOBODY && self.preempts(q, urgent) {
            self.expire(cx, Reason::Preempted);
        }
        interactive
    }

    /// Sets the budget with which a queue becomes busy. Returns whether it was away for so short a time that it
    /// continues immediately with its remaining budget.
    fn budget_on_wake(&mut self, q: u32) -> bool {
        let slices = Nanos(self.tunables.slice_idle.0.saturating_mul(3));
        let in_time = self.now <= self.queues[q].think.last_end + slices;
        let left = self.budget_left(q);
        let max_budget = self.queues[q].max_budget;
        let urgent = self.queues[q].back_soon && in_time && left > 0;
        self.wf.set_service(q, 0);
        if urgent {
            self.wf.set_budget(q, left.min(max_budget));
        } else {
            let next = self.queues[q].next.expect("it has just got one");
            self.wf.set_budget(q, max_budget.max(self.charge_of(q, next)));
            self.queues[q].back_soon = false;
        }
        urgent
    }

    /// Returns whether `q`, which has just become busy, should be served instead of the queue in service.
    fn preempts(&self, q: u32, urgent: bool) -> bool {
        let serving = self.slot.queue;
        let (new, old) = (&self.queues[q].raising, &self.queues[serving].raising);
        let urgent = urgent && new.factor >= old.factor;
        (urgent || self.outranks(q, serving) || !self.better_to_idle(serving))
            && self.wf.may_preempt()
    }

    /// Returns whether `q` has a higher class than `other`, or a larger weight. Between queues of different groups, the
    /// weights of the groups are compared.
    fn outranks(&self, q: u32, other: u32) -> bool {
        let (class, other_class) = (self.wf.class(q), self.wf.class(other));
        if class != other_class {
            return class < other_class;
        }
        let (level, other_level) = (self.wf.level(q), self.wf.level(other));
        let own = level == other_level;
        let claim = |q: u32, level: u32| {
            if own || level == ROOT { self.wf.weight(q) } else { self.wf.level_weight(level) }
        };
        claim(q, level) > claim(other, other_level)
    }

    /// The next request of a waiting queue has changed: its budget must suffice for it.
    pub(super) fn next_changed(&mut self, q: u32) {
        if self.slot.is_of(q) {
            // The budget of a queue in service does not change.
            return;
        }
        let Some(next) = self.queues[q].next else { return };
        let needed = self.charge_of(q, next).max(self.wf.service(q));
        let budget = self.queues[q].max_budget.max(needed);
        if budget != self.wf.budget(q) {
            self.wf.set_budget(q, budget);
            self.wf.requeue(q, When::Waiting, self.now);
        }
    }

    /// A request has arrived for which the device was kept idle.
    fn stop_waiting(&mut self, cx: &Cx<'_>, q: u32, sectors: u32) {
        let late = self.slot.is_timed_out(self.now);
        let may_grow = self.queues[q].queued == 1 && may_grow(sectors);
        if may_grow && !late && self.idling_boosts(q) {
            return;
        }
        self.slot.stop_idling(cx, &self.groups, self.now);
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
