//! Arrivals and departures in the twin: sections 4 and 5, and the limits on tags (section 15).

use super::turns::Reason;
use super::{Injection, Place, Proc, Queue, Request, Sender, Twin, Waker, is_sync};
use blkmq_core::{IoMeta, Nanos, Owner, RequestId};
use blkmq_sched::Used;
use blkmq_sched::bfq::values::{IoShare, Priority, Seeks, ThinkTime};
use blkmq_sched::bfq::wf2q::{Class, From};

impl Twin {
    pub(super) fn sender_of(&self, io: &IoMeta) -> Sender {
        if is_sync(io) {
            return Sender::Owner(io.owner.0);
        }
        Sender::Async(self.level_of(io.group), Priority::of(io.ioprio).number())
    }

    /// The queue of an I/O, created if necessary, in its group and with its priority.
    pub(super) fn queue_of(&mut self, io: &IoMeta) -> usize {
        let (sender, level) = (self.sender_of(io), self.level_of(io.group));
        let priority = Priority::of(io.ioprio);
        let Some(proc) = self.senders.get_mut(&sender) else {
            let (ioprio, group) = (io.ioprio, Some(io.group));
            let proc = Proc { queue: None, ioprio, group, saved: None, twin: None };
            self.senders.insert(sender, proc);
            return self.new_queue(sender, level, priority);
        };
        let queue = proc.queue.expect("it has one between calls");
        let same = proc.ioprio == io.ioprio && proc.group == Some(io.group);
        (proc.ioprio, proc.group) = (io.ioprio, Some(io.group));
        if same && !self.q(queue).to_split {
            return queue;
        }
        if self.q(queue).shared && self.engine.level(queue as u32) != level {
            // The other senders stay in their group.
            self.sender_mut(sender).queue = None;
            self.free_if_unused(queue);
            return self.new_queue(sender, level, priority);
        }
        self.move_queue(queue, level);
        if self.q(queue).priority != priority {
            self.q_mut(queue).priority = priority;
            self.want(queue);
        }
        let q = self.q(queue);
        if q.to_split && q.shared && !q.stable { self.split(sender, queue) } else { queue }
    }

    pub(super) fn new_queue(&mut self, sender: Sender, level: u32, priority: Priority) -> usize {
        let free = self.queues.iter().position(Option::is_none);
        let queue = free.expect("scripts have few senders");
        let (now, sync) = (self.now, matches!(sender, Sender::Owner(_)));
        let born = self.number();
        self.queues[queue] = Some(Queue {
            born,
            created: now,
            sync,
            is_of_threads: matches!(sender, Sender::Owner(owner) if Owner(owner).is_thread()),
            priority,
            busy: false,
            busy_number: 0,
            next: None,
            max_budget: self.max_budget() * 2 / 3,
            back_soon: false,
            fifo_looked_at: false,
            next_is_due: false,
            just_created: true,
            idle_since: None,
            waiting_since: now,
            backlogged: now,
            served: 0,
            think: ThinkTime::new(now),
            short_think: sync && priority.class != Class::Idle,
            share: IoShare::new(now),
            seeks: Seeks::NEW,
            last_end: 0,
            in_burst: false,
            factor: 1,
            raised_for: Nanos::ZERO,
            raised_at: now,
            interrupted: None,
            raised_service: 0,
            soft_rt_after: now,
            soft_rt_due: false,
            first_io: now,
            shared: false,
            stable: false,
            to_split: false,
            split: None,
            filed: None,
            injection: Injection::NEW,
            waker: Waker::new(now),
        });
        self.engine.attach(queue as u32, level, priority.class, priority.weight());
        self.sender_mut(sender).queue = Some(queue);
        if !sync {
            return queue;
        }
        let joined = self.join_series(sender, queue);
        if joined == queue {
            self.join_burst(queue);
        }
        joined
    }

    pub(super) fn new_request(
        &mut self,
        rq: RequestId,
        queue: usize,
        place: Place,
        meta: &IoMeta,
    ) -> Request {
        let filing = self.number();
        let due = self.now + self.tunables.fifo_expire[usize::from(self.q(queue).sync)];
        let (owner, sector, sectors) = (meta.owner.0, meta.sector, meta.sectors);
        Request { rq, queue, owner, place, sector, sectors, filing, due }
    }

    pub(super) fn arrive(&mut self, rq: RequestId, meta: &IoMeta) {
        let mut queue = self.queue_of(meta);
        if self.q(queue).sync {
            queue = self.cooperate(self.sender_of(meta), queue, meta);
        }
        let (now, slice) = (self.now, self.tunables.slice_idle);
        let (idle_class, in_flight) = (self.class(queue) == Class::Idle, self.in_flight(queue));
        let nothing = self.waiting(queue) == 0 && in_flight == 0;
        let far = self.far(self.q(queue).last_end, meta);
        let q = self.q_mut(queue);
        let was_short = q.short_think;
        if q.sync && in_flight == 0 && (!q.busy || (nothing && !was_short)) {
            q.think.arrived(now, slice);
        }
        if q.sync && !idle_class && slice > Nanos::ZERO && !q.just_split(now) {
            q.short_think = !q.think.exceeds(Nanos(slice.0 / 2));
        }
        if q.short_think != was_short {
            self.think_time_changed(queue);
        }
        let q = self.q_mut(queue);
        if q.sync {
            let idle = if nothing { now.since(q.think.last_end) } else { Nanos::ZERO };
            q.share.arrived(now, idle);
        }
        q.seeks.push(far);
        if q.sync && self.tunables.injection && self.waiting(queue) == 0 {
            self.look_for_waker(queue);
            self.sample_arrival(queue);
        }
        let request = self.new_request(rq, queue, Place::Waiting, meta);
        self.requests.push(request);
        self.put_in(queue, rq);
        self.q_mut(queue).last_end = meta.sector + u64::from(meta.sectors);
        if self.serving == Some(queue) && self.idle_until.is_some() {
            let may_grow = self.waiting(queue) == 1 && meta.sectors < 32 && self.boosts(queue);
            if self.timed_out() {
                self.expire(Reason::Timeout);
            } else if !may_grow {
                self.idle_until = None;
            }
        }
    }

    /// Adds the new request `rq` to its queue.
    fn put_in(&mut self, queue: usize, rq: RequestId) {
        let before = self.q(queue).next;
        let next = self.next_with(queue, rq);
        self.q_mut(queue).next = Some(next);
        let factor = self.q(queue).factor;
        let mut interactive = false;
        if self.q(queue).busy {
            self.raise_rare_async(queue);
            if before != Some(next) {
                self.next_changed(queue);
            }
        } else {
            interactive = self.wake(queue);
        }
        self.refile(queue);
        let ordinary = factor == 1 || self.q(queue).factor == 1;
        if self.tunables.low_latency && (ordinary || interactive) {
            self.q_mut(queue).raised_at = self.now;
        }
    }

    fn next_with(&self, queue: usize, rq: RequestId) -> RequestId {
        let Some(next) = self.q(queue).next else { return rq };
        if self.q(queue).next_is_due {
            return next;
        }
        self.nearer(self.last_position, &self.request(next), &self.request(rq)).rq
    }

    /// Section 5.1.
    fn wake(&mut self, queue: usize) -> bool {
        let id = queue as u32;
        let slices = Nanos(self.tunables.slice_idle.0.saturating_mul(3));
        let in_time = self.now <= self.q(queue).think.last_end + slices;
        let left = self.budget_left(queue);
        let urgent = self.q(queue).back_soon && in_time && left > 0;
        let most = self.q(queue).max_budget;
        let next = self.q(queue).next.expect("it has just got one");
        let budget = if urgent { left.min(most) } else { most.max(self.charge(next)) };
        self.engine.set_service(id, 0);
        self.engine.set_budget(id, budget);
        self.q_mut(queue).back_soon = urgent;
        let (now, in_flight) = (self.now, self.in_flight(queue));
        let q = self.q_mut(queue);
        let long_ago = q.idle_since.is_some_and(|at| now > at + Nanos::from_secs(10));
        if !q.just_created && in_flight == 0 && long_ago {
            q.in_burst = false;
        }
        q.just_created = false;
        let interactive = self.raise_on_arrival(queue);
        let number = self.number();
        let q = self.q_mut(queue);
        q.busy_number = number;
        (q.backlogged, q.waiting_since, q.served) = (now, now, 0);
        q.soft_rt_due = false;
        q.busy = true;
        self.engine.activate(id, if urgent { From::WhereItStopped } else { From::Now }, now);
        if let Some(serving) = self.serving {
            let urgent = urgent && self.q(queue).factor >= self.q(serving).factor;
            let may = urgent || self.outranks(queue, serving) || !self.better_to_idle(serving);
            if may && self.engine.may_preempt() {
                self.expire(Reason::Preempted);
            }
        }
        interactive
    }

    /// A held request leaves without having been served.
    pub(super) fn take_back(&mut self, rq: RequestId) {
        let request = self.request(rq);
        let at = self.at(rq);
        self.requests[at].place = Place::Head;
        if request.place == Place::Waiting {
            self.taken_out(request.queue, rq, request.sector);
        }
        self.discard(rq);
    }

    /// Forgets a request.
    pub(super) fn discard(&mut self, rq: RequestId) {
        let at = self.at(rq);
        let queue = self.requests.remove(at).queue;
        self.free_if_unused(queue);
    }

    /// The start of a request may have changed.
    pub(super) fn moved(&mut self, rq: RequestId, sector: u64) {
        let at = self.at(rq);
        let Request { queue, place, sector: old, .. } = self.requests[at];
        if place != Place::Waiting || sector == old {
            return;
        }
        let filing = self.number();
        (self.requests[at].sector, self.requests[at].filing) = (sector, filing);
        let before = self.q(queue).next;
        let next = self.next_with(queue, rq);
        self.q_mut(queue).next = Some(next);
        if before != Some(next) {
            self.next_changed(queue);
        }
        self.refile(queue);
    }

    pub(super) fn admitted(&self, io: &IoMeta, used: Used) -> bool {
        let raised = self.raised_busy() > 0;
        let (sixteenths, taken) = if io.is_sync_read() {
            (16, used.all)
        } else if is_sync(io) {
            (if raised { 6 } else { 12 }, used.limited)
        } else {
            (if raised { 3 } else { 8 }, used.unsynced)
        };
        let cap = (u64::from(used.of) * sixteenths / 16).max(1);
        if u64::from(taken) >= cap {
            return false;
        }
        let Some(queue) = self.known_queue(io) else { return true };
        let its = self.requests.iter().filter(|r| r.queue == queue).count() as u64;
        its == 0 || !self.q(queue).busy || self.is_within_share(queue, its, cap)
    }

    fn is_within_share(&self, queue: usize, its: u64, cap: u64) -> bool {
        let level = self.engine.level(queue as u32);
        let sum = |class| self.engine.wsum(level, class);
        let (rt, be, idle) = (sum(Class::Realtime), sum(Class::BestEffort), sum(Class::Idle));
        let all = match self.class(queue) {
            Class::Realtime => rt,
            Class::BestEffort => 8 * rt + be,
            Class::Idle => 64 * rt + 8 * be + idle,
        };
        let limit = match all {
            0 => cap,
            _ => (cap * self.weight(queue) + all / 2) / all,
        };
        its < limit.max(1)
    }
}
