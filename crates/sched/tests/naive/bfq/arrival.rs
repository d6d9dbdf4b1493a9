//! Arrivals and departures in the twin: sections 4 and 5, and the limits on tags (section 15); merging and splitting of
//! queues (section 14); injection and wakers (section 12).

use super::turns::Reason;
use super::{Place, Proc, Queue, Request, Sender, Twin, is_sync};
use blkmq_core::{Instant, IoMeta, Nanos, Owner, RequestId};
use blkmq_sched::Used;
use blkmq_sched::bfq::values::{IoShare, Joining, Priority, Seeks, ThinkTime};
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

    fn new_queue(&mut self, sender: Sender, level: u32, priority: Priority) -> usize {
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

    /// Makes a queue busy (section 5.1). Returns whether it looks interactive.
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

    /// Removes a held request that was not served.
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

    /// Files a request again, whose start may have changed.
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

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// The place of a queue among those in which others look for neighbours: its next request, the sector and the level,
/// and a number that rises with each change.
#[derive(Clone, Copy)]
pub(super) struct Filed {
    rq: RequestId,
    sector: u64,
    level: u32,
    number: u64,
}

impl Twin {
    /// The queue for an I/O: that of its sender, or one that its sender begins to share.
    fn cooperate(&mut self, sender: Sender, queue: usize, io: &IoMeta) -> usize {
        if self.tunables.joining == Joining::Off {
            return queue;
        }
        if let Some(twin) = self.due_twin(sender, queue) {
            self.q_mut(queue).stable = true;
            self.q_mut(twin).stable = true;
            return self.join(sender, queue, twin);
        }
        if !self.rotational || self.busy().len() < 2 || self.is_late(queue) {
            return queue;
        }
        match self.neighbour(queue, io.sector) {
            Some(other) => self.join(sender, queue, other),
            None => queue,
        }
    }

    /// Returns whether a queue was served, and had its first I/O more than 100 ms ago.
    fn is_late(&self, queue: usize) -> bool {
        self.q(queue).served > 0 && self.now > self.q(queue).first_io + ms(100)
    }

    fn neighbour(&self, queue: usize, sector: u64) -> Option<usize> {
        let near = |other: u64| other.abs_diff(sector) <= 8_192;
        if let Some(serving) = self.serving
            && near(self.serving_position)
            && self.may_join(queue, serving)
        {
            return Some(serving);
        }
        let level = self.engine.level(queue as u32);
        let mut filed: Vec<(usize, Filed)> =
            self.existing().filter_map(|q| Some((q, self.q(q).filed?))).collect();
        // Groups sixteen levels apart share an order.
        filed.retain(|(_, f)| f.level % 16 == level % 16);
        filed.sort_by_key(|(_, f)| (f.sector, f.number));
        let ahead = filed.iter().find(|(_, f)| f.sector >= sector);
        let below = filed.iter().filter(|(_, f)| f.sector < sector).map(|(_, f)| f.sector).max();
        let behind = filed.iter().find(|(_, f)| Some(f.sector) == below);
        let mut found: Vec<&(usize, Filed)> = ahead.into_iter().chain(behind).collect();
        found.retain(|(_, f)| near(f.sector));
        found.sort_by_key(|(_, f)| f.sector.abs_diff(sector));
        found.into_iter().map(|(q, _)| *q).find(|q| self.may_join(queue, *q))
    }

    fn may_join(&self, queue: usize, other: usize) -> bool {
        let alive = |q: usize| self.q(q).sync && self.has_sender(q) && !self.q(q).seeks.is_seeky();
        let class = |q: usize| self.q(q).priority.class;
        let level = |q: usize| self.engine.level(q as u32);
        queue != other
            && alive(queue)
            && alive(other)
            && level(queue) == level(other)
            && class(queue) == class(other)
            && class(queue) != Class::Idle
            && !self.is_late(other)
    }

    /// Redirects `sender` from `queue` to `into`.
    fn join(&mut self, sender: Sender, queue: usize, into: usize) -> usize {
        let (from, to) = (self.q(queue).clone(), self.q(into).clone());
        if !from.shared {
            self.sender_mut(sender).saved = Some(Box::new(from.clone()));
        }
        if !to.shared {
            let mut others = self.senders.values_mut();
            let other = others.find(|proc| proc.queue == Some(into)).expect("it has a sender");
            other.saved = Some(Box::new(to.clone()));
        }
        self.q_mut(into).share.join(&from.share);
        if from.factor > 1 {
            if to.factor == 1 {
                self.q_mut(into).inherit_raising(&from);
                self.want(into);
            }
            self.end_raising(queue);
        }
        self.q_mut(into).shared = true;
        self.sender_mut(sender).queue = Some(into);
        self.free_if_unused(queue);
        into
    }

    /// Gives `sender` a queue of its own again.
    pub(super) fn split(&mut self, sender: Sender, queue: usize) -> usize {
        let saved = self.sender_mut(sender).saved.take();
        let all = self.senders.values().filter(|proc| proc.queue == Some(queue)).count();
        let own = if all == 1 {
            let q = self.q_mut(queue);
            (q.shared, q.to_split) = (false, false);
            queue
        } else {
            self.sender_mut(sender).queue = None;
            let (level, priority) = (self.engine.level(queue as u32), self.q(queue).priority);
            self.new_queue(sender, level, priority)
        };
        if let Some(saved) = saved {
            let (now, low_latency) = (self.now, self.tunables.low_latency);
            let q = self.q_mut(own);
            (q.think, q.share, q.short_think) = (saved.think, saved.share, saved.short_think);
            (q.in_burst, q.injection) = (saved.in_burst, saved.injection);
            q.inherit_raising(&saved);
            q.split = Some(now);
            if !low_latency || now > q.raised_at + q.raised_for {
                q.factor = 1;
            }
            self.want(own);
        }
        own
    }

    /// Lets a new sync queue share one that began shortly before it.
    fn join_series(&mut self, sender: Sender, queue: usize) -> usize {
        let number = self.q(queue).born;
        let last = self.last_created.and_then(|number| self.born(number));
        let last = last.filter(|last| *last != queue && self.are_alike(queue, *last));
        let Some(last) = last else {
            self.last_created = Some(number);
            return queue;
        };
        let since = self.now.since(self.q(last).created);
        if since > ms(600) {
            self.last_created = Some(number);
        }
        if since > ms(180) || !self.begin_together(queue, last) {
            return queue;
        }
        if self.rotational {
            self.sender_mut(sender).twin = Some(self.q(last).born);
            return queue;
        }
        self.q_mut(last).stable = true;
        self.join(sender, queue, last)
    }

    /// Tenants keep their shares, unless all queues that begin together are to be merged.
    fn begin_together(&self, queue: usize, other: usize) -> bool {
        let are_threads = self.q(queue).is_of_threads && self.q(other).is_of_threads;
        match self.tunables.joining {
            Joining::Off => false,
            Joining::Early => are_threads,
            Joining::Stable => true,
        }
    }

    fn are_alike(&self, queue: usize, other: usize) -> bool {
        let level = |q: usize| self.engine.level(q as u32);
        self.q(other).sync
            && self.has_sender(other)
            && self.q(queue).priority == self.q(other).priority
            && (self.tunables.joining == Joining::Stable
                || self.q(queue).is_of_threads == self.q(other).is_of_threads)
            && level(queue) == level(other)
    }

    fn due_twin(&mut self, sender: Sender, queue: usize) -> Option<usize> {
        let number = self.senders[&sender].twin?;
        let long_since = |at: Instant| self.now > at + ms(600);
        let q = self.q(queue);
        if q.just_created || !long_since(q.created) || q.split.is_some_and(|at| !long_since(at)) {
            return None;
        }
        self.sender_mut(sender).twin = None;
        let twin = self.born(number)?;
        let wanted = self.begin_together(queue, twin)
            && twin != queue
            && self.are_alike(queue, twin)
            && !self.boosts(queue);
        wanted.then_some(twin)
    }

    /// Files a queue again, whose next request may have changed.
    pub(super) fn refile(&mut self, queue: usize) {
        let q = self.q(queue);
        let next = q.next.filter(|_| q.sync && q.busy);
        let level = self.engine.level(queue as u32);
        let new = next.map(|rq| (rq, self.request(rq).sector, level));
        if new == q.filed.map(|f| (f.rq, f.sector, f.level)) {
            return;
        }
        let number = self.number();
        self.q_mut(queue).filed =
            new.map(|(rq, sector, level)| Filed { rq, sector, level, number });
    }
}

/// The findings of a queue about requests of others in the device.
#[derive(Clone, Copy)]
pub(super) struct Injection {
    limit: u32,
    /// The time of its first request with nothing else in the device.
    baseline: Option<Nanos>,
    /// The time of the last reset or decrease.
    lowered: Option<Instant>,
}

impl Injection {
    pub(super) const NEW: Self = Self { limit: 0, baseline: None, lowered: None };

    fn reset(now: Instant, short_think: bool) -> Self {
        let limit = if short_think { 0 } else { 1 };
        Self { limit, baseline: None, lowered: Some(now) }
    }

    /// Returns whether it was lowered or reset less than `span` ago.
    fn lowered_within(&self, span: Nanos, now: Instant) -> bool {
        self.lowered.is_some_and(|at| now < at + span)
    }
}

/// A queue and the one that wakes it, by the numbers of their births.
#[derive(Clone, Copy)]
pub(super) struct Waker {
    queue: Option<u64>,
    suspect: Option<u64>,
    seen: u32,
    since: Instant,
    woken: Option<u64>,
}

impl Waker {
    pub(super) const fn new(now: Instant) -> Self {
        Self { queue: None, suspect: None, seen: 0, since: now, woken: None }
    }
}

/// The measurement of the first request of the queue in service.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    /// The next request that is dispatched is watched.
    pub(super) armed: bool,
    since: Instant,
    pub(super) watched: Option<RequestId>,
    injected: bool,
}

impl Sampling {
    pub(super) const NONE: Self =
        Self { armed: false, since: Instant::ZERO, watched: None, injected: false };
}

/// Learning for wakers and injection.
impl Twin {
    /// The queue with this number, if it still exists.
    pub(super) fn born(&self, number: u64) -> Option<usize> {
        self.existing().find(|q| self.q(*q).born == number)
    }

    /// Looks for the waker of a sync queue that gets a request while none waits, before the request is counted.
    fn look_for_waker(&mut self, queue: usize) {
        let Some(number) = self.last_completed else { return };
        let Some(suspect) = self.born(number) else { return };
        let nothing = self.waiting(queue) == 0 && self.in_flight(queue) == 0;
        let soon = self.now.since(self.last_completion) < ms(4);
        let candidate = suspect != queue && !self.q(suspect).shared;
        let known = self.q(queue).waker.queue == Some(number);
        if self.q(queue).short_think || !nothing || !soon || !candidate || known {
            return;
        }
        let window = Nanos(self.tunables.slice_idle.0.saturating_mul(128));
        let (now, born) = (self.now, self.q(queue).born);
        let waker = &mut self.q_mut(queue).waker;
        let again = waker.suspect == Some(number) && now <= waker.since + window;
        if again {
            waker.seen += 1;
        } else {
            (waker.suspect, waker.seen, waker.since) = (Some(number), 1, now);
        }
        if waker.seen == 3 {
            (waker.queue, waker.suspect) = (Some(number), None);
            self.q_mut(suspect).waker.woken = Some(born);
        }
    }

    /// Decides at the same time whether the request is measured.
    fn sample_arrival(&mut self, queue: usize) {
        let (now, in_driver) = (self.now, self.in_driver());
        let q = self.q_mut(queue);
        if !q.injection.lowered_within(ms(1_000), now) {
            q.injection = Injection::reset(now, q.short_think);
        }
        let known = q.injection.baseline.is_some();
        let settled = !q.injection.lowered_within(ms(10), now);
        let meaningful = in_driver == 0 || (known && self.sampling.injected);
        let free = self.sampling.watched.is_none();
        if self.serving == Some(queue) && meaningful && settled && free {
            self.sampling.armed = true;
            self.sampling.since = now;
            self.sampling.injected &= in_driver > 0;
        }
    }

    /// Adapts the limit of a queue whose `short_think` has changed.
    fn think_time_changed(&mut self, queue: usize) {
        let now = self.now;
        let q = self.q_mut(queue);
        let guarded = q.short_think && q.injection.lowered_within(ms(100), now);
        if q.injection.baseline.is_none() && !guarded {
            q.injection = Injection::reset(now, q.short_think);
        }
    }

    /// Notes that the queue in service dispatches `rq`.
    pub(super) fn sample_dispatch(&mut self, rq: RequestId) {
        if self.sampling.armed {
            (self.sampling.armed, self.sampling.watched) = (false, Some(rq));
        }
    }

    /// Learns from `rq`, which has completed, and still counts as in the device.
    pub(super) fn sample_completion(&mut self, rq: RequestId, completed: Instant) {
        if self.sampling.watched != Some(rq) {
            return;
        }
        let took = completed.since(self.sampling.since);
        let (injected, alone) = (self.sampling.injected, self.in_driver() == 1);
        let most = self.device_most;
        (self.sampling.watched, self.sampling.injected) = (None, false);
        let queue = self.request(rq).queue;
        let learned = &mut self.q_mut(queue).injection;
        let before = learned.limit;
        if injected && let Some(baseline) = learned.baseline {
            // Half as long again, in whole nanoseconds.
            let slow = took.0 >= baseline.0 + baseline.0 / 2;
            if slow && before > 0 {
                learned.limit -= 1;
                learned.lowered = Some(completed);
            } else if !slow && before <= most {
                learned.limit += 1;
            }
        }
        // A time of zero is no baseline.
        let known = Some(took).filter(|took| took.0 > 0);
        match learned.baseline {
            None if alone => {
                learned.limit = before.max(1);
                learned.baseline = known;
            }
            Some(baseline) if took < baseline || (alone && !injected) => learned.baseline = known,
            _ => {}
        }
    }
}

/// The choice of a queue to inject from.
impl Twin {
    /// The queue to serve while the device is kept idle for the one in service.
    pub(super) fn inject(&mut self, queue: usize) -> Option<usize> {
        if !self.tunables.injection {
            return None;
        }
        let named = [self.own_async(queue), self.waker_of(queue), self.woken_by(queue)];
        if let Some(other) = named.into_iter().flatten().next() {
            return Some(other);
        }
        let (raised, short) = (self.q(queue).factor > 1, self.q(queue).short_think);
        if self.boosts(queue) || (raised && short && self.raised_busy() <= 1) {
            return None;
        }
        let learned = self.q(queue).injection;
        let waited =
            self.idle_until.is_some() && self.now >= self.idle_began + self.tunables.slice_idle;
        let unknown = learned.limit == 0 && learned.baseline.is_none();
        let limit = if unknown && waited { 1 } else { learned.limit };
        if self.in_driver() >= limit {
            return None;
        }
        let mut busy = self.busy();
        busy.sort_by_key(|q| self.q(*q).busy_number);
        busy.truncate(16);
        let only_raised = raised && short;
        busy.retain(|q| !only_raised || self.q(*q).factor > 1);
        busy.retain(|q| self.fits(*q) && !self.is_second_large(*q));
        let found = busy.first().copied()?;
        self.sampling.injected = true;
        Some(found)
    }

    fn fits(&self, queue: usize) -> bool {
        let Some(next) = self.q(queue).next else { return false };
        self.serving != Some(queue) && self.charge(next) <= self.budget_left(queue)
    }

    fn is_second_large(&self, queue: usize) -> bool {
        let next = self.q(queue).next.expect("it fits");
        !self.rotational && self.in_driver() > 0 && self.request(next).sectors >= 64
    }

    fn own_async(&self, queue: usize) -> Option<usize> {
        let mut its = self.senders.iter().filter(|(_, proc)| proc.queue == Some(queue));
        let (sender, proc) = its.next()?;
        if self.q(queue).shared || its.next().is_some() {
            return None;
        }
        let Sender::Owner(owner) = *sender else { return None };
        let level = proc.group.map_or(blkmq_sched::bfq::wf2q::ROOT, |group| self.level_of(group));
        let other = Sender::Async(level, Priority::of(proc.ioprio).number());
        let other = self.senders.get(&other)?.queue?;
        let next = self.q(other).next?;
        (self.request(next).owner == owner && self.fits(other)).then_some(other)
    }

    fn waker_of(&self, queue: usize) -> Option<usize> {
        let waker = self.born(self.q(queue).waker.queue?)?;
        (self.q(waker).busy && self.fits(waker)).then_some(waker)
    }

    fn woken_by(&self, queue: usize) -> Option<usize> {
        let woken = self.born(self.q(queue).waker.woken?)?;
        let still = self.q(woken).waker.queue == Some(self.q(queue).born);
        (still && self.q(woken).busy && self.fits(woken)).then_some(woken)
    }
}
