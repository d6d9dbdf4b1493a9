//! The arrival of requests (`spec/bfq.md` section 5), one by one, or as a plug for the queue in service; and the
//! mapping from I/Os to queues: their creation with their senders, the merging of queues that are sequential together
//! (section 14), and splitting them again.
//!
//! The requests of a queue stay in it. After a merge, later requests of its process go to the other queue.

use super::habits::Reason;
use super::held::{Held, Item, Plug, State, Ways, may_grow, sectors_if_alike};
use super::queue::{Key, Priority, Procs, Queue};
use super::queues::Queues;
use super::raising::ORDINARY;
use super::tunables::Joining;
use super::wf2q::{Class, From, ROOT, When};
use super::{Bfq, NOBODY, QueueRef, Senders, is_sync};
use crate::index::SectorIndex;
use crate::{Cx, Used};
use blkmq_core::{Instant, IoMeta, Nanos, Owner, RequestId};

/// Positions closer than this are neighbours.
const CLOSE: u64 = 8_192;
/// A queue that is served for longer than this since its first I/O is not merged.
const EARLY: Nanos = Nanos::from_millis(100);
/// Queues created within this time of the last one may be merged permanently.
const TOGETHER: Nanos = Nanos::from_millis(180);
/// A queue created later than this after the last one begins another series.
const SERIES: Nanos = Nanos::from_millis(600);
/// The time from a queue's creation, or from a split, to its permanent merge.
const LATE: Nanos = Nanos::from_millis(600);
/// The number of position orders that groups share.
const LANES: u32 = 16;

/// Returns whether two positions are neighbours.
fn is_close(sector: u64, other: u64) -> bool {
    sector.abs_diff(other) <= CLOSE
}

/// The next requests of the busy queues, in order of their sectors.
pub(super) struct Positions(SectorIndex);

impl Positions {
    pub(super) fn new(slots: u32) -> Self {
        Self(SectorIndex::new(slots, LANES as usize))
    }

    /// Files a queue of `level`, whose next request has changed, in the order in which others look for neighbours.
    #[inline(never)]
    pub(super) fn refile(&mut self, queue: &mut Queue, level: u32, held: &Held) {
        if queue.filed != queue.next {
            self.unfile(queue);
            if let Some(rq) = queue.next.filter(|_| queue.sync && queue.busy) {
                let sector = held.sector(rq).expect("the next request is in the order");
                self.0.insert(Self::lane(level), sector, rq);
                queue.filed = Some(rq);
            }
        }
    }

    pub(super) fn unfile(&mut self, queue: &mut Queue) {
        if let Some(old) = queue.filed.take() {
            self.0.remove(old);
        }
    }

    /// The requests next to `sector` that are close to it, the closest first.
    fn close_to(&self, level: u32, sector: u64) -> impl Iterator<Item = RequestId> {
        let ahead = self.0.at_or_after(Self::lane(level), sector);
        let behind = self.0.before(Self::lane(level), sector);
        let mut found = [ahead, behind].map(|f| f.filter(|f| is_close(f.sector, sector)));
        found.sort_by_key(|f| f.map_or(u64::MAX, |f| f.sector.abs_diff(sector)));
        found.into_iter().flatten().map(|f| f.rq)
    }

    fn lane(level: u32) -> usize {
        (level % LANES) as usize
    }
}

impl Queues {
    /// Returns the queue that a new sync queue is to share permanently, if both are of a series of queues that are
    /// created shortly after each other.
    fn join_series(&mut self, q: u32, joining: Joining, now: Instant) -> Option<u32> {
        let last = self.last_created.and_then(|last| self.follow(last));
        let last = last.filter(|last| *last != q && self.are_alike(q, *last, joining));
        let since = last.map(|last| now.since(self[last].created));
        if since.is_none_or(|since| since > SERIES) {
            self.last_created = Some(self.link(q));
        }
        let together = since.is_some_and(|since| since <= TOGETHER);
        last.filter(|last| together && self.begin_together(q, *last, joining))
    }

    /// Returns whether it is time to merge `q` permanently.
    fn is_ripe(&self, q: u32, now: Instant) -> bool {
        let queue = &self[q];
        let later = |at: Instant| now > at + LATE;
        !queue.just_created && later(queue.created) && queue.split.is_none_or(later)
    }

    /// Returns whether `q` may share `other` permanently.
    fn may_share(&self, q: u32, other: u32, joining: Joining) -> bool {
        q != other && self.are_alike(q, other, joining) && self.begin_together(q, other, joining)
    }

    /// Returns whether it is too late for `q` to be merged.
    fn is_late(&self, q: u32, now: Instant) -> bool {
        self[q].served > 0 && now > self[q].first_io + EARLY
    }

    /// Returns whether `q` may be merged into `other`, which is close to it.
    fn may_join(&self, q: u32, other: u32, now: Instant) -> bool {
        let (a, b) = (&self[q], &self[other]);
        q != other
            && a.sync
            && b.sync
            && b.procs > 0
            && self.level(q) == self.level(other)
            && a.priority.class == b.priority.class
            && a.priority.class != Class::Idle
            && !a.seeks.is_seeky()
            && !b.seeks.is_seeky()
            && !self.is_late(other, now)
    }

    /// Returns whether queues that are created together may share one permanently. Threads of an application may.
    /// Tenants would lose their shares, so they may only by configuration.
    fn begin_together(&self, q: u32, other: u32, joining: Joining) -> bool {
        match joining {
            Joining::Off => false,
            Joining::Early => self[q].of_threads && self[other].of_threads,
            Joining::Stable => true,
        }
    }

    fn are_alike(&self, q: u32, other: u32, joining: Joining) -> bool {
        let (a, b) = (&self[q], &self[other]);
        b.sync
            && b.procs > 0
            && a.priority == b.priority
            && (a.of_threads == b.of_threads || joining == Joining::Stable)
            && self.level(q) == self.level(other)
    }
}

impl Procs {
    /// Redirects the process `p` from `q` to `into`, which inherits the raising of `q`.
    pub(super) fn merge(&mut self, queues: &mut Queues, p: u32, q: u32, into: u32, now: Instant) {
        let saved = queues[q].save();
        if !queues[q].shared {
            self.at_mut(p).saved = Some(saved);
        }
        if let Senders::One(other) = queues[into].senders {
            self.at_mut(other).saved = Some(queues[into].save());
        }
        let share = queues[q].share;
        queues[into].share.join(&share);
        if saved.raising.is_raised() {
            if !queues[into].raising.is_raised() {
                queues[into].raising = saved.raising;
                queues.want(into);
            }
            queues.end_raising(q, now);
        }
        queues[q].procs -= 1;
        let target = &mut queues[into];
        target.procs += 1;
        target.shared = true;
        target.senders = Senders::Many;
        self.at_mut(p).queue = Some(into);
        queues.recount(into);
    }
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

    /// Inserts a request that goes ahead of all others.
    pub(super) fn arrive_at_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let meta = cx.requests.get(rq);
        let (p, q) = self.sender(cx, meta);
        self.hold(rq, p, q, State::Head, meta);
        self.push_head(cx, rq);
    }

    /// Inserts a requeued request, or one that goes ahead of all others.
    pub(super) fn push_head(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held.push_head(rq);
        let level = self.queues.level(self.held[rq].queue);
        self.queues.groups.queued(cx, level, cx.requests.get(rq), self.now);
    }

    /// The queue to which `io` would go, if there is one.
    pub(super) fn queue_for(&self, io: &IoMeta) -> Option<u32> {
        self.procs.queue_of(self.queues.groups.key_of(io))
    }

    /// The sender of an I/O, and its queue: created if necessary, and moved to the right group.
    #[inline]
    fn sender(&mut self, cx: &Cx<'_>, meta: &IoMeta) -> (u32, u32) {
        let key = self.queues.groups.key_of(meta);
        let p = match self.procs.find(key) {
            Some(p) => p,
            None => self.new_proc(cx, key),
        };
        self.procs.remember(p);
        let proc = self.procs.at(p);
        match proc.queue {
            Some(q)
                if proc.ioprio == meta.ioprio
                    && proc.group == Some(meta.group)
                    && !self.queues[q].to_split =>
            {
                (p, q)
            }
            queue => (p, self.sender_changed(cx, p, queue, meta)),
        }
    }

    /// The slow path of [`sender`](Self::sender): the queue, group or priority of the sender has changed.
    fn sender_changed(&mut self, cx: &Cx<'_>, p: u32, queue: Option<u32>, meta: &IoMeta) -> u32 {
        let level = self.queues.groups.level(meta.group);
        let priority = Priority::of(meta.ioprio);
        let proc = self.procs.at_mut(p);
        proc.left = false;
        (proc.ioprio, proc.group) = (meta.ioprio, Some(meta.group));
        let Some(q) = queue else { return self.new_queue(cx, p) };
        if self.queues.level(q) != level {
            if self.queues[q].shared {
                // The other processes stay on their level.
                self.leave_queue(cx, p);
                return self.new_queue(cx, p);
            }
            self.move_queue(cx, q, level);
        }
        if self.queues[q].priority != priority {
            self.queues[q].priority = priority;
            self.queues.want(q);
            self.queues.recount(q);
        }
        let queue = &self.queues[q];
        if queue.to_split && queue.shared && !queue.stable { self.split(cx, p, q) } else { q }
    }

    fn new_proc(&mut self, cx: &Cx<'_>, key: Key) -> u32 {
        if self.procs.is_full() {
            let idlest = self.procs.idlest().expect("there are more records than requests");
            self.forget(cx, idlest);
        }
        self.procs.add(key)
    }

    /// Forgets an owner, of which no I/O will arrive for a long time.
    pub(super) fn owner_left(&mut self, cx: &Cx<'_>, owner: Owner) {
        if let Some(p) = self.procs.find(Key::process(owner)) {
            self.forget(cx, p);
        }
    }

    /// Forgets a process, after its requests have completed.
    fn forget(&mut self, cx: &Cx<'_>, p: u32) {
        self.leave_queue(cx, p);
        self.procs.forget(p);
    }

    /// Detaches a process from its queue.
    fn leave_queue(&mut self, cx: &Cx<'_>, p: u32) {
        if let Some(q) = self.procs.at_mut(p).queue.take() {
            self.queues[q].procs -= 1;
            self.free_if_unused(cx, q);
        }
    }

    /// Gives `p` a queue of its own, or the one that it is to share permanently.
    fn new_queue(&mut self, cx: &Cx<'_>, p: u32) -> u32 {
        let q = self.queues.add(self.now);
        let proc = self.procs.at_mut(p);
        proc.queue = Some(q);
        let level = proc.group.map_or(ROOT, |group| self.queues.groups.level(group));
        let (priority, sync) = (Priority::of(proc.ioprio), proc.key.shared_by().is_none());
        self.queues.wf.attach(q, level, priority.class, priority.weight());
        let queue = &mut self.queues[q];
        queue.of_threads = proc.key.is_thread();
        queue.sync = sync;
        queue.senders = Senders::One(p);
        queue.procs = 1;
        queue.priority = priority;
        queue.max_budget = 2 * self.device.max_budget(&self.tunables) / 3;
        queue.short_think = sync && priority.class != Class::Idle;
        if !sync {
            return q;
        }
        let joined = self.join_series(cx, p, q);
        if joined == q {
            self.queues.join_burst(q, self.now);
        }
        joined
    }

    /// Merges a new sync queue, immediately or later, if it belongs to a series of queues that are merged permanently.
    fn join_series(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        match self.queues.join_series(q, self.tunables.joining, self.now) {
            None => q,
            Some(last) if self.device.rotational => {
                self.procs.at_mut(p).twin = Some(self.queues.link(last));
                q
            }
            Some(last) => {
                self.queues[last].stable = true;
                self.merge(cx, p, q, last)
            }
        }
    }

    /// The queue for the I/O `meta` of process `p`, which sends to `q`: usually `q` itself.
    fn cooperate(&mut self, cx: &Cx<'_>, p: u32, q: u32, meta: &IoMeta) -> u32 {
        let joining = self.tunables.joining;
        if joining == Joining::Off {
            return q;
        }
        let is_ripe = |_: &mut QueueRef| self.queues.is_ripe(q, self.now);
        let twin = self.procs.at_mut(p).twin.take_if(is_ripe);
        let twin = twin.and_then(|twin| self.queues.follow(twin));
        let may_share = |twin: &u32| self.queues.may_share(q, *twin, joining);
        if let Some(twin) = twin.filter(|twin| may_share(twin) && !self.idling().boosts(q)) {
            self.queues[q].stable = true;
            self.queues[twin].stable = true;
            return self.merge(cx, p, q, twin);
        }
        // Without moving parts, proximity has no value.
        let others = self.device.rotational && self.queues.others_are_busy();
        if !others || self.queues.is_late(q, self.now) {
            return q;
        }
        match self.neighbour(q, meta.sector) {
            Some(other) => self.merge(cx, p, q, other),
            None => q,
        }
    }

    /// A queue with its next or last request close to `sector`, into which `q` may be merged.
    fn neighbour(&self, q: u32, sector: u64) -> Option<u32> {
        let may_join = |other: &u32| self.queues.may_join(q, *other, self.now);
        let serving = self.slot.queue;
        if serving != NOBODY && is_close(self.slot.position, sector) && may_join(&serving) {
            return Some(serving);
        }
        let close = self.positions.close_to(self.queues.level(q), sector);
        close.map(|rq| self.held[rq].queue).find(may_join)
    }

    /// Redirects the process `p` from `q` to `into`.
    fn merge(&mut self, cx: &Cx<'_>, p: u32, q: u32, into: u32) -> u32 {
        self.procs.merge(&mut self.queues, p, q, into, self.now);
        self.free_if_unused(cx, q);
        into
    }

    /// Gives `p`, which sends the next I/O, a queue of its own again: the shared queue has ceased to cooperate.
    fn split(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        let saved = self.procs.at_mut(p).saved.take();
        let queue = &mut self.queues[q];
        let own = if queue.procs == 1 {
            (queue.shared, queue.to_split, queue.senders) = (false, false, Senders::One(p));
            q
        } else {
            queue.procs -= 1;
            self.new_queue(cx, p)
        };
        if let Some(saved) = saved {
            let queue = &mut self.queues[own];
            queue.restore(&saved, self.now);
            if queue.raising.is_over(self.now) || !self.tunables.low_latency {
                queue.raising.factor = ORDINARY;
            }
            self.queues.want(own);
            self.queues.recount(own);
        }
        own
    }

    /// Records the state of a request when it begins to be held.
    #[inline]
    fn hold(&mut self, rq: RequestId, p: u32, q: u32, state: State, meta: &IoMeta) {
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
    fn learn_habits(&mut self, q: u32) {
        let idle_class = self.queues.is_idle_class(q);
        self.queues[q].learn_habits(self.now, self.tunables.slice_idle, idle_class);
    }

    /// Adds a request to its queue.
    fn add(&mut self, cx: &Cx<'_>, q: u32, rq: RequestId, meta: &IoMeta) {
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
        self.queues.groups.queued(cx, level, meta, now);
        let mut interactive = false;
        if self.queues[q].busy {
            // Async I/O after a pause is as likely to be waited for as any other.
            let queue = &mut self.queues[q];
            let may_be_raised = self.tunables.low_latency && !queue.sync;
            if may_be_raised && queue.raising.begin_if_rare(now, &self.device.rate) {
                self.queues.want(q);
                self.queues.recount(q);
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

    /// Compares `rq`, at `sector`, with the next request of `q`. Returns whether it becomes the next one.
    #[inline]
    pub(super) fn compete(&mut self, q: u32, rq: RequestId, sector: u64) -> bool {
        let (head, ways) = (self.device.last_position, Ways::of(&self.tunables));
        let queue = &mut self.queues[q];
        let wins = queue.next.is_none_or(|old| {
            let at = || self.held.sector(old).expect("the next request is in the order");
            !queue.next_is_due && !ways.prefer_first(head, at(), sector)
        });
        if wins {
            queue.next = Some(rq);
        }
        wins
    }

    /// Samples the arrival of a request at a queue without waiting requests, for wakers and injection.
    #[inline]
    fn sample_first(&mut self, q: u32) {
        if !self.queues[q].sync || !self.tunables.injection {
            return;
        }
        let now = self.now;
        self.queues.look_for_waker(q, &self.device, now, self.tunables.slice_idle);
        let queue = &mut self.queues[q];
        queue.injection.renew(queue.short_think, now);
        if self.slot.is_of(q) {
            self.sampling.arm(&queue.injection, self.device.in_driver, now);
        }
    }

    /// Makes a queue busy (section 5.1). Returns whether it looks interactive.
    fn wake(&mut self, cx: &Cx<'_>, q: u32) -> bool {
        let now = self.now;
        let urgent = self.budget_on_wake(q);
        self.queues[q].wake(now);
        let interactive = self.raise_on_arrival(q);
        let from = if self.queues[q].back_soon { From::WhereItStopped } else { From::Now };
        self.queues.put_on(q, from, now);
        if self.slot.queue != NOBODY && self.preempts(q, urgent) {
            self.expire(cx, Reason::Preempted);
        }
        interactive
    }

    /// Begins or continues the raising of a queue that becomes busy. Returns whether the queue looks interactive.
    pub(super) fn raise_on_arrival(&mut self, q: u32) -> bool {
        let (now, queue) = (self.now, &mut self.queues[q]);
        let looks = queue.looks(now);
        if !self.tunables.low_latency || queue.is_just_split(now) {
            return looks.interactive;
        }
        let alone = queue.sync && (!queue.shared || queue.stable);
        if queue.raising.is_raised() {
            queue.raising.go_on(looks, queue.in_burst, now, &self.device.rate);
            self.queues.want(q);
        } else if alone && (looks.interactive || looks.soft_rt) {
            queue.raising.begin(looks.interactive, &self.device.rate);
            // It is preferred, but with a short budget, even if another request arrives before its turn.
            let short = 2 * (self.device.max_budget(&self.tunables) / 32);
            queue.max_budget = queue.max_budget.min(short);
            self.queues.wf.set_budget(q, self.queues.wf.budget(q).min(short));
            self.queues.want(q);
        }
        looks.interactive
    }

    /// Sets the budget with which a queue becomes busy. Returns whether it was idle for so short a time that it
    /// continues immediately with its remaining budget.
    fn budget_on_wake(&mut self, q: u32) -> bool {
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
    fn preempts(&self, q: u32, urgent: bool) -> bool {
        let serving = self.slot.queue;
        let (new, old) = (&self.queues[q].raising, &self.queues[serving].raising);
        let urgent = urgent && new.factor >= old.factor;
        (urgent || self.queues.outranks(q, serving) || !self.idling().is_better(serving))
            && self.queues.wf.may_preempt()
    }

    /// Adapts the budget of a waiting queue, whose next request has changed, so that it suffices for that request.
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

    /// Ends the idling, or the slot, after the arrival of a request for which the device was kept idle.
    fn stop_waiting(&mut self, cx: &Cx<'_>, q: u32, sectors: u32) {
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

    /// Issues all of `rqs`, and writes their order. Returns false, with no effect but that of the time, if they are not
    /// all for the queue in service, if its slot might end before the last one, or if `used` leaves no tags for all.
    pub(super) fn issue_plug(
        &mut self,
        cx: &Cx<'_>,
        rqs: &[RequestId],
        used: Option<Used>,
        order: &mut [u8],
    ) -> bool {
        self.enter(cx);
        let Some(plug) = self.plug(cx, rqs, used) else { return false };
        let ways = Ways::of(&self.tunables);
        let next = self.arrive_together(cx, &plug, ways);
        plug.sort(cx.requests, next, ways, order);
        self.serve_together(cx, &plug, order);
        true
    }

    /// The plug of `rqs`, if all of them may go to the device through the queue in service.
    fn plug<'a>(&self, cx: &Cx<'_>, rqs: &'a [RequestId], used: Option<Used>) -> Option<Plug<'a>> {
        let q = self.slot.queue;
        if q == NOBODY || self.tunables.strict || self.slot.is_timed_out(self.now) {
            return None;
        }
        let queue = &self.queues[q];
        debug_assert!(queue.is_empty(), "the plug does not come alone");
        if !queue.sync || queue.to_split || self.queues.is_idle_class(q) {
            return None;
        }
        let (first, rest) = rqs.split_first()?;
        let first = cx.requests.get(*first);
        let p = self.sender_to(q, first)?;
        let sectors = sectors_if_alike(cx.requests, first, rest)?;
        let stays = sectors <= self.queues.budget_left(q)
            && queue.raising.outlasts(sectors, queue.in_burst, self.now);
        let n = rqs.len() as u32;
        let admitted = used.is_none_or(|used| self.queues.admits_together(q, first, used, n));
        (stays && admitted).then_some(Plug { p, q, sectors, rqs })
    }

    /// The process of `io`, if it is known, sends to `q`, and would not be moved or merged at this arrival.
    fn sender_to(&self, q: u32, io: &IoMeta) -> Option<u32> {
        if !is_sync(io) {
            return None;
        }
        let p = self.procs.find(Key::process(io.owner))?;
        let proc = self.procs.at(p);
        let known =
            proc.queue == Some(q) && proc.ioprio == io.ioprio && proc.group == Some(io.group);
        let joins = self.tunables.joining != Joining::Off
            && (proc.twin.is_some() || (self.device.rotational && self.queues.others_are_busy()));
        (known && !joins).then_some(p)
    }

    /// Records the arrival of a plug. Returns the position of the request that is served first.
    fn arrive_together(&mut self, cx: &Cx<'_>, plug: &Plug<'_>, ways: Ways) -> u8 {
        let Plug { p, q, rqs, .. } = *plug;
        let (now, n) = (self.now, rqs.len() as u32);
        self.procs.remember(p);
        self.procs.begin_together(p, n);
        self.learn_habits(q);
        self.sample_first(q);
        let queue = &mut self.queues[q];
        queue.allocated += n;
        queue.share.arrived_together(now, queue.idle_until(now), n);
        if self.tunables.low_latency && !queue.raising.is_raised() {
            queue.raising.started = now;
        }
        let level = self.queues.level(q);
        let due = now + self.tunables.fifo_expire[1];
        let owner = self.procs.at(p).key;
        let head = self.device.last_position;
        let mut last_end = self.queues[q].last_end;
        let (mut next, mut next_sector) = (0, 0);
        for (nth, rq) in rqs.iter().enumerate() {
            let meta = cx.requests.get(*rq);
            self.queues[q].seeks.push(self.device.is_far(last_end, meta));
            last_end = meta.end();
            let (sectors, state) = (meta.sectors, State::Issued);
            self.held.hold(Item {
                rq: *rq,
                queue: q,
                proc: p,
                owner,
                sectors,
                state,
                since: now,
                due,
            });
            if nth == 0 || !ways.prefer_first(head, next_sector, meta.sector) {
                (next, next_sector) = (nth as u8, meta.sector);
            }
            self.queues.groups.queued(cx, level, meta, now);
            let waits = nth == 0 && may_grow(sectors);
            if self.slot.idle.is_some() && !(waits && self.idling().boosts(q)) {
                self.slot.stop_idling(cx, &self.queues.groups, now);
            }
        }
        self.queues[q].last_end = last_end;
        // The device may still be kept idle for more after a single request, which leaves immediately.
        self.slot.stop_idling(cx, &self.queues.groups, now);
        next
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
            // An unknown think time counts as short.
            bfq.queues[q].short_think = false;
            bfq.now = at(7) + after;
            bfq.learn_habits(q);
            bfq.queues[q].short_think
        };
        assert!(!learns(Nanos::from_secs(2)));
        assert!(learns(Nanos(2_000_000_001)));
    }
}
