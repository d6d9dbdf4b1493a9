//! All queues, with their places on the service tree, and the counts of the busy ones.

use super::QueueRef;
use super::device::{Device, PeakRate};
use super::groups::{Groups, Weights};
use super::injection::SOON;
use super::queue::{NONE, Queue};
use super::raising::Burst;
use super::tunables::Tunables;
use super::wf2q::{Class, From, Keep, ROOT, Wf2q, When};
use crate::{Cx, Event};
use alloc::boxed::Box;
use blkmq_core::{Instant, Nanos};
use core::ops::{Index, IndexMut};

/// The factor by which async I/O is charged where that harms no queue, since no submitter waits for it.
const ASYNC_COSTS: u64 = 3;

/// All queues, with their places on the service tree, and the busy ones among them in a list.
pub(super) struct Queues {
    slab: Box<[Queue]>,
    free: u32,
    live: u32,
    first_busy: u32,
    last_busy: u32,
    pub(super) wf: Wf2q,
    pub(super) groups: Groups,
    /// Busy queues by class, and the raised ones among them.
    pub(super) by_class: [u32; 3],
    pub(super) raised_busy: u32,
    weights: Weights,
    burst: Burst,
    pub(super) last_created: Option<QueueRef>,
}

impl Index<u32> for Queues {
    type Output = Queue;
    #[inline]
    fn index(&self, q: u32) -> &Queue {
        &self.slab[q as usize]
    }
}

impl IndexMut<u32> for Queues {
    #[inline]
    fn index_mut(&mut self, q: u32) -> &mut Queue {
        &mut self.slab[q as usize]
    }
}

impl Queues {
    pub(super) fn new(capacity: u32) -> Self {
        let nothing = Queue { live: false, ..Queue::new(Instant::ZERO, 0) };
        let mut slab = alloc::vec![nothing; capacity as usize].into_boxed_slice();
        for (at, queue) in slab.iter_mut().enumerate() {
            queue.next_busy = if at + 1 < capacity as usize { at as u32 + 1 } else { NONE };
        }
        Self {
            slab,
            free: 0,
            live: 0,
            first_busy: NONE,
            last_busy: NONE,
            wf: Wf2q::new(capacity),
            groups: Groups::new(),
            by_class: [0; 3],
            raised_busy: 0,
            weights: Weights::NEW,
            burst: Burst::new(),
            last_created: None,
        }
    }

    /// The number of queues that fit.
    pub(super) fn capacity(&self) -> u32 {
        self.slab.len() as u32
    }

    /// The number of queues in use.
    pub(super) fn len(&self) -> u32 {
        self.live
    }

    /// A new queue.
    ///
    /// # Panics
    /// If there is none left: each queue has a process or a request, and the numbers of both are bounded.
    pub(super) fn add(&mut self, now: Instant) -> u32 {
        let q = self.free;
        assert!(q != NONE, "there are as many queues as processes and requests");
        let queue = &mut self.slab[q as usize];
        self.free = queue.next_busy;
        *queue = Queue::new(now, queue.generation.wrapping_add(1));
        self.live += 1;
        q
    }

    /// Frees a queue that is not busy.
    pub(super) fn remove(&mut self, q: u32) {
        let queue = &mut self.slab[q as usize];
        debug_assert!(queue.live && !queue.busy && queue.allocated == 0 && queue.filed.is_none());
        queue.live = false;
        queue.next_busy = self.free;
        self.live -= 1;
        self.free = q;
    }

    pub(super) fn link(&self, q: u32) -> QueueRef {
        QueueRef { index: q, generation: self[q].generation }
    }

    /// The queue of a reference, if it still exists.
    pub(super) fn follow(&self, link: QueueRef) -> Option<u32> {
        let queue = &self[link.index];
        (queue.live && queue.generation == link.generation).then_some(link.index)
    }

    /// Adds a queue to the busy ones, behind all others.
    pub(super) fn link_busy(&mut self, q: u32) {
        let prev = core::mem::replace(&mut self.last_busy, q);
        (self[q].prev, self[q].next_busy) = (prev, NONE);
        *self.behind(prev) = q;
    }

    /// Removes a queue from the busy ones.
    pub(super) fn unlink_busy(&mut self, q: u32) {
        let (prev, next) = (self[q].prev, self[q].next_busy);
        *self.behind(prev) = next;
        *(if next == NONE { &mut self.last_busy } else { &mut self[next].prev }) = prev;
    }

    /// The queue behind `q` among the busy ones; behind none, the first.
    fn behind(&mut self, q: u32) -> &mut u32 {
        if q == NONE { &mut self.first_busy } else { &mut self[q].next_busy }
    }

    /// The busy queues; those that have been busy for longest come first.
    pub(super) fn busy(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.first_busy;
        core::iter::from_fn(move || {
            let q = at;
            (q != NONE).then(|| {
                at = self[q].next_busy;
                q
            })
        })
    }

    #[inline]
    pub(super) fn level(&self, q: u32) -> u32 {
        self.wf.level(q)
    }

    /// Returns whether `q` is served only when no other queue is busy.
    #[inline]
    pub(super) fn is_idle_class(&self, q: u32) -> bool {
        self.wf.class(q) == Class::Idle
    }

    /// The number of busy queues.
    #[inline]
    pub(super) fn busy_queues(&self) -> u32 {
        self.by_class.iter().sum()
    }

    /// Returns whether another queue is busy besides the one in service.
    #[inline]
    pub(super) fn others_are_busy(&self) -> bool {
        self.busy_queues() > 1
    }

    /// Returns whether queues have different claims, so that serving them evenly would be unfair to `q`. It is not
    /// unfair to the queue with the least claim.
    #[inline]
    pub(super) fn is_asymmetric(&self, q: u32) -> bool {
        self.groups.pending() > 1
            || self.by_class.iter().filter(|n| **n > 0).count() > 1
            || (self.weights.differ() && self[q].counted_weight != self.weights.lowest())
    }

    /// Returns whether `q` has a higher class than `other`, or a larger weight. Between queues of different groups, the
    /// weights of the groups are compared.
    pub(super) fn outranks(&self, q: u32, other: u32) -> bool {
        let (class, other_class) = (self.wf.class(q), self.wf.class(other));
        if class != other_class {
            return class < other_class;
        }
        let (level, other_level) = (self.level(q), self.level(other));
        let own = level == other_level;
        let claim = |q: u32, level: u32| {
            if own || level == ROOT { self.wf.weight(q) } else { self.wf.level_weight(level) }
        };
        claim(q, level) > claim(other, other_level)
    }

    #[inline]
    pub(super) fn budget_left(&self, q: u32) -> u64 {
        self.wf.budget(q).saturating_sub(self.wf.service(q))
    }

    /// The charge of `q` for serving a request of this many sectors.
    #[inline]
    pub(super) fn charge_of(&self, q: u32, sectors: u32) -> u64 {
        let (sectors, queue) = (u64::from(sectors), &self[q]);
        if queue.sync || queue.raising.is_raised() || self.is_asymmetric(q) {
            sectors
        } else {
            sectors * ASYNC_COSTS
        }
    }

    /// Passes on the wanted weight and class of a queue. They take effect when it is next put on the service tree.
    pub(super) fn want(&mut self, q: u32) {
        let Queue { priority, raising, .. } = &self.slab[q as usize];
        self.wf.want(q, priority.class, priority.weight() * raising.factor, raising.factor);
    }

    /// Ends the raising of a queue.
    pub(super) fn end_raising(&mut self, q: u32, now: Instant) {
        self[q].raising.end(now);
        self.want(q);
        self.recount(q);
    }

    /// Ends the raising of all queues, since `low_latency` is off.
    pub(super) fn end_all_raising(&mut self, now: Instant) {
        for q in 0..self.capacity() {
            if self[q].live && self[q].raising.is_raised() {
                self.end_raising(q, now);
            }
        }
    }

    /// Decides, after a queue has been served, whether its raising ends.
    pub(super) fn review_raising(&mut self, q: u32, now: Instant, rate: &PeakRate) {
        let queue = &mut self[q];
        if !queue.raising.is_raised() {
            return;
        }
        if queue.raising.review(queue.in_burst, queue.seeks.is_totally_seeky(), now, rate) {
            self.want(q);
            self.recount(q);
        }
        // Without this, a queue in service would keep the weight for the rest of its slot.
        let queue = &self[q];
        if self.wf.weight(q) > queue.priority.weight() && !queue.raising.is_raised() {
            self.wf.reweigh(q);
        }
    }

    /// Updates the counts to which a queue contributes: queues pending in its group, raised ones, and those of its
    /// weight.
    #[inline]
    pub(super) fn recount(&mut self, q: u32) {
        let queue = &mut self.slab[q as usize];
        let pending = queue.busy || queue.dispatched > 0;
        let raised = queue.raising.is_raised();
        let weight = (pending && !raised).then(|| Weights::index(queue.priority.weight()));
        let counted_raised = queue.busy && raised;
        if queue.pending != pending {
            queue.pending = pending;
            let level = self.wf.level(q);
            if pending {
                self.groups.begin(level);
            } else {
                self.groups.end(level);
            }
        }
        if queue.counted_weight != weight {
            if let Some(old) = core::mem::replace(&mut queue.counted_weight, weight) {
                self.weights.remove(old);
            }
            if let Some(new) = weight {
                self.weights.add(new);
            }
        }
        if queue.counted_raised != counted_raised {
            queue.counted_raised = counted_raised;
            self.raised_busy =
                if counted_raised { self.raised_busy + 1 } else { self.raised_busy - 1 };
        }
    }

    /// Puts a queue on the service tree.
    pub(super) fn put_on(&mut self, q: u32, from: From, now: Instant) {
        self[q].busy = true;
        self[q].waiting_since = now;
        self.link_busy(q);
        self.wf.activate(q, from, now);
        self.by_class[self.wf.class(q) as usize] += 1;
        self.recount(q);
    }

    /// Takes a queue, which has become empty, off the service tree.
    pub(super) fn take_off(&mut self, cx: &Cx<'_>, q: u32, when: When, now: Instant) {
        self.by_class[self.wf.class(q) as usize] -= 1;
        self.wf.deactivate(q, Keep::Lead, when, now);
        self[q].busy = false;
        self.unlink_busy(q);
        self.groups.note_queue(cx, self.level(q), Event::Dequeued);
    }

    /// Takes an empty queue that is not in service off the service tree: its last request was injected, fused or
    /// withdrawn.
    pub(super) fn retire(&mut self, cx: &Cx<'_>, q: u32, now: Instant, tunables: &Tunables) {
        if tunables.low_latency {
            self[q].run_empty(now, tunables.slice_idle);
        }
        self.take_off(cx, q, When::Waiting, now);
        self.wf.set_budget(q, 0);
        self.wf.set_service(q, 0);
        self.recount(q);
    }

    /// Moves a queue that is not in service to another level.
    pub(super) fn move_to(&mut self, q: u32, level: u32, now: Instant) {
        let (old, busy) = (self.level(q), self[q].busy);
        if busy {
            self.by_class[self.wf.class(q) as usize] -= 1;
            self.wf.deactivate(q, Keep::Nothing, When::Waiting, now);
        }
        if core::mem::take(&mut self[q].pending) {
            self.groups.end(old);
        }
        self.wf.move_to(q, level);
        if busy {
            self.wf.activate(q, From::Now, now);
            self.by_class[self.wf.class(q) as usize] += 1;
            self[q].waiting_since = now;
        }
        self.recount(q);
    }

    /// Adds a new queue to the burst in progress.
    pub(super) fn join_burst(&mut self, q: u32, now: Instant) {
        let alone = self.busy_queues() == 0;
        for marked in self.burst.join(self.link(q), self.level(q), alone, now) {
            if let Some(q) = marked.and_then(|link| self.follow(link)) {
                self[q].in_burst = true;
            }
        }
    }

    /// Frees a queue that is not in service, if it has neither senders nor requests.
    pub(super) fn free_if_unused(&mut self, cx: &Cx<'_>, q: u32, now: Instant) {
        let queue = &self[q];
        if !queue.live || queue.procs > 0 || queue.allocated > 0 {
            return;
        }
        if queue.busy {
            self.take_off(cx, q, When::Waiting, now);
        }
        self.wf.forget(q);
        self.recount(q);
        self.burst.leave(self.link(q));
        self.remove(q);
    }

    /// Looks for the waker of `q`, a sync queue without waiting requests that has got one.
    pub(super) fn look_for_waker(&mut self, q: u32, device: &Device, now: Instant, slice: Nanos) {
        let queue = &self[q];
        let Some(link) = device.last_completed else { return };
        let Some(suspect) = self.follow(link) else { return };
        let alone = queue.queued == 0 && queue.dispatched == 0;
        if queue.short_think
            || !alone
            || suspect == q
            || self[suspect].shared
            || queue.waker.queue == Some(link)
            || now.since(device.last_completion) >= SOON
        {
            return;
        }
        if self[q].waker.suspect(link, now, slice) {
            self[suspect].waker.woken = Some(self.link(q));
        }
    }

    /// The waker of `q`, if it is busy.
    pub(super) fn waker_of(&self, q: u32) -> Option<u32> {
        let waker = self.follow(self[q].waker.queue?)?;
        self[waker].busy.then_some(waker)
    }

    /// The queue that `q` was last found to wake, if `q` is still its waker and it is busy.
    pub(super) fn woken_by(&self, q: u32) -> Option<u32> {
        let woken = self.follow(self[q].waker.woken?)?;
        let still = self[woken].waker.queue == Some(self.link(q));
        (still && self[woken].busy).then_some(woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_reference_to_a_queue_that_was_used_again_leads_nowhere() {
        let mut queues = Queues::new(2);
        let q = queues.add(Instant::ZERO);
        let link = queues.link(q);
        assert_eq!(queues.follow(link), Some(q));
        queues.remove(q);
        assert_eq!(queues.follow(link), None);
        assert_eq!(queues.add(Instant::ZERO), q);
        assert_eq!(queues.follow(link), None);
    }

    #[test]
    fn the_busy_are_listed_in_order_and_leave_from_anywhere() {
        let mut queues = Queues::new(4);
        let all: Vec<u32> = (0..4).map(|_| queues.add(Instant::ZERO)).collect();
        all.iter().for_each(|q| queues.link_busy(*q));
        queues.unlink_busy(1);
        queues.unlink_busy(3);
        queues.link_busy(1);
        assert!(queues.busy().eq([0, 2, 1]));
        [0, 2, 1].into_iter().for_each(|q| queues.unlink_busy(q));
        assert_eq!(queues.busy().count(), 0);
    }
}
