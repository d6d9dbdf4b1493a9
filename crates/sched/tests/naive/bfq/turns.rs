//! Turns in the twin: sections 6 to 8, idling and groups (sections 10 and 17), raising and bursts (sections 9 and 13).

use super::{Place, Request, Sender, Twin};
use blkmq_core::{GroupIndex, Instant, Nanos, RequestId};
use blkmq_sched::Cx;
use blkmq_sched::bfq::values::Dispatch;
use blkmq_sched::bfq::wf2q::{Class, From, Keep, ROOT, When};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    TooIdle,
    Timeout,
    Exhausted,
    NoMore,
    Preempted,
}

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

impl Twin {
    pub(super) fn enter(&mut self, cx: &Cx<'_>) {
        if let Some(until) = self.idle_until.filter(|until| *until <= cx.now) {
            self.now = self.now.max(until);
            self.idle_until = None;
            let queue = self.serving.expect("the device was idle for somebody");
            if self.timed_out() {
                self.expire(Reason::Timeout);
            } else if self.waiting(queue) == 0 {
                self.expire(Reason::TooIdle);
            }
        }
        self.now = self.now.max(cx.now);
    }

    pub(super) fn timed_out(&self) -> bool {
        self.now >= self.slot_ends
    }

    /// Returns whether the slot may end when its time is over.
    fn time_counts(&self, queue: usize) -> bool {
        self.idle_until.is_none() || self.budget_left(queue) >= self.budget(queue) / 3
    }

    /// Selects the request to dispatch; `None` to keep the device idle, never while `draining`.
    pub(super) fn select(&mut self, draining: bool) -> Option<RequestId> {
        if let Some(q) = self.serving
            && self.timed_out()
            && self.time_counts(q)
            && !(self.waiting(q) == 0 && self.better_to_idle(q))
        {
            self.expire(Reason::Timeout);
        }
        loop {
            let q = match self.serving {
                Some(q) => q,
                None => self.begin_slot(),
            };
            let Some(next) = self.q(q).next else {
                let in_flight = self.in_flight(q) > 0;
                let waits = self.idle_until.is_some() || (in_flight && self.better_to_idle(q));
                if waits && self.has_sender(q) && !draining {
                    let other = self.inject(q);
                    if other.is_some() || self.all_waiting() < self.tags {
                        return self.q(other?).next;
                    }
                }
                self.expire(Reason::NoMore);
                continue;
            };
            if self.charge(next) <= self.budget_left(q) {
                self.idle_until = None;
                return Some(next);
            }
            self.expire(Reason::Exhausted);
        }
    }

    fn begin_slot(&mut self) -> usize {
        let q = self.engine.pick(self.now).expect("somebody is busy") as usize;
        self.serving = Some(q);
        self.assigned = (7 * self.assigned + 256) / 8;
        let (now, weight) = (self.now, self.weight(q));
        let queue = self.q_mut(q);
        queue.fifo_looked_at = false;
        let mut times = weight / u64::from(queue.priority.weight());
        if queue.factor == 3_000 {
            let since = queue.waiting_since.max(queue.raised_at);
            queue.raised_at += now.since(since);
            times = 1;
        }
        self.slot_began = now;
        self.slot_ends = now + Nanos(self.tunables.timeout.0.saturating_mul(times.max(1)));
        q
    }

    pub(super) fn dispatch(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        let Request { queue, sector, .. } = self.request(rq);
        let charge = self.charge(rq);
        let meta = *cx.requests.get(rq);
        let (now, serving) = (self.now, self.serving == Some(queue));
        let queue_mut = self.q_mut(queue);
        if queue_mut.served == 0 {
            queue_mut.first_io = now;
        }
        queue_mut.served += charge;
        if queue_mut.factor > 1 {
            queue_mut.raised_service += charge;
        }
        self.engine.serve(queue as u32, charge);
        if serving {
            self.sample_dispatch(rq);
            self.serving_position = meta.sector + u64::from(meta.sectors);
        }
        let dispatch = Dispatch {
            now: self.now,
            sectors: meta.sectors,
            far: self.far(self.last_position, &meta),
            in_driver: self.in_driver(),
            last_completion: self.last_completion,
        };
        if self.rate.dispatched(&dispatch) {
            self.adapt_budget();
        }
        self.last_position = meta.sector + u64::from(meta.sectors);
        let at = self.at(rq);
        self.requests[at].place = Place::Device;
        self.taken_out(queue, rq, sector);
        if serving {
            self.review_raising(queue);
            if self.class(queue) == Class::Idle && self.busy().len() > 1 {
                self.expire(Reason::Exhausted);
            }
        }
        rq
    }

    /// Finds the next request of `queue` after `rq`, at `sector`, was taken out.
    pub(super) fn taken_out(&mut self, queue: usize, rq: RequestId, sector: u64) {
        if self.q(queue).next == Some(rq) {
            let next = self.next_after(queue, sector);
            self.q_mut(queue).next = next;
            if next.is_some() {
                self.next_changed(queue);
            }
        }
        self.refile(queue);
        if self.waiting(queue) == 0 && self.q(queue).busy && self.serving != Some(queue) {
            self.retire(queue);
        }
    }

    fn next_after(&mut self, queue: usize, sector: u64) -> Option<RequestId> {
        let mut its = self.requests.clone();
        its.retain(|r| r.queue == queue && r.place == Place::Waiting);
        self.q_mut(queue).next_is_due = false;
        let oldest = its.first().copied()?;
        if !self.q(queue).fifo_looked_at {
            self.q_mut(queue).fifo_looked_at = true;
            if oldest.due <= self.now {
                self.q_mut(queue).next_is_due = true;
                return Some(oldest.rq);
            }
        }
        its.sort_by_key(|r| (r.sector, r.filing));
        let ahead = its.iter().find(|r| r.sector >= sector).or(its.first()).copied();
        let below = its.iter().filter(|r| r.sector < sector).map(|r| r.sector).max();
        let behind = its.iter().find(|r| Some(r.sector) == below).copied();
        match (ahead, behind) {
            (Some(a), Some(b)) => Some(self.nearer(sector, &a, &b).rq),
            (a, b) => a.or(b).map(|r| r.rq),
        }
    }

    /// The nearer one of two requests (section 4.1). `first` wins a tie of equal sectors.
    pub(super) fn nearer<'a>(
        &self,
        head: u64,
        first: &'a Request,
        second: &'a Request,
    ) -> &'a Request {
        let way = |r: &Request| {
            let back = head.saturating_sub(r.sector);
            if back == 0 {
                Some(r.sector - head)
            } else if back <= self.tunables.back_seek_max {
                Some(back.saturating_mul(self.tunables.back_seek_penalty))
            } else {
                None
            }
        };
        let second_wins = match (way(first), way(second)) {
            (None, None) => second.sector < first.sector,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(a), Some(b)) => b < a || (a == b && second.sector > first.sector),
        };
        if second_wins { second } else { first }
    }

    /// Computes the time at which the next request makes a queue soft real-time, or defers that to its last completion.
    fn ran_empty(&mut self, queue: usize) {
        if self.in_flight(queue) == 0 {
            self.expect_soft_rt(queue);
        } else {
            self.q_mut(queue).soft_rt_due = true;
        }
    }

    fn retire(&mut self, queue: usize) {
        if self.tunables.low_latency {
            self.ran_empty(queue);
        }
        self.engine.deactivate(queue as u32, Keep::Lead, When::Waiting, self.now);
        self.engine.set_budget(queue as u32, 0);
        self.engine.set_service(queue as u32, 0);
        self.q_mut(queue).busy = false;
    }

    pub(super) fn back(&mut self, rq: RequestId, completed: Instant) {
        let queue = self.request(rq).queue;
        self.sample_completion(rq, completed);
        self.sample_device();
        let at = self.at(rq);
        // The request is neither waiting nor in the device until the caller decides its place.
        self.requests[at].place = Place::Head;
        let in_flight = self.in_flight(queue);
        let q = self.q_mut(queue);
        q.think.last_end = q.think.last_end.max(completed);
        if in_flight == 0 && !q.busy {
            q.idle_since = Some(completed);
        }
        if self.rate.completed(completed, completed.since(self.last_completion)) {
            self.adapt_budget();
        }
        self.last_completion = self.last_completion.max(completed);
        self.last_completed = Some(self.q(queue).born);
        if self.q(queue).soft_rt_due && in_flight == 0 {
            self.expect_soft_rt(queue);
        }
        if self.serving != Some(queue) {
            return;
        }
        let empty = self.waiting(queue) == 0;
        if empty && self.better_to_idle(queue) {
            if in_flight == 0 && self.idle_until.is_none() {
                self.idle_began = self.now;
                self.idle_until = Some(self.now + self.idle_span(queue));
            }
        } else if self.timed_out() && self.time_counts(queue) {
            self.expire(Reason::Timeout);
        } else if empty {
            self.expire(Reason::NoMore);
        }
    }

    pub(super) fn idle_span(&self, queue: usize) -> Nanos {
        let (q, slice) = (self.q(queue), self.tunables.slice_idle);
        match (q.factor > 1, q.seeks.is_seeky() && !self.asymmetric(queue)) {
            (true, _) => slice.max(ms(20)),
            (false, true) => slice.min(ms(2)),
            (false, false) => slice,
        }
    }

    /// Ends a slot (section 8, steps 1 to 6).
    pub(super) fn expire(&mut self, reason: Reason) {
        let queue = self.serving.expect("somebody is in service");
        let id = queue as u32;
        self.idle_until = None;
        self.charge_time(queue, reason);
        if self.tunables.low_latency {
            let now = self.now;
            if self.q(queue).factor == 1 {
                self.q_mut(queue).raised_at = now;
            }
            if self.waiting(queue) == 0 {
                self.ran_empty(queue);
            }
        }
        self.feed_back(queue, reason);
        let q = self.q_mut(queue);
        q.to_split |= q.shared && q.seeks.is_seeky();
        let stays = reason == Reason::Preempted && self.needed(queue);
        if self.waiting(queue) == 0 && !stays {
            if self.in_flight(queue) == 0 {
                self.q_mut(queue).idle_since = Some(self.now);
            }
            self.engine.deactivate(id, Keep::Lead, When::Expiring, self.now);
            self.q_mut(queue).busy = false;
        } else {
            self.engine.requeue(id, When::Expiring, self.now);
            self.q_mut(queue).waiting_since = self.now;
        }
        self.engine.end_slot(id);
        self.serving = None;
        self.sampling.armed = false;
        let used_up = reason == Reason::Timeout || reason == Reason::Exhausted;
        let back_soon = !self.q(queue).busy && !used_up;
        self.q_mut(queue).back_soon = back_soon;
        if !back_soon {
            self.engine.set_service(id, 0);
        }
        self.free_if_unused(queue);
    }

    fn charge_time(&mut self, queue: usize, reason: Reason) {
        let id = queue as u32;
        let end = if reason == Reason::TooIdle { self.idle_began } else { self.now };
        let mut time = end.since(self.slot_began);
        let (service, max) = (self.service(queue), self.max_budget());
        let seeky = self.q(queue).seeks.is_seeky();
        let mut slow = false;
        if self.q(queue).sync {
            slow = if time > ms(20) { service < max / 2 } else { seeky };
            if time < ms(1) {
                time = if self.rotational { ms(8) } else { ms(2) };
            }
        }
        let left = self.budget_left(queue);
        slow |= reason == Reason::Timeout && left >= self.budget(queue) / 3;
        if self.q(queue).factor > 1 || !slow {
            return;
        }
        let timeout = self.tunables.timeout;
        let by_time = u128::from(max) * u128::from(time.0.min(timeout.0)) / u128::from(timeout.0);
        let total = service.max(by_time as u64);
        if self.budget(queue) < total {
            self.engine.set_budget(id, total);
        }
        if total > service {
            self.engine.serve(id, total - service);
        }
    }

    fn feed_back(&mut self, queue: usize, reason: Reason) {
        let (max, old) = (self.max_budget(), self.q(queue).max_budget);
        let min = max / 32;
        let (sync, raised) = (self.q(queue).sync, self.q(queue).factor > 1);
        let new = match (sync, raised, reason) {
            (false, _, _) => max,
            (true, true, _) => 2 * min,
            (true, false, Reason::Preempted) => return,
            (true, false, Reason::TooIdle) if self.in_flight(queue) > 0 => max.min(2 * old),
            (true, false, Reason::TooIdle) => {
                if old > 5 * min {
                    old - 4 * min
                } else {
                    min
                }
            }
            (true, false, Reason::Timeout) => max.min(2 * old),
            (true, false, Reason::Exhausted) => max.min(4 * old),
            (true, false, Reason::NoMore) => min.max(self.service(queue)),
        };
        let capped = self.assigned >= 194 && self.tunables.max_budget == 0;
        let new = if capped { new.min(max) } else { new };
        self.q_mut(queue).max_budget = new;
        if let Some(next) = self.q(queue).next {
            let budget = new.max(self.charge(next));
            self.engine.set_budget(queue as u32, budget);
        }
    }

    /// Adapts the budget of a waiting queue to its next request.
    pub(super) fn next_changed(&mut self, queue: usize) {
        if self.serving == Some(queue) {
            return;
        }
        let Some(next) = self.q(queue).next else { return };
        let least = self.charge(next).max(self.service(queue));
        let budget = least.max(self.q(queue).max_budget);
        if budget != self.budget(queue) {
            self.engine.set_budget(queue as u32, budget);
            self.engine.requeue(queue as u32, When::Waiting, self.now);
        }
    }

    /// Returns whether `queue` has a higher class than `other`, or a larger weight on the level where the two meet.
    pub(super) fn outranks(&self, queue: usize, other: usize) -> bool {
        let (a, b) = (self.class(queue), self.class(other));
        if a != b {
            return a < b;
        }
        let level = |q: usize| self.engine.level(q as u32);
        let claim = |q: usize| {
            if level(q) == ROOT || level(queue) == level(other) {
                self.weight(q)
            } else {
                self.engine.view_level(level(q)).weight.into()
            }
        };
        claim(queue) > claim(other)
    }
}

impl Twin {
    pub(super) fn asymmetric(&self, queue: usize) -> bool {
        let classes = Class::ALL.map(|c| self.busy().into_iter().any(|q| self.class(q) == c));
        if self.groups_pending() > 1 || classes.into_iter().filter(|c| *c).count() > 1 {
            return true;
        }
        let ordinary = self.pending().into_iter().filter(|q| self.q(*q).factor == 1);
        let weights: Vec<(usize, u32)> =
            ordinary.map(|q| (q, self.q(q).priority.weight())).collect();
        let least = weights.iter().map(|(_, w)| *w).min();
        let differ = weights.iter().any(|(_, w)| Some(*w) != least);
        let its = weights.iter().find(|(q, _)| *q == queue).map(|(_, w)| *w);
        differ && (its.is_none() || its != least)
    }

    pub(super) fn boosts(&self, queue: usize) -> bool {
        let q = self.q(queue);
        let serial = self.device_queues == Some(false);
        let steady = !q.seeks.is_seeky() && q.share.is_bound() && q.short_think;
        let faster = match (self.rotational, serial) {
            (true, true) => true,
            (false, false) => false,
            _ => steady,
        };
        faster && self.raised_busy() == 0
    }

    fn needed(&self, queue: usize) -> bool {
        let busy = self.busy().len();
        let raised = self.q(queue).factor > 1
            && (self.raised_busy() < busy || self.in_driver() >= self.in_flight(queue) + 4);
        self.has_sender(queue) && (raised || self.asymmetric(queue) || busy == 1)
    }

    pub(super) fn better_to_idle(&self, queue: usize) -> bool {
        if !self.has_sender(queue) {
            return false;
        }
        let never = self.tunables.slice_idle == Nanos::ZERO
            || !self.q(queue).sync
            || self.class(queue) == Class::Idle;
        self.tunables.strict || (!never && (self.boosts(queue) || self.needed(queue)))
    }

    fn sample_device(&mut self) {
        self.device_most = self.device_most.max(self.in_driver());
        if !self.rotational || self.device_queues == Some(true) {
            return;
        }
        if self.in_driver() + self.all_waiting() <= 3 {
            return;
        }
        if let Some(q) = self.serving
            && self.q(q).short_think
            && self.in_flight(q) + self.waiting(q) < 3
            && self.in_driver() < 3
        {
            return;
        }
        self.device_samples += 1;
        if self.device_samples == 33 {
            self.device_queues = Some(self.device_most > 3);
            (self.device_samples, self.device_most) = (0, 0);
        }
    }
}

/// Groups.
impl Twin {
    pub(super) fn level_of(&self, group: GroupIndex) -> u32 {
        self.levels.get(&group).copied().unwrap_or(ROOT)
    }

    pub(super) fn move_queue(&mut self, queue: usize, level: u32) {
        let id = queue as u32;
        if self.engine.level(id) == level {
            return;
        }
        if self.serving == Some(queue) {
            self.expire(Reason::Preempted);
        }
        if self.queues[queue].is_none() {
            return;
        }
        let busy = self.q(queue).busy;
        if busy {
            self.engine.deactivate(id, Keep::Nothing, When::Waiting, self.now);
        }
        self.engine.move_to(id, level);
        if busy {
            self.engine.activate(id, From::Now, self.now);
            self.q_mut(queue).waiting_since = self.now;
        }
        self.refile(queue);
    }

    pub(super) fn remove_group(&mut self, group: GroupIndex) {
        let Some(level) = self.levels.get(&group).copied() else { return };
        let Some(parent) = self.engine.parent(level) else { return };
        self.senders.retain(|sender, _| !matches!(sender, Sender::Async(l, _) if *l == level));
        let mut all: Vec<usize> = self.existing().collect();
        all.sort_by_key(|q| (!self.q(*q).busy, self.q(*q).busy_number));
        for q in all {
            if self.engine.level(q as u32) == level {
                self.free_if_unused(q);
            }
            if self.queues[q].is_some() && self.engine.level(q as u32) == level {
                self.move_queue(q, parent);
            }
        }
        self.engine.remove_level(level);
        self.levels.values_mut().filter(|l| **l == level).for_each(|l| *l = parent);
    }

    pub(super) fn free_if_unused(&mut self, queue: usize) {
        let none_left = self.requests.iter().all(|r| r.queue != queue);
        let exists = self.queues[queue].is_some();
        if exists && none_left && !self.has_sender(queue) && self.serving != Some(queue) {
            if self.q(queue).busy {
                self.retire(queue);
            }
            self.engine.forget(queue as u32);
            self.queues[queue] = None;
            self.burst_leave(queue);
        }
    }
}

impl Twin {
    /// Passes the wanted class and weight of a queue to the engine.
    pub(super) fn want(&mut self, queue: usize) {
        let (priority, factor) = (self.q(queue).priority, self.q(queue).factor);
        self.engine.want(queue as u32, priority.class, priority.weight() * factor, factor);
    }

    fn set_factor(&mut self, queue: usize, factor: u32) {
        self.q_mut(queue).factor = factor;
        self.want(queue);
    }

    /// Begins or continues the raising of a queue that becomes busy. Returns whether it looks interactive.
    pub(super) fn raise_on_arrival(&mut self, queue: usize) -> bool {
        let (now, in_flight) = (self.now, self.in_flight(queue));
        let preference = self.rate.preference();
        let q = self.q(queue).clone();
        let ordinary = !q.in_burst && q.priority.level == 4;
        let long = q.idle_since.is_none_or(|at| now > at + Nanos::from_secs(2));
        let interactive = ordinary && in_flight == 0 && long;
        let soft_rt =
            ordinary && in_flight == 0 && !q.seeks.is_totally_seeky() && now > q.soft_rt_after;
        if !self.tunables.low_latency || q.just_split(now) {
            return interactive;
        }
        if q.factor > 1 {
            if interactive {
                self.q_mut(queue).raised_for = preference;
                self.set_factor(queue, 30);
            } else if q.in_burst {
                self.set_factor(queue, 1);
            } else if soft_rt {
                if q.factor != 3_000 {
                    self.q_mut(queue).interrupted = Some(q.raised_at);
                    self.q_mut(queue).raised_for = Nanos::from_millis(300);
                }
                self.q_mut(queue).raised_at = now;
                self.set_factor(queue, 3_000);
            }
        } else if q.sync && (!q.shared || q.stable) && (interactive || soft_rt) {
            let mut_q = self.q_mut(queue);
            mut_q.raised_service = 0;
            mut_q.interrupted = None;
            mut_q.raised_for = if interactive { preference } else { Nanos::from_millis(300) };
            self.set_factor(queue, if interactive { 30 } else { 3_000 });
            let short = self.max_budget() / 32 * 2;
            let budget = self.budget(queue).min(short);
            self.engine.set_budget(queue as u32, budget);
            let most = self.q(queue).max_budget;
            self.q_mut(queue).max_budget = most.min(short);
        }
        interactive
    }

    pub(super) fn raise_rare_async(&mut self, queue: usize) {
        let (now, preference) = (self.now, self.rate.preference());
        let q = self.q(queue);
        let rare = now > q.raised_at + Nanos::from_millis(500);
        if self.tunables.low_latency && q.factor == 1 && !q.sync && rare {
            self.q_mut(queue).raised_for = preference;
            self.set_factor(queue, 30);
        }
    }

    pub(super) fn end_raising(&mut self, queue: usize) {
        let now = self.now;
        let q = self.q_mut(queue);
        (q.raised_at, q.raised_for) = (now, Nanos::ZERO);
        self.set_factor(queue, 1);
    }

    /// Decides, after service, whether the raising of the queue in service ends.
    fn review_raising(&mut self, queue: usize) {
        let q = self.q(queue).clone();
        if q.factor == 1 {
            return;
        }
        let preference = self.rate.preference();
        let soft_rt = q.factor == 3_000;
        let over = self.now > q.raised_at + q.raised_for;
        let back = q.interrupted.filter(|since| soft_rt && self.now <= *since + preference);
        if q.in_burst {
            self.end_raising(queue);
        } else if over || (soft_rt && q.seeks.is_totally_seeky()) {
            match back {
                Some(since) => {
                    self.q_mut(queue).raised_at = since;
                    self.q_mut(queue).raised_for = preference;
                    self.set_factor(queue, 30);
                }
                None => self.end_raising(queue),
            }
        }
        if self.q(queue).factor == 30 && self.q(queue).raised_service > 120_000 {
            self.end_raising(queue);
        }
        let plain = u64::from(self.q(queue).priority.weight());
        if self.q(queue).factor == 1 && self.weight(queue) > plain {
            self.engine.reweigh(queue as u32);
        }
    }

    fn expect_soft_rt(&mut self, queue: usize) {
        let slack = Nanos(self.tunables.slice_idle.0 + 4_000_000);
        let soon = self.now + slack;
        let q = self.q_mut(queue);
        let at_rate = q.backlogged + Nanos(q.served * 1_000_000_000 / 7_000);
        q.soft_rt_after = q.soft_rt_after.max(at_rate).max(soon);
        q.soft_rt_due = false;
    }

    pub(super) fn join_burst(&mut self, queue: usize) {
        let calm = self.busy().is_empty();
        if self.burst.is_empty() && !self.burst_large && !calm {
            return;
        }
        let level = self.engine.level(queue as u32);
        let late = self.now > self.burst_last + Nanos::from_millis(180);
        self.burst_last = self.now;
        if late || level != self.burst_level {
            self.burst.clear();
            self.burst.extend(calm.then_some(queue));
            (self.burst_large, self.burst_level) = (false, level);
        } else if self.burst_large {
            self.q_mut(queue).in_burst = true;
        } else {
            self.burst.push(queue);
            if self.burst.len() == 8 {
                self.burst_large = true;
                let members = std::mem::take(&mut self.burst);
                members.into_iter().for_each(|q| self.q_mut(q).in_burst = true);
            }
        }
    }

    fn burst_leave(&mut self, queue: usize) {
        self.burst.retain(|q| *q != queue);
    }
}
