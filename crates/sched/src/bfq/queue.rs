//! A queue: the state of the I/O of a process, or of async I/O of a group and priority; its priority, as a class of
//! service and a weight; and its waker.
//!
//! State only, but for wakers. The events are in the files named after them: `arrive.rs`, `select.rs`, `expire.rs`,
//! `finish.rs` and those of the heuristics.
//!
//! Wakers (`spec/bfq.md` section 12): a process may wait for the I/O of another process before it continues. A queue
//! with a long think time that becomes non-empty right after a completion of the same other queue, three times in a
//! row, is woken by that queue. While the device is kept idle for it, requests of its waker are injected, as that is
//! the shortest way on.

use super::habits::{IoShare, Seeks, ThinkTime};
use super::injection::Injection;
use super::raising::Raising;
use super::wf2q::Class;
use super::{Bfq, QueueRef, Senders};
use alloc::boxed::Box;
use blkmq_core::{self as core_types, Instant, IoPrio, Nanos, RequestId};
use core::ops::{Index, IndexMut};

/// No lane.
pub(super) const NO_LANE: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// The state that a process gets back when its queue is no longer shared.
#[derive(Clone, Copy)]
pub(super) struct Saved {
    pub(super) think: ThinkTime,
    pub(super) share: IoShare,
    pub(super) short_think: bool,
    pub(super) in_burst: bool,
    pub(super) raising: Raising,
    pub(super) injection: Injection,
}

/// A queue.
#[derive(Clone)]
pub(super) struct Queue {
    generation: u32,
    pub(super) live: bool,
    pub(super) sync: bool,
    pub(super) senders: Senders,
    /// Its processes are threads of an application, and no tenants.
    pub(super) of_threads: bool,
    /// The number of processes that may send to it.
    pub(super) procs: u32,
    /// The wanted priority; its entity has the one in force.
    pub(super) priority: Priority,

    /// The lane of its requests, while there are any.
    pub(super) lane: u32,
    /// The request that is served next.
    pub(super) next: Option<RequestId>,
    /// Requests waiting in its order.
    pub(super) queued: u32,
    /// Requests in the device.
    pub(super) dispatched: u32,
    /// Requests inserted and not completed.
    pub(super) allocated: u32,
    /// Its request that is filed in the order of positions.
    pub(super) filed: Option<RequestId>,

    /// On the service tree or in service.
    pub(super) busy: bool,
    /// Counted in its group as busy or with requests in the device.
    pub(super) pending: bool,
    /// Counted among the busy raised queues.
    pub(super) counted_raised: bool,
    /// The weight under which it is counted, if it is not raised.
    pub(super) counted_weight: Option<u8>,
    /// Neighbours among the busy queues.
    prev: u32,
    next_busy: u32,

    pub(super) max_budget: u64,
    /// The age of its oldest request has been checked in this slot.
    pub(super) fifo_checked: bool,
    /// `next` was chosen for its age: no later request takes its place.
    pub(super) next_is_due: bool,
    /// It ran empty only for a moment, and may continue with the rest of its budget.
    pub(super) back_soon: bool,
    pub(super) just_created: bool,
    pub(super) created: Instant,
    /// The time since which it has had no request waiting or in the device; `None` for a new queue counts as for
    /// ever.
    pub(super) idle_since: Option<Instant>,
    /// The time since which it has waited for its turn.
    pub(super) waiting_since: Instant,
    /// The time at which it last became busy, and its service since then.
    pub(super) backlogged: Instant,
    pub(super) served: u64,
    pub(super) first_io: Instant,

    pub(super) think: ThinkTime,
    pub(super) short_think: bool,
    pub(super) share: IoShare,
    pub(super) seeks: Seeks,
    /// The end of its last request.
    pub(super) last_end: u64,

    pub(super) raising: Raising,
    pub(super) injection: Injection,
    pub(super) waker: Waker,
    /// Part of a large burst.
    pub(super) in_burst: bool,
    /// Several processes send to it.
    pub(super) shared: bool,
    /// Merged permanently.
    pub(super) stable: bool,
    /// Its processes no longer cooperate.
    pub(super) to_split: bool,
    pub(super) split: Option<Instant>,
}

impl Queue {
    fn new(now: Instant, generation: u32) -> Self {
        Self {
            generation,
            live: true,
            sync: true,
            senders: Senders::Many,
            of_threads: false,
            procs: 0,
            priority: Priority::DEFAULT,
            lane: NO_LANE,
            next: None,
            queued: 0,
            dispatched: 0,
            allocated: 0,
            filed: None,
            busy: false,
            pending: false,
            counted_raised: false,
            counted_weight: None,
            prev: NONE,
            next_busy: NONE,
            max_budget: 0,
            fifo_checked: false,
            next_is_due: false,
            back_soon: false,
            just_created: true,
            created: now,
            idle_since: None,
            waiting_since: now,
            backlogged: now,
            served: 0,
            first_io: now,
            think: ThinkTime::new(now),
            short_think: true,
            share: IoShare::new(now),
            seeks: Seeks::NEW,
            last_end: 0,
            raising: Raising::new(now),
            injection: Injection::new(now),
            waker: Waker::new(now),
            in_burst: false,
            shared: false,
            stable: false,
            to_split: false,
            split: None,
        }
    }

    /// Returns whether the queue has no waiting requests.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// The state that its process gets back when it has a queue of its own again.
    pub(super) fn save(&self) -> Saved {
        Saved {
            think: self.think,
            share: self.share,
            short_think: self.short_think,
            in_burst: self.in_burst,
            raising: self.raising,
            injection: self.injection,
        }
    }

    /// The reverse of [`save`](Self::save), at `now`.
    pub(super) fn restore(&mut self, saved: &Saved, now: Instant) {
        self.think = saved.think;
        self.share = saved.share;
        self.short_think = saved.short_think;
        self.in_burst = saved.in_burst;
        self.raising = saved.raising;
        self.injection = saved.injection;
        self.split = Some(now);
    }
}

/// All queues, and the busy ones among them in a list.
pub(super) struct Queues {
    slab: Box<[Queue]>,
    free: u32,
    live: u32,
    first_busy: u32,
    last_busy: u32,
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
        Self { slab, free: 0, live: 0, first_busy: NONE, last_busy: NONE }
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
        *(if prev == NONE {
            &mut self.first_busy
        } else {
            &mut self.slab[prev as usize].next_busy
        }) = q;
    }

    /// Removes a queue from the busy ones.
    pub(super) fn unlink_busy(&mut self, q: u32) {
        let (prev, next) = (self[q].prev, self[q].next_busy);
        *(if prev == NONE {
            &mut self.first_busy
        } else {
            &mut self.slab[prev as usize].next_busy
        }) = next;
        *(if next == NONE { &mut self.last_busy } else { &mut self.slab[next as usize].prev }) =
            prev;
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
}

/// A class and a level in it, 0 being the highest of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The class of service.
    pub class: Class,
    /// 0 to 7.
    pub level: u8,
}

impl Priority {
    /// For I/O without a priority.
    pub const DEFAULT: Self = Self { class: Class::BestEffort, level: 4 };

    /// The priority of an I/O. Without a class it is best-effort, of the middle level.
    #[must_use]
    pub fn of(ioprio: IoPrio) -> Self {
        let level = ioprio.level() as u8;
        match ioprio.class() {
            core_types::Class::None => Self::DEFAULT,
            core_types::Class::Realtime => Self { class: Class::Realtime, level },
            core_types::Class::BestEffort => Self { class: Class::BestEffort, level },
            core_types::Class::Idle => Self { class: Class::Idle, level: 7 },
        }
    }

    /// 10 for the lowest level, 80 for the highest.
    #[must_use]
    pub fn weight(self) -> u32 {
        (8 - u32::from(self.level)) * 10
    }

    /// A number for each priority, by which async queues are distinguished.
    #[must_use]
    pub fn number(self) -> u8 {
        self.class as u8 * 8 + self.level
    }
}

/// A request that arrives sooner than this after a completion may be caused by it.
const SOON: Nanos = Nanos::from_millis(4);
/// This many times in a row is no coincidence.
const OFTEN: u32 = 3;
/// Within this many times `slice_idle`.
const WINDOW: u64 = 128;

/// The waker of a queue, and the queue that it wakes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    pub(super) queue: Option<QueueRef>,
    suspect: Option<QueueRef>,
    seen: u32,
    since: Instant,
    /// The queue that it was last found to wake.
    pub(super) woken: Option<QueueRef>,
}

impl Waker {
    pub(super) const fn new(now: Instant) -> Self {
        Self { queue: None, suspect: None, seen: 0, since: now, woken: None }
    }

    /// The queue became non-empty right after a completion of `suspect`. Returns whether `suspect` is its waker now.
    fn suspect(&mut self, suspect: QueueRef, now: Instant, slice_idle: Nanos) -> bool {
        let window = Nanos(slice_idle.0.saturating_mul(WINDOW));
        if self.suspect != Some(suspect) || now > self.since + window {
            (self.suspect, self.seen, self.since) = (Some(suspect), 1, now);
        } else {
            self.seen += 1;
        }
        if self.seen < OFTEN {
            return false;
        }
        (self.queue, self.suspect) = (Some(suspect), None);
        true
    }
}

impl Bfq {
    /// A sync queue without waiting requests has got one.
    pub(super) fn look_for_waker(&mut self, q: u32) {
        let queue = &self.queues[q];
        let Some(link) = self.device.last_completed else { return };
        let Some(suspect) = self.queues.follow(link) else { return };
        let alone = queue.queued == 0 && queue.dispatched == 0;
        if queue.short_think
            || !alone
            || suspect == q
            || self.queues[suspect].shared
            || queue.waker.queue == Some(link)
            || self.now.since(self.device.last_completion) >= SOON
        {
            return;
        }
        let (now, slice_idle) = (self.now, self.tunables.slice_idle);
        if self.queues[q].waker.suspect(link, now, slice_idle) {
            self.queues[suspect].waker.woken = Some(self.queues.link(q));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bfq::queue::Queues;
    use crate::bfq::tests::{add_queue, with_a_queue};
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

    #[test]
    fn levels_are_weights_and_no_class_is_the_middle() {
        let of = |class, level| Priority::of(IoPrio::new(class, level).expect("a level"));
        assert_eq!(of(core_types::Class::BestEffort, 0).weight(), 80);
        assert_eq!(of(core_types::Class::Realtime, 7).weight(), 10);
        assert_eq!(of(core_types::Class::None, 0), Priority::DEFAULT);
        assert_eq!(Priority::DEFAULT.weight(), 40);
        assert_eq!(
            of(core_types::Class::Idle, 3),
            of(core_types::Class::Idle, 0),
            "one idle queue"
        );
    }

    #[test]
    fn priorities_have_numbers_of_their_own() {
        let numbers: alloc::collections::BTreeSet<u8> = Class::ALL
            .into_iter()
            .flat_map(|class| (0..8).map(move |level| Priority { class, level }.number()))
            .collect();
        assert_eq!(numbers.len(), 24);
    }

    #[test]
    fn a_queue_that_thinks_for_long_and_has_no_other_request_may_be_woken() {
        let seen = |short_think, queued, dispatched| {
            let (mut bfq, q) = with_a_queue("");
            let other = add_queue(&mut bfq);
            bfq.device.last_completed = Some(bfq.queues.link(other));
            let queue = &mut bfq.queues[q];
            (queue.short_think, queue.queued, queue.dispatched) = (short_think, queued, dispatched);
            bfq.look_for_waker(q);
            bfq.queues[q].waker.seen
        };
        assert_eq!([seen(false, 0, 0), seen(true, 0, 0)], [1, 0]);
        assert_eq!([seen(false, 1, 0), seen(false, 0, 1)], [0, 0]);
    }

    #[test]
    fn three_times_in_a_row_and_within_the_window() {
        let mut queues = Queues::new(2);
        let links = [0; 2].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let slice = Nanos::from_millis(8);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut waker = Waker::new(Instant::ZERO);
        assert!(!waker.suspect(links[0], at(0), slice));
        assert!(!waker.suspect(links[1], at(10), slice), "another one");
        assert!(!waker.suspect(links[0], at(20), slice));
        assert!(!waker.suspect(links[0], at(30), slice));
        assert!(!waker.suspect(links[0], at(1_045), slice), "too late: it begins anew");
        assert!(!waker.suspect(links[0], at(1_050), slice));
        assert!(waker.suspect(links[0], at(1_060), slice));
        assert_eq!(waker.queue, Some(links[0]));
        let mut waker = Waker::new(Instant::ZERO);
        let found = [0, 500, 1_024].map(|ms| waker.suspect(links[0], at(ms), slice));
        assert_eq!(found, [false, false, true], "at the end of the window");
    }
}
