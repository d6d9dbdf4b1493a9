//! The mapping from I/Os to queues, and the creation and removal of queues with their senders.

use super::procs::Key;
use super::queue::Priority;
use super::wf2q::Class;
use super::{Bfq, Senders, is_sync};
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
}
