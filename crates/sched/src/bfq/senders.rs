//! The mapping from I/Os to queues, the creation and removal of queues with their senders, and bursts of new queues.
//!
//! Bursts (`spec/bfq.md` section 13): a build or a boot is not an application that a user waits for. Eight queues of
//! a group, each created within 180 ms of the one before it, are a large burst; none of them is raised.

use super::procs::Key;
use super::queue::Priority;
use super::wf2q::{Class, ROOT};
use super::{Bfq, QueueRef, Senders, is_sync};
use crate::Cx;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Owner};

impl Bfq {
    /// The key of the sender of `io`.
    #[inline]
    pub(super) fn key_of(&self, io: &IoMeta) -> Key {
        if is_sync(io) {
            return Key::process(io.owner);
        }
        let group = self.groups.of(self.groups.level(io.group)).id;
        Key::shared(group, Priority::of(io.ioprio).number())
    }

    /// The key of the async queue that a process would send to.
    pub(super) fn async_key(&self, proc: u32) -> Key {
        let proc = self.procs.at(proc);
        let group = self.groups.of(proc.group.map_or(ROOT, |group| self.groups.level(group))).id;
        Key::shared(group, Priority::of(proc.ioprio).number())
    }

    /// The queue that `io` would go to now, if there is one.
    pub(super) fn queue_for(&self, io: &IoMeta) -> Option<u32> {
        self.procs.find(self.key_of(io)).and_then(|proc| self.procs.at(proc).queue)
    }

    /// The sender of an I/O, and its queue: created if necessary, and moved to the right group.
    #[inline]
    pub(super) fn sender(&mut self, cx: &Cx<'_>, meta: &IoMeta) -> (u32, u32) {
        let key = self.key_of(meta);
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
        let level = self.groups.level(meta.group);
        let priority = Priority::of(meta.ioprio);
        let proc = self.procs.at_mut(p);
        proc.left = false;
        (proc.ioprio, proc.group) = (meta.ioprio, Some(meta.group));
        let Some(q) = queue else { return self.new_queue(cx, p, level, priority, is_sync(meta)) };
        if self.wf.level(q) != level {
            if self.queues[q].shared {
                // The other processes stay on their level.
                self.leave_queue(cx, p);
                return self.new_queue(cx, p, level, priority, true);
            }
            self.move_queue(cx, q, level);
        }
        if self.queues[q].priority != priority {
            self.queues[q].priority = priority;
            self.want(q);
            self.recount(q);
        }
        let apart = self.queues[q].to_split && self.queues[q].shared && !self.queues[q].stable;
        if apart { self.split(cx, p, q) } else { q }
    }

    fn new_proc(&mut self, cx: &Cx<'_>, key: Key) -> u32 {
        if self.procs.is_full() {
            let idlest = self.procs.idlest().expect("there are more records than requests");
            self.forget_or_mark(cx, idlest);
        }
        self.procs.add(key)
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
        self.wf.attach(q, level, priority.class, priority.weight());
        let max_budget = 2 * self.device.max_budget(&self.tunables) / 3;
        let of_threads = self.procs.at(p).key.is_thread();
        let queue = &mut self.queues[q];
        queue.of_threads = of_threads;
        queue.sync = sync;
        queue.senders = Senders::One(p);
        queue.procs = 1;
        queue.priority = priority;
        queue.max_budget = max_budget;
        queue.short_think = sync && priority.class != Class::Idle;
        self.procs.at_mut(p).queue = Some(q);
        if !sync {
            return q;
        }
        let joined = self.join_series(cx, p, q);
        if joined == q {
            self.join_burst(q);
        }
        joined
    }

    /// No I/O of an owner will arrive for a long time.
    pub(super) fn owner_left(&mut self, cx: &Cx<'_>, owner: Owner) {
        if let Some(p) = self.procs.find(Key::process(owner)) {
            self.forget_or_mark(cx, p);
        }
    }

    /// Forgets a process; if it has requests, as soon as they have completed.
    fn forget_or_mark(&mut self, cx: &Cx<'_>, p: u32) {
        self.leave_queue(cx, p);
        self.forget_proc(p);
    }

    /// The rest of [`forget_or_mark`](Self::forget_or_mark), for a process without a queue.
    fn forget_proc(&mut self, p: u32) {
        if self.procs.at(p).requests == 0 {
            self.procs.remove(p);
        } else {
            let proc = self.procs.at_mut(p);
            proc.left = true;
            // If the process returns, it begins anew.
            (proc.saved, proc.twin) = (None, None);
        }
    }

    /// A process no longer sends to its queue.
    fn leave_queue(&mut self, cx: &Cx<'_>, p: u32) {
        if let Some(q) = self.let_go(p) {
            self.free_if_unused(cx, q);
        }
    }

    fn let_go(&mut self, p: u32) -> Option<u32> {
        let q = self.procs.at_mut(p).queue.take()?;
        self.queues[q].procs -= 1;
        Some(q)
    }

    /// A group is about to be removed: no process sends to its async queues any more. The caller frees or moves the
    /// queues.
    pub(super) fn abandon_async_of(&mut self, group: GroupIndex) {
        let of_group = |p: &u32| self.procs.at(*p).key.shared_by() == Some(group);
        let its: Vec<u32> = self.procs.all().filter(of_group).collect();
        for p in its {
            let _ = self.let_go(p);
            self.forget_proc(p);
        }
    }

    /// A request of the process has completed, or was withdrawn or absorbed.
    #[inline]
    pub(super) fn release(&mut self, cx: &Cx<'_>, p: u32, q: u32) {
        self.procs.end(p);
        let proc = self.procs.at(p);
        if proc.left && proc.requests == 0 {
            self.procs.remove(p);
        }
        self.queues[q].allocated -= 1;
        if self.queues[q].procs == 0 {
            self.free_if_unused(cx, q);
        }
    }

    /// Frees a queue without senders and without requests.
    pub(super) fn free_if_unused(&mut self, cx: &Cx<'_>, q: u32) {
        let queue = &self.queues[q];
        let unused = queue.live && queue.procs == 0 && queue.allocated == 0;
        if !unused || q == self.slot.queue {
            return;
        }
        if queue.busy {
            self.retire(cx, q);
        }
        self.wf.forget(q);
        self.recount(q);
        self.burst.leave(self.queues.link(q));
        self.queues.remove(q);
    }
}

/// The number of queues in a large burst.
const LARGE: usize = 8;
/// Queues created further apart do not belong to one burst.
const APART: Nanos = Nanos::from_millis(180);
/// A queue that was idle for this long no longer belongs to a burst.
pub(super) const FORGIVEN: Nanos = Nanos::from_secs(10);

/// The burst in progress.
#[derive(Debug)]
pub(super) struct Burst {
    /// Its queues, until it is large and each of them is marked.
    members: [Option<QueueRef>; LARGE],
    size: usize,
    large: bool,
    last: Instant,
    level: u32,
}

impl Burst {
    pub(super) const fn new() -> Self {
        Self { members: [None; LARGE], size: 0, large: false, last: Instant::ZERO, level: 0 }
    }

    /// Begins a new burst, with `first` if it counts.
    fn restart(&mut self, level: u32, first: Option<QueueRef>) {
        self.members = [first, None, None, None, None, None, None, None];
        self.size = usize::from(first.is_some());
        (self.large, self.level) = (false, level);
    }

    /// Removes `gone`, which is being freed.
    pub(super) fn leave(&mut self, gone: QueueRef) {
        for at in 0..self.size {
            if self.members[at] == Some(gone) {
                self.size -= 1;
                self.members[at] = self.members[self.size].take();
                return;
            }
        }
    }
}

impl Bfq {
    /// Accounts for a queue that has been created.
    fn join_burst(&mut self, q: u32) {
        let nobody_busy = self.busy_queues() == 0;
        if self.burst.size == 0 && !self.burst.large && !nobody_busy {
            return;
        }
        let (link, level) = (self.queues.link(q), self.wf.level(q));
        let apart = self.now > self.burst.last + APART;
        self.burst.last = self.now;
        if apart || level != self.burst.level {
            self.burst.restart(level, nobody_busy.then_some(link));
        } else if self.burst.large {
            self.queues[q].in_burst = true;
        } else {
            self.burst.members[self.burst.size] = Some(link);
            self.burst.size += 1;
            if self.burst.size == LARGE {
                self.mark_burst();
            }
        }
    }

    fn mark_burst(&mut self) {
        self.burst.large = true;
        self.burst.size = 0;
        for link in core::mem::take(&mut self.burst.members).into_iter().flatten() {
            if let Some(q) = self.queues.follow(link) {
                self.queues[q].in_burst = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bfq::queue::Queues;

    #[test]
    fn a_queue_that_is_freed_lowers_the_count() {
        let mut queues = Queues::new(4);
        let links = [0; 4].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let mut burst = Burst::new();
        burst.restart(0, Some(links[0]));
        burst.members[1] = Some(links[1]);
        burst.size = 2;
        burst.leave(links[0]);
        assert_eq!((burst.size, burst.members[0]), (1, Some(links[1])));
        burst.leave(links[3]);
        assert_eq!(burst.size, 1, "it was no member");
    }
}
