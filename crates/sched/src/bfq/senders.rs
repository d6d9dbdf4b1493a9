//! The mapping from I/Os to queues: their creation and removal with their senders, merges and splits.

use super::merging::is_close;
use super::procs::Key;
use super::queue::Priority;
use super::tunables::Joining;
use super::wf2q::Class;
use super::{Bfq, NOBODY, Senders, is_sync};
use crate::Cx;
use blkmq_core::{IoMeta, Owner};

impl Bfq {
    /// The queue that `io` would go to now, if there is one.
    pub(super) fn queue_for(&self, io: &IoMeta) -> Option<u32> {
        self.procs.queue_of(self.queues.groups.key_of(io))
    }

    /// The sender of an I/O, and its queue: created if necessary, and moved to the right group.
    #[inline]
    pub(super) fn sender(&mut self, cx: &Cx<'_>, meta: &IoMeta) -> (u32, u32) {
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
    pub(super) fn sender_changed(
        &mut self,
        cx: &Cx<'_>,
        p: u32,
        queue: Option<u32>,
        meta: &IoMeta,
    ) -> u32 {
        let level = self.queues.groups.level(meta.group);
        let priority = Priority::of(meta.ioprio);
        let proc = self.procs.at_mut(p);
        proc.left = false;
        (proc.ioprio, proc.group) = (meta.ioprio, Some(meta.group));
        let Some(q) = queue else { return self.new_queue(cx, p, level, priority, is_sync(meta)) };
        if self.queues.level(q) != level {
            if self.queues[q].shared {
                // The other processes stay on their level.
                self.leave_queue(cx, p);
                return self.new_queue(cx, p, level, priority, true);
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

    pub(super) fn new_proc(&mut self, cx: &Cx<'_>, key: Key) -> u32 {
        if self.procs.is_full() {
            let idlest = self.procs.idlest().expect("there are more records than requests");
            self.leave_queue(cx, idlest);
            self.procs.forget(idlest);
        }
        self.procs.add(key)
    }

    /// No I/O of an owner will arrive for a long time.
    pub(super) fn owner_left(&mut self, cx: &Cx<'_>, owner: Owner) {
        if let Some(p) = self.procs.find(Key::process(owner)) {
            self.leave_queue(cx, p);
            self.procs.forget(p);
        }
    }

    /// A process no longer sends to its queue.
    pub(super) fn leave_queue(&mut self, cx: &Cx<'_>, p: u32) {
        if let Some(q) = self.procs.at_mut(p).queue.take() {
            self.queues[q].procs -= 1;
            self.free_if_unused(cx, q);
        }
    }

    /// A queue of its own for `p`, or the one that it is to share permanently.
    pub(super) fn new_queue(
        &mut self,
        cx: &Cx<'_>,
        p: u32,
        level: u32,
        priority: Priority,
        sync: bool,
    ) -> u32 {
        let q = self.queues.add(self.now);
        self.queues.wf.attach(q, level, priority.class, priority.weight());
        let proc = self.procs.at_mut(p);
        proc.queue = Some(q);
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

    /// A sync queue has been created: it may belong to a series of queues that are merged permanently.
    pub(super) fn join_series(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        match self.series.join(&self.queues, q, self.tunables.joining, self.now) {
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
    pub(super) fn cooperate(&mut self, cx: &Cx<'_>, p: u32, q: u32, meta: &IoMeta) -> u32 {
        let joining = self.tunables.joining;
        if joining == Joining::Off {
            return q;
        }
        let twin = self.procs.due_twin(&self.queues, p, q, joining, self.now);
        if let Some(twin) = twin.filter(|_| !self.idling().boosts(q)) {
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
    pub(super) fn neighbour(&self, q: u32, sector: u64) -> Option<u32> {
        let may_join = |other: &u32| self.queues.may_join(q, *other, self.now);
        let serving = self.slot.queue;
        if serving != NOBODY && is_close(self.slot.position, sector) && may_join(&serving) {
            return Some(serving);
        }
        let close = self.positions.close_to(self.queues.level(q), sector);
        close.map(|rq| self.held[rq].queue).find(may_join)
    }

    /// Redirects the process `p` from `q` to `into`.
    pub(super) fn merge(&mut self, cx: &Cx<'_>, p: u32, q: u32, into: u32) -> u32 {
        self.procs.merge(&mut self.queues, p, q, into, self.now);
        self.free_if_unused(cx, q);
        into
    }

    /// The processes of a shared queue no longer cooperate: `p`, which sends the next I/O, gets a queue of its own
    /// again.
    pub(super) fn split(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        let saved = self.procs.at_mut(p).saved.take();
        let queue = &mut self.queues[q];
        let own = if queue.procs == 1 {
            (queue.shared, queue.to_split, queue.senders) = (false, false, Senders::One(p));
            q
        } else {
            queue.procs -= 1;
            let (level, priority) = (self.queues.level(q), self.queues[q].priority);
            self.new_queue(cx, p, level, priority, true)
        };
        if let Some(saved) = saved {
            self.queues.restore(own, &saved, self.now, self.tunables.low_latency);
        }
        own
    }
}
