//! All queues, with their places on the service tree, the counts of the busy ones, and their limits on scheduler tags
//! (`spec/bfq.md` section 15), so that a submitter of much I/O does not take them from a submitter of little: a request
//! without a tag cannot be selected.
//!
//! Groups are not limited: a free tag goes to the group with the fewest requests in the scheduler for its weight
//! ([`shares_by_group`](crate::Facts::shares_by_group)).

use super::device::{Device, PeakRate};
use super::groups::{Groups, Weights};
use super::injection::SOON;
use super::queue::{NONE, Queue};
use super::raising::Burst;
use super::tunables::Tunables;
use super::wf2q::{Class, From, Keep, ROOT, Wf2q, When};
use super::{QueueRef, is_sync};
use crate::{Cx, Event, Used};
use alloc::boxed::Box;
use blkmq_core::{Instant, IoMeta, Nanos};
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
    fn link_busy(&mut self, q: u32) {
        let prev = core::mem::replace(&mut self.last_busy, q);
        (self[q].prev, self[q].next_busy) = (prev, NONE);
        *self.behind(prev) = q;
    }

    /// Removes a queue from the busy ones.
    fn unlink_busy(&mut self, q: u32) {
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

/// Sixteenths of all tags for async I/O and for sync writes, while no queue is raised.
const CALM: (u32, u32) = (8, 12);
/// Like [`CALM`], but while a queue is raised.
const RAISED: (u32, u32) = (3, 6);

/// The number of `of` tags that this kind of I/O may have; at least one.
fn cap(io: &IoMeta, of: u32, raised: bool) -> u32 {
    let (unsynced, written) = if raised { RAISED } else { CALM };
    let sixteenths = match (io.is_sync_read(), is_sync(io)) {
        (true, _) => 16,
        (false, true) => written,
        (false, false) => unsynced,
    };
    (u64::from(of) * u64::from(sixteenths) / 16).max(1) as u32
}

/// The tags in use that count against the cap of this kind of I/O.
fn taken(io: &IoMeta, used: Used) -> u32 {
    match (io.is_sync_read(), is_sync(io)) {
        (true, _) => used.all,
        (false, true) => used.limited,
        (false, false) => used.unsynced,
    }
}

/// `limit * part / whole`, rounded to the nearest.
fn share(limit: u64, part: u64, whole: u64) -> u64 {
    (limit * part + whole / 2).checked_div(whole).unwrap_or(limit)
}

impl Queues {
    /// The tags that `io` may have; `None` if as many would be taken after `before` more.
    pub(super) fn cap_of(&self, io: &IoMeta, used: Used, before: u32) -> Option<u32> {
        let cap = cap(io, used.of, self.raised_busy > 0);
        (taken(io, used) + before < cap).then_some(cap)
    }

    /// Returns whether `n` I/Os like `io`, which go to `q`, may each have a tag after the ones before.
    pub(super) fn admits_together(&self, q: u32, io: &IoMeta, used: Used, n: u32) -> bool {
        self.cap_of(io, used, n - 1).is_some_and(|cap| self.has_room(q, n - 1, cap))
    }

    /// Returns whether the queue may have another one of `cap` tags after `before` more. An idle queue always may, so
    /// that the scheduler sees its work. The first of several requests makes it busy.
    pub(super) fn has_room(&self, q: u32, before: u32, cap: u32) -> bool {
        let is_busy = self[q].busy || before > 0;
        !is_busy || self.has_share(q, self[q].allocated + before, cap.into())
    }

    /// Returns whether the queue, which has this many tags and is busy, may have another one of `cap`: by weight among
    /// the queues of its group.
    fn has_share(&self, q: u32, allocated: u32, cap: u64) -> bool {
        if allocated == 0 {
            // A queue without tags may always have one.
            return true;
        }
        let (level, class) = (self.level(q), self.wf.class(q));
        // The weights of a class count eight times as much as those of the next lower one.
        let upto = &Class::ALL[..=class as usize];
        let sum = upto.iter().fold(0, |sum, class| sum * 8 + self.wf.wsum(level, *class));
        let limit = share(cap, self.wf.weight(q).into(), sum);
        u64::from(allocated) < limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bfq, FACTORY};
    use super::*;
    use crate::testkit::Driver;
    use crate::{At, NoEnv, Options, Requests, Scheduler};
    use alloc::format;
    use alloc::vec::Vec;
    use blkmq_core::{IoFlags, Op, Owner};

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

    #[test]
    fn s19_15_async_has_half_or_three_sixteenths() {
        let io = IoMeta::new(Op::Write, 0, 8);
        assert_eq!((cap(&io, 256, false), cap(&io, 256, true)), (128, 48));
        let sync = IoMeta { flags: IoFlags::SYNC, ..io };
        assert_eq!((cap(&sync, 256, false), cap(&sync, 256, true)), (192, 96));
        let read = IoMeta::new(Op::Read, 0, 8);
        assert_eq!((cap(&read, 256, false), cap(&read, 256, true)), (256, 256));
        assert_eq!(cap(&io, 1, true), 1, "never none");
    }

    #[test]
    fn shares_are_rounded_and_of_nobody_everything() {
        assert_eq!(share(100, 1, 3), 33);
        assert_eq!(share(100, 2, 3), 67);
        assert_eq!(share(100, 5, 0), 100);
    }

    /// A policy in which two owners have I/Os like `io`, and the queue of the first one.
    fn two_queues(io: IoMeta) -> (Bfq, u32) {
        let options = Options::parse(FACTORY.attributes, "low_latency=0").expect("it is an option");
        let mut bfq = Bfq::new(&Driver::shape(64), &options);
        let mut requests = Requests::new(64);
        let metas =
            [(1, 0), (2, 8000)].map(|(owner, sector)| IoMeta { owner: Owner(owner), sector, ..io });
        for meta in metas {
            let rq = requests.alloc(meta).expect("a slot is free");
            bfq.insert(&Cx::new(Instant::ZERO, &requests, &NoEnv), rq, At::Tail);
        }
        let q = bfq.queue_for(&metas[0]).expect("it has an I/O");
        (bfq, q)
    }

    #[test]
    fn several_are_admitted_together_exactly_if_each_is_after_the_ones_before() {
        let read = IoMeta::new(Op::Read, 0, 8);
        let write = IoMeta::new(Op::Write, 0, 8);
        let sync = IoMeta { flags: IoFlags::SYNC, ..write };
        for (io, raised) in [read, sync, write].into_iter().flat_map(|io| [(io, 0), (io, 1)]) {
            let (mut bfq, q) = two_queues(io);
            bfq.queues.raised_busy = raised;
            let mut answers = [0, 0];
            for (of, all, n, allocated) in cases() {
                bfq.queues[q].allocated = allocated;
                let used = |more| {
                    let all = all + more;
                    Used { of, all, limited: all, unsynced: all }
                };
                let cap = cap(&io, of, raised > 0);
                let one = |before| {
                    taken(&io, used(before)) < cap
                        && bfq.queues.has_share(q, allocated + before, cap.into())
                };
                let got = bfq.queues.admits_together(q, &io, used(0), n);
                let at =
                    format!("{n} of {io:?} with {all} of {of} in use, {allocated} by the queue");
                assert_eq!(got, (0..n).all(one), "{at}");
                answers[usize::from(got)] += 1;
            }
            assert!(answers[0] > 50 && answers[1] > 20, "{answers:?}");
        }
    }

    /// A queue that many processes share, each of which reads at depth 1, has all its requests at the device. As in
    /// Linux, its share counts only while it competes.
    #[test]
    fn s19_15_a_queue_with_no_request_waiting_is_not_limited() {
        let read = IoMeta { owner: Owner(1), ..IoMeta::new(Op::Read, 0, 8) };
        let (mut bfq, q) = two_queues(read);
        bfq.queues[q].allocated = 20;
        let used = Used { of: 32, all: 21, limited: 21, unsynced: 21 };
        let requests = Requests::new(1);
        let cx = Cx::new(Instant::ZERO, &requests, &NoEnv);
        assert!(
            !bfq.admits(&cx, &read, used),
            "it has more than half of the tags, and waits for service"
        );
        bfq.queues[q].busy = false;
        assert!(bfq.admits(&cx, &read, used) && bfq.queues.admits_together(q, &read, used, 1));
        assert!(
            !bfq.queues.admits_together(q, &read, used, 2),
            "the first of two makes it compete"
        );
        let all = Used { all: 32, ..used };
        assert!(!bfq.admits(&cx, &read, all), "the caps hold for every queue");
    }

    /// Tags, tags in use, I/Os that come together, and tags of the queue.
    fn cases() -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let tags = [4_u32, 16, 32].into_iter();
        tags.flat_map(|of| {
            (0..=of).flat_map(move |all| {
                (1..=8).flat_map(move |n| (0..=all.min(9)).map(move |own| (of, all, n, own)))
            })
        })
    }
}
