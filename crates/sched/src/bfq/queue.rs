//! A queue: the state of the I/O of a process, or of async I/O of a group and priority; and its class and weight. Also
//! the senders of I/O: a record for each process (an owner's sync I/O) and each async queue of a group, by key.
//!
//! State, and conclusions from it. `arrive.rs` and `serve.rs` have the events.
//!
//! Apart from the hint [`owner_gone`](crate::Scheduler::owner_gone), a policy does not see the end of a process. So the
//! number of records is bounded: when the table is full, the record that has been without requests for longest is
//! removed. It is an open-addressed table over a slab, with the same hash in every run. All operations are O(1) on
//! average, and nothing allocates after creation.

use super::habits::{IoShare, Seeks, ThinkTime};
use super::injection::{Injection, Waker};
use super::raising::{FORGIVEN, LONG_IDLE, Looks, Raising, SOFT_RT_RATE, SOFT_RT_SLACK};
use super::wf2q::Class;
use super::{QueueRef, Senders};
use alloc::boxed::Box;
use blkmq_core as core_types;
use blkmq_core::{GroupIndex, Instant, IoPrio, Nanos, Owner, RequestId};

/// No lane.
pub(super) const NO_LANE: u32 = u32::MAX;
/// No neighbour in a list: of the busy queues, or of records of senders.
pub(super) const NONE: u32 = u32::MAX;

/// The state that a process gets back with a queue of its own.
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
    pub(super) generation: u32,
    pub(super) live: bool,
    pub(super) sync: bool,
    pub(super) senders: Senders,
    /// Its processes are threads of an application, and no tenants.
    pub(super) of_threads: bool,
    /// The number of processes that may send to it.
    pub(super) procs: u32,
    /// The wanted priority. Its entity has the one in force.
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
    pub(super) prev: u32,
    pub(super) next_busy: u32,

    pub(super) max_budget: u64,
    /// The age of its oldest request has been checked in this slot.
    pub(super) fifo_checked: bool,
    /// `next` was chosen for its age: no later request takes its place.
    pub(super) next_is_due: bool,
    /// It ran empty within its budget, and may continue with the rest if it soon has a request again.
    pub(super) back_soon: bool,
    pub(super) just_created: bool,
    pub(super) created: Instant,
    /// The time since which it has had no request waiting or in the device. `None`, of a new queue, counts as for ever.
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
    /// Its processes have ceased to cooperate.
    pub(super) to_split: bool,
    pub(super) split: Option<Instant>,
}

impl Queue {
    pub(super) fn new(now: Instant, generation: u32) -> Self {
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

    /// Returns whether the queue was split off so recently that its habits are unknown.
    pub(super) fn is_just_split(&self, now: Instant) -> bool {
        self.split.is_some_and(|at| now <= at + LONG_IDLE)
    }

    /// Updates the habits of the process on an arrival. `idle_class`: the queue is served only when no other is busy.
    #[inline]
    pub(super) fn learn_habits(&mut self, now: Instant, slice_idle: Nanos, idle_class: bool) {
        // For a queue with a long think time, an arrival counts also if the device was kept idle for it. Otherwise a
        // queue that is always waited for would keep the think time of a stall of the machine.
        let counts = !self.busy || (self.is_empty() && !self.short_think);
        if counts && self.dispatched == 0 {
            self.think.arrived(now, slice_idle);
        }
        if idle_class || slice_idle == Nanos::ZERO || self.is_just_split(now) {
            return;
        }
        let short = !self.think.exceeds(Nanos(slice_idle.0 / 2));
        if short != self.short_think {
            self.short_think = short;
            self.injection.think_time_changed(short, now);
        }
    }

    /// The time for which it has had no request, at the arrival of one.
    #[inline]
    pub(super) fn idle_until(&self, now: Instant) -> Nanos {
        let idle = self.is_empty() && self.dispatched == 0;
        if idle { now.since(self.think.last_end) } else { Nanos::ZERO }
    }

    /// Updates the state of a queue that becomes busy.
    pub(super) fn wake(&mut self, now: Instant) {
        let forgiven = self.idle_since.is_some_and(|at| now > at + FORGIVEN);
        if !self.just_created && self.dispatched == 0 && forgiven {
            self.in_burst = false;
        }
        self.just_created = false;
        self.backlogged = now;
        self.served = 0;
        self.raising.soft_rt_due = false;
    }

    /// Counts service of `sectors`.
    #[inline]
    pub(super) fn serve(&mut self, sectors: u64, now: Instant) {
        if self.served == 0 {
            self.first_io = now;
        }
        self.served += sectors;
        if self.raising.is_raised() {
            self.raising.served += sectors;
        }
    }

    /// Returns whether it has been idle for so long that it counts as new.
    pub(super) fn long_idle(&self, now: Instant) -> bool {
        self.dispatched == 0 && self.idle_since.is_none_or(|since| now > since + LONG_IDLE)
    }

    pub(super) fn looks(&self, now: Instant) -> Looks {
        let ordinary = !self.in_burst && self.priority.weight() == 40;
        let soft_rt = ordinary
            && !self.seeks.is_totally_seeky()
            && self.dispatched == 0
            && now > self.raising.soft_rt_after;
        Looks { interactive: ordinary && self.long_idle(now), soft_rt }
    }

    /// Computes the time after which the next request makes the queue, which has run empty, soft real-time; after the
    /// last completion if requests are in the device. The time is not before that of the highest moderate rate, and
    /// later than a greedy process would send the request.
    pub(super) fn run_empty(&mut self, now: Instant, slice_idle: Nanos) {
        // The service time of requests in the device is unknown.
        self.raising.soft_rt_due = self.dispatched > 0;
        if self.dispatched == 0 {
            let at_rate = Nanos(self.served.saturating_mul(1_000_000_000) / SOFT_RT_RATE);
            let greedy = now + Nanos(slice_idle.0.saturating_add(SOFT_RT_SLACK.0));
            let after = (self.backlogged + at_rate).max(greedy);
            self.raising.soft_rt_after = self.raising.soft_rt_after.max(after);
        }
    }

    /// The state that its process gets back with a queue of its own.
    pub(super) fn save(&self) -> Saved {
        let Self { think, share, short_think, in_burst, raising, injection, .. } = *self;
        Saved { think, share, short_think, in_burst, raising, injection }
    }

    /// Restores a state of [`save`](Self::save) at `now`.
    pub(super) fn restore(&mut self, saved: &Saved, now: Instant) {
        let Saved { think, share, short_think, in_burst, raising, injection } = *saved;
        (self.think, self.share, self.short_think) = (think, share, short_think);
        (self.in_burst, self.raising, self.injection) = (in_burst, raising, injection);
        self.split = Some(now);
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

/// The sender of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key(u64);

impl Key {
    /// The sync I/O of an owner.
    pub(super) fn process(owner: Owner) -> Self {
        Self(owner.0.into())
    }

    /// Returns whether the sender is a thread of an application, and not a tenant.
    pub(super) fn is_thread(self) -> bool {
        self.0 >> 32 == 0 && Owner(self.0 as u32).is_thread()
    }

    /// Async I/O: one queue for each group and priority. Priorities have numbers below 256.
    pub(super) fn shared(group: GroupIndex, priority: u8) -> Self {
        Self((1 << 32) + (u64::from(group.0) << 8) + u64::from(priority))
    }

    /// The group of an async queue.
    pub(super) fn shared_by(self) -> Option<GroupIndex> {
        (self.0 >> 32 == 1).then_some(GroupIndex((self.0 >> 8) as u16))
    }
}

/// A process, or an async queue.
#[derive(Clone, Copy)]
pub(super) struct Proc {
    pub(super) key: Key,
    /// Its queue, if it has one. With `left`, the queue does not count the process.
    pub(super) queue: Option<u32>,
    pub(super) left: bool,
    /// Requests inserted and not completed.
    pub(super) requests: u32,
    /// The group of its last I/O; `None` if that group is gone.
    pub(super) group: Option<GroupIndex>,
    pub(super) ioprio: IoPrio,
    /// The state of its own queue before the merge into another one.
    pub(super) saved: Option<Saved>,
    /// The queue into which its queue may be merged permanently.
    pub(super) twin: Option<QueueRef>,
    prev: u32,
    next: u32,
}

impl Proc {
    /// The record of no sender. No sender has this key.
    const UNUSED: Self = Self {
        key: Key(u64::MAX),
        queue: None,
        left: false,
        requests: 0,
        group: None,
        ioprio: IoPrio::from_bits(0),
        saved: None,
        twin: None,
        prev: NONE,
        next: NONE,
    };
}

/// All processes and async queues.
pub(super) struct Procs {
    slab: Box<[Proc]>,
    /// Places of the hash table: an index into the slab, or [`NONE`].
    table: Box<[u32]>,
    /// Unused records, chained by `next`.
    free: u32,
    /// Records without requests, least recently used first.
    oldest: u32,
    newest: u32,
    /// The record found last, since most I/Os come in runs of one sender.
    last: u32,
}

impl Procs {
    /// A table of `capacity` records, which must exceed the number of records with requests at any time.
    pub(super) fn new(capacity: u32) -> Self {
        let mut slab = alloc::vec![Proc::UNUSED; capacity as usize].into_boxed_slice();
        for (at, proc) in slab.iter_mut().enumerate() {
            proc.next = if at + 1 < capacity as usize { at as u32 + 1 } else { NONE };
        }
        let places = (capacity as usize * 2).next_power_of_two();
        let table = alloc::vec![NONE; places].into_boxed_slice();
        Self { slab, table, free: 0, oldest: NONE, newest: NONE, last: 0 }
    }

    pub(super) fn at(&self, proc: u32) -> &Proc {
        &self.slab[proc as usize]
    }

    pub(super) fn at_mut(&mut self, proc: u32) -> &mut Proc {
        &mut self.slab[proc as usize]
    }

    /// Every record in use. O(capacity).
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.iter().copied().filter(|at| *at != NONE)
    }

    #[inline]
    fn home(&self, key: Key) -> usize {
        let hash = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.table.len() - 1)
    }

    fn place_of(&self, key: Key) -> Option<usize> {
        let mut place = self.home(key);
        loop {
            match self.table[place] {
                NONE => return None,
                at if self.slab[at as usize].key == key => return Some(place),
                _ => place = (place + 1) & (self.table.len() - 1),
            }
        }
    }

    /// The record of `key`.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        if self.slab[self.last as usize].key == key {
            return Some(self.last);
        }
        self.place_of(key).map(|place| self.table[place])
    }

    /// The queue to which I/O of `key` would go, if there is one.
    pub(super) fn queue_of(&self, key: Key) -> Option<u32> {
        self.find(key).and_then(|proc| self.at(proc).queue)
    }

    /// Expects the next [`find`](Self::find) to be for `proc`.
    #[inline]
    pub(super) fn remember(&mut self, proc: u32) {
        self.last = proc;
    }

    /// Returns whether there is no room for another record.
    pub(super) fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// The record that has been without requests for longest.
    pub(super) fn idlest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// A new record, for a key without one.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn add(&mut self, key: Key) -> u32 {
        let at = self.free;
        assert!(at != NONE, "whoever adds has made room");
        let proc = &mut self.slab[at as usize];
        self.free = proc.next;
        *proc = Proc { key, ..Proc::UNUSED };
        let mut place = self.home(key);
        while self.table[place] != NONE {
            place = (place + 1) & (self.table.len() - 1);
        }
        self.table[place] = at;
        self.push(at);
        at
    }

    /// Removes a record without requests.
    pub(super) fn remove(&mut self, proc: u32) {
        assert!(self.slab[proc as usize].requests == 0, "its requests still name it");
        self.unlink(proc);
        let mut hole = self.place_of(self.slab[proc as usize].key).expect("it is in the table");
        // A record that was displaced from its home by the removed one moves back.
        let mask = self.table.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let at = self.table[place];
            if at == NONE {
                break;
            }
            let home = self.home(self.slab[at as usize].key);
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.table[hole] = at;
                hole = place;
            }
        }
        self.table[hole] = NONE;
        let gone = &mut self.slab[proc as usize];
        gone.key = Proc::UNUSED.key;
        gone.next = self.free;
        self.free = proc;
    }

    /// Counts one more request of the process under way.
    #[inline]
    pub(super) fn begin(&mut self, proc: u32) {
        self.slab[proc as usize].requests += 1;
        if self.slab[proc as usize].requests == 1 {
            self.unlink(proc);
        }
    }

    /// Counts `n` more requests of the process under way, at least one.
    #[inline]
    pub(super) fn begin_together(&mut self, proc: u32, n: u32) {
        self.begin(proc);
        self.slab[proc as usize].requests += n - 1;
    }

    /// Counts one request of the process less under way.
    #[inline]
    pub(super) fn end(&mut self, proc: u32) {
        self.slab[proc as usize].requests -= 1;
        if self.slab[proc as usize].requests == 0 {
            self.push(proc);
            if self.slab[proc as usize].left {
                self.remove(proc);
            }
        }
    }

    /// Removes the record of a process without a queue, after its requests have completed.
    pub(super) fn forget(&mut self, proc: u32) {
        if self.slab[proc as usize].requests == 0 {
            self.remove(proc);
        } else {
            let proc = &mut self.slab[proc as usize];
            proc.left = true;
            // A process that returns begins anew.
            (proc.saved, proc.twin) = (None, None);
        }
    }

    /// Forgets the group of processes whose name is reused: they may have queues on other levels. O(capacity).
    pub(super) fn forget_group(&mut self, group: GroupIndex) {
        let its = self.slab.iter_mut().filter(|proc| proc.group == Some(group));
        its.for_each(|proc| proc.group = None);
    }

    fn push(&mut self, proc: u32) {
        let prev = core::mem::replace(&mut self.newest, proc);
        (self.slab[proc as usize].prev, self.slab[proc as usize].next) = (prev, NONE);
        *(if prev == NONE { &mut self.oldest } else { &mut self.slab[prev as usize].next }) = proc;
    }

    fn unlink(&mut self, proc: u32) {
        let Proc { prev, next, .. } = self.slab[proc as usize];
        *(if prev == NONE { &mut self.oldest } else { &mut self.slab[prev as usize].next }) = next;
        *(if next == NONE { &mut self.newest } else { &mut self.slab[next as usize].prev }) = prev;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use blkmq_core::Rng;

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
    fn agrees_with_a_map_through_collisions_and_removals() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut procs = Procs::new(40);
            let mut model = BTreeMap::new();
            // Twelve of the 128 places, on both sides of the end of the table.
            let near_the_end = |owner: &u32| procs.home(Key::process(Owner(*owner))) % 124 < 8;
            let owners: Vec<u32> = (0..).filter(near_the_end).take(60).collect();
            for _ in 0..2_000 {
                let owner = owners[rng.below(60) as usize];
                let key = Key::process(Owner(owner));
                assert_eq!(procs.find(key), model.get(&owner).copied(), "seed {seed}");
                match model.get(&owner) {
                    Some(proc) if rng.chance(1, 2) => {
                        procs.remove(*proc);
                        model.remove(&owner);
                    }
                    Some(proc) => procs.remember(*proc),
                    None if !procs.is_full() => {
                        model.insert(owner, procs.add(key));
                    }
                    None => assert_eq!(model.len(), 40),
                }
            }
            assert_eq!(procs.all().count(), model.len());
        }
    }

    #[test]
    fn the_idlest_is_whoever_finished_first() {
        let mut procs = Procs::new(3);
        let [a, b, c] = [1, 2, 3].map(|owner| procs.add(Key::process(Owner(owner))));
        assert!(procs.is_full());
        [a, b, c].into_iter().for_each(|proc| procs.begin(proc));
        assert_eq!(procs.idlest(), None);
        procs.end(b);
        procs.end(a);
        assert_eq!(procs.idlest(), Some(b));
        procs.begin(b);
        assert_eq!(procs.idlest(), Some(a));
    }

    #[test]
    fn a_sender_inherits_nothing_from_the_one_whose_record_it_gets() {
        let mut procs = Procs::new(1);
        let old = procs.add(Key::process(Owner(1)));
        let proc = procs.at_mut(old);
        (proc.queue, proc.left) = (Some(3), true);
        (proc.group, proc.ioprio) = (Some(GroupIndex(5)), IoPrio::from_bits(7));
        procs.remove(old);
        let new = procs.add(Key::process(Owner(2)));
        let Proc { queue, left, group, ioprio, requests, .. } = *procs.at(new);
        assert_eq!((queue, left, group, requests), (None, false, None, 0));
        assert_eq!(ioprio, IoPrio::from_bits(0));
    }

    #[test]
    fn keys_of_processes_and_of_groups_never_meet() {
        let shared = Key::shared(GroupIndex(u16::MAX), 255);
        assert_eq!(shared.shared_by(), Some(GroupIndex(u16::MAX)));
        assert_eq!(Key::process(Owner(u32::MAX)).shared_by(), None);
        assert_ne!(Key::shared(GroupIndex(1), 0), Key::shared(GroupIndex(0), 255));
        assert_eq!(Key::shared(GroupIndex(1), 2).0, 0x1_0000_0102);
    }
}
