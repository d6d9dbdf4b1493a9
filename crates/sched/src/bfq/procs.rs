//! The senders of I/O: a record for each process (an owner's sync I/O) and each async queue of a group, by key.
//!
//! Apart from the hint [`owner_gone`](crate::Scheduler::owner_gone), a policy does not see the end of a process. So the
//! number of records is bounded: when the table is full, the record that has been without requests for longest is
//! removed. It is an open-addressed table over a slab, with the same hash in every run. All operations are O(1) on
//! average, and nothing allocates after creation.

use super::QueueRef;
use super::queue::Saved;
use alloc::boxed::Box;
use blkmq_core::{GroupIndex, IoPrio, Owner};

const NONE: u32 = u32::MAX;

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
