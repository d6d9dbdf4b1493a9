//! A bounded ring between one producer and one consumer, each owning its end: staging, and outboxes.
//!
//! # States
//!
//! `head` counts the entries taken, `tail` the entries published; both wrap around. `tail - head` entries from `head`
//! on are the consumer's, the others are the producer's.
//!
//! | `tail - head` | `stage` | `publish` | `pop` |
//! |---|---|---|---|
//! | 0, empty | writes an entry that stays the producer's | `tail` + staged: the consumer may take them | none |
//! | between | likewise | likewise | `head` + 1: the entry is the producer's again |
//! | capacity, full | returns the value | nothing is staged | likewise |
//!
//! Invariant: each entry is touched by one side only; the counters hand it over.
//!
//! A consumer that takes all published entries returns them together. It may read several before it takes them.
//!
//! The consumer may also take a published entry out of order ([`remove_before`](Consumer::remove_before)): it moves the
//! preceding entries, which it owns, up by one, and then returns the first one as a `pop` does.
//!
//! A [`Level`] tells any other thread whether published entries wait. It is a hint by two plain loads, and hands over
//! no entry.
//!
//! # Why the orderings are enough
//!
//! The producer writes an entry, then stores `tail` with release; the consumer loads it with acquire, then reads the
//! entry. The way back is the same with `head`: an entry is read before it is written again. Each counter has one
//! writer, so a plain load and store do: there is no read-modify-write. Each side caches the other's counter and
//! reloads it only when the cached value says full or empty, so the lines go back and forth once per batch and not
//! once per entry.

use super::{Arc, AtomicU32, Ordering, UnsafeCell, prefetch};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;

/// A position in a ring: after everything that was published when the mark was made, and before everything else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u32);

/// The writing end.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Includes staged entries.
    tail: u32,
    published: u32,
    /// The consumer's counter as last seen.
    head: u32,
}

/// The reading end.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: u32,
    /// The producer's counter as last seen.
    tail: u32,
}

/// Tells threads that have neither end whether published values wait in a ring.
pub(crate) struct Level<T>(Arc<Shared<T>>);

struct Shared<T> {
    head: CachePadded<AtomicU32>,
    tail: CachePadded<AtomicU32>,
    entries: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: an entry is touched by one side at a time, and the counters order the two (module invariant), so
// sharing the ring amounts to sending values from the producer to the consumer.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the ring owns the values in it.
unsafe impl<T: Send> Send for Shared<T> {}

/// A ring for `capacity` values, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is 0 or above 2^31.
pub(crate) fn ring<T>(capacity: u32) -> (Producer<T>, Consumer<T>) {
    assert!((1..=1 << 31).contains(&capacity), "a ring of {capacity} entries");
    let entry = |_| UnsafeCell::new(MaybeUninit::uninit());
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicU32::new(0)),
        tail: CachePadded::new(AtomicU32::new(0)),
        entries: (0..capacity.next_power_of_two()).map(entry).collect(),
    });
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, published: 0, head: 0 };
    (producer, Consumer { shared, head: 0, tail: 0 })
}

impl<T> Shared<T> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    #[inline]
    fn entry(&self, at: u32) -> &UnsafeCell<MaybeUninit<T>> {
        &self.entries[(at & (self.capacity() - 1)) as usize]
    }

    /// Moves the value out of entry `at`.
    ///
    /// # Safety
    /// The entry holds a value and is the caller's; the caller must treat it as empty from here on.
    #[inline]
    unsafe fn take(&self, at: u32) -> T {
        // SAFETY: the caller guarantees that a value is there, and that no other thread touches it.
        self.entry(at).with(|entry| unsafe { (*entry).assume_init_read() })
    }
}

/// The values that are being taken. The ones already seen are taken even if a panic ends the iteration early.
pub(crate) struct TakeAll<'a, T: Copy>(&'a mut Consumer<T>);

impl<T: Copy> Iterator for TakeAll<'_, T> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        let ring = &mut *self.0;
        if ring.head == ring.tail {
            return None;
        }
        // SAFETY: as in `take`; the entry is the producer's only after the store in `drop`.
        let value = unsafe { ring.shared.take(ring.head) };
        ring.head = ring.head.wrapping_add(1);
        Some(value)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.tail.wrapping_sub(self.0.head) as usize;
        (left, Some(left))
    }
}

impl<T: Copy> ExactSizeIterator for TakeAll<'_, T> {}

impl<T: Copy> Drop for TakeAll<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.shared.head.store(self.0.head, Ordering::Release);
    }
}

impl<T> Producer<T> {
    /// Adds a value, and publishes all staged values.
    ///
    /// # Errors
    /// Returns the value if the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        self.stage(value)?;
        self.publish();
        Ok(())
    }

    /// Adds a value that the consumer does not see yet.
    ///
    /// # Errors
    /// Returns the value if the ring is full.
    #[inline]
    pub(crate) fn stage(&mut self, value: T) -> Result<(), T> {
        let capacity = self.shared.capacity();
        if self.tail.wrapping_sub(self.head) == capacity {
            self.head = self.shared.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) == capacity {
                return Err(value);
            }
        }
        self.shared.entry(self.tail).with_mut(|entry| {
            // SAFETY: fewer than `capacity` entries lie between `head` and `tail`, so this one is ours, and empty:
            // the acquiring load of `head` is behind the consumer's last reading of it.
            unsafe { (*entry).write(value) };
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Like [`stage`](Self::stage), for a ring that cannot overflow.
    ///
    /// # Panics
    /// If the ring is full.
    #[inline]
    pub(crate) fn put(&mut self, value: T) {
        self.put_with(|| value);
    }

    /// Like [`put`](Self::put), but constructs the value in the ring: it is never returned, so it need not be
    /// constructed elsewhere first.
    ///
    /// # Panics
    /// If the ring is full.
    // Always inlined: as a call, it would construct the value elsewhere after all.
    #[inline(always)]
    pub(crate) fn put_with(&mut self, make: impl FnOnce() -> T) {
        let capacity = self.shared.capacity();
        if self.tail.wrapping_sub(self.head) == capacity {
            self.head = self.shared.head.load(Ordering::Acquire);
            assert!(self.tail.wrapping_sub(self.head) != capacity, "a ring was made too small");
        }
        self.shared.entry(self.tail).with_mut(|entry| {
            // SAFETY: as in `stage`. If `make` panics, the entry stays empty and is not counted.
            unsafe { (*entry).write(make()) };
        });
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes every staged value to the consumer. One store, none if no value is staged.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published != self.tail {
            self.shared.tail.store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
    }

    /// The fill level, for threads that have neither end.
    pub(crate) fn level(&self) -> Level<T> {
        Level(Arc::clone(&self.shared))
    }

    /// The position after everything published so far.
    #[must_use]
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.published)
    }

    /// The number of values in the ring, staged ones included. The consumer may have taken some in the meantime.
    #[inline]
    #[must_use]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.shared.head.load(Ordering::Relaxed))
    }

    /// The number of values that fit into the ring.
    #[inline]
    #[must_use]
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u32 {
        self.shared.capacity()
    }
}

impl<T> Drop for Producer<T> {
    /// Publishes the staged values, so that they are not lost with their producer.
    fn drop(&mut self) {
        self.publish();
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value, which the caller has just [`peek`](Self::peek)ed at. Avoids an `Option`, whose copy
    /// costs more than the value's.
    ///
    /// # Panics
    /// If the ring is empty.
    #[inline]
    pub(crate) fn take(&mut self) -> T {
        assert!(self.head != self.tail, "nothing was seen");
        // SAFETY: the entry lies between `head` and a `tail` that was loaded with acquire, so it was
        // written and is ours; `head` moves on immediately.
        let value = unsafe { self.shared.take(self.head) };
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        value
    }

    /// Takes the oldest value.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() { None } else { Some(self.take()) }
    }

    /// Takes all published values, the oldest first, with one store at the end. `None` if there are none.
    #[inline]
    pub(crate) fn take_all(&mut self) -> Option<TakeAll<'_, T>>
    where
        T: Copy,
    {
        if self.is_empty() { None } else { Some(TakeAll(self)) }
    }

    /// The oldest value, without taking it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<&T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: as in `take`; the borrow of `self` keeps the entry from being taken as long as the result lives.
        Some(self.shared.entry(self.head).with(|entry| unsafe { (*entry).assume_init_ref() }))
    }

    /// How many values can be taken, up to `most`. Reloads the producer's counter if fewer are known.
    #[inline]
    pub(crate) fn available(&mut self, most: u32) -> u32 {
        if self.tail.wrapping_sub(self.head) < most {
            self.tail = self.shared.tail.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head).min(most)
    }

    /// The oldest `n` values, which are [available](Self::available), without taking them.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn front(&self, n: u32) -> impl ExactSizeIterator<Item = &T> + Clone {
        assert!(n <= self.tail.wrapping_sub(self.head), "nothing was seen");
        (0..n).map(|nth| {
            let entry = self.shared.entry(self.head.wrapping_add(nth));
            // SAFETY: as in `peek`; entries up to `tail` are published.
            entry.with(|entry| unsafe { (*entry).assume_init_ref() })
        })
    }

    /// Returns whether a value published after `mark` has been taken.
    #[must_use]
    pub(crate) fn has_passed(&self, mark: Mark) -> bool {
        // Counters wrap around, and a mark is never further away than half their range.
        mark.0.wrapping_sub(self.head).cast_signed() < 0
    }

    /// Takes the oldest value before `mark` that `is` accepts; the others keep their order. The caller must have the
    /// mark from the producer, by a path that acquires. O(values before the mark).
    pub(crate) fn remove_before(
        &mut self,
        mark: Mark,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<T> {
        if self.has_passed(mark) {
            return None;
        }
        self.tail = self.shared.tail.load(Ordering::Acquire);
        let ahead = mark.0.wrapping_sub(self.head);
        assert!(ahead <= self.tail.wrapping_sub(self.head), "a mark of another ring");
        let found = (0..ahead).map(|n| self.head.wrapping_add(n)).find(|at| {
            // SAFETY: as in `take`; the mark lies no further than `tail`.
            self.shared.entry(*at).with(|entry| is(unsafe { (*entry).assume_init_ref() }))
        })?;
        // SAFETY: as in `take`; the entry is refilled below, or no longer counted.
        let value = unsafe { self.shared.take(found) };
        let mut hole = found;
        while hole != self.head {
            let before = hole.wrapping_sub(1);
            // SAFETY: `before` lies from `head` on and ahead of `found`, so it holds a value and is ours, and it is
            // the hole from here on.
            let moved = unsafe { self.shared.take(before) };
            self.shared.entry(hole).with_mut(|entry| {
                // SAFETY: ours, as it lies between `head` and `tail`, and its value has been moved out.
                unsafe { (*entry).write(moved) };
            });
            hole = before;
        }
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Begins to fetch the oldest `n` published values from the core that produced them. Each has its own cache line,
    /// and the fetches overlap, so requesting all of them first costs little more than one.
    #[inline]
    pub(crate) fn prefetch(&mut self, n: u32) {
        if !self.is_empty() {
            let there = self.tail.wrapping_sub(self.head).min(n);
            (0..there).for_each(|at| self.shared.entry(self.head.wrapping_add(at)).with(prefetch));
        }
    }

    /// The number of published values that are left, or a few fewer. Accesses no value.
    #[must_use]
    pub(crate) fn len(&self) -> u32 {
        self.shared.tail.load(Ordering::Relaxed).wrapping_sub(self.head)
    }

    /// Returns whether no published value is left. Reloads the producer's counter only if every value seen so far is
    /// taken.
    #[inline]
    #[must_use]
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.shared.tail.load(Ordering::Acquire);
        }
        self.head == self.tail
    }
}

impl<T> Level<T> {
    /// Returns whether published values wait for the consumer. A hint; if a thread lost its CPU after its publication,
    /// another thread that gets this CPU sees the publication.
    #[inline]
    #[must_use]
    pub(crate) fn waits(&self) -> bool {
        // Both loads may be outdated. The counters are equal whenever the consumer has taken everything that is visible
        // here.
        let tail = self.0.tail.load(Ordering::Relaxed);
        tail != self.0.head.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Both ends are dropped, and with the last `Arc` all their writes are visible.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: entries from `head` to `tail` hold values, and no other reference is left.
            drop(unsafe { self.take(head) });
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_round_and_round() {
        let (mut tx, mut rx) = ring(3);
        assert_eq!(tx.capacity(), 4);
        for lap in 0..10 {
            for n in 0..4 {
                assert_eq!(tx.push(lap * 4 + n), Ok(()));
            }
            assert_eq!(tx.push(99), Err(99), "full gives the value back");
            assert_eq!((tx.len(), rx.peek()), (4, Some(&(lap * 4))));
            for n in 0..4 {
                assert_eq!(rx.pop(), Some(lap * 4 + n));
            }
            assert!(rx.is_empty() && rx.pop().is_none() && rx.peek().is_none());
        }
    }

    #[test]
    fn staged_values_are_seen_when_they_are_published() {
        let (mut tx, mut rx) = ring(4);
        for n in 0..4 {
            assert_eq!(tx.stage(n), Ok(()));
        }
        assert_eq!((tx.stage(4), tx.len()), (Err(4), 4));
        assert!(rx.is_empty());
        tx.publish();
        assert_eq!(std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn counters_wrap_around() {
        let (mut tx, mut rx) = ring(2);
        let near = u32::MAX - 1;
        tx.shared.head.store(near, Ordering::Relaxed);
        tx.shared.tail.store(near, Ordering::Relaxed);
        (tx.tail, tx.published, tx.head, rx.head, rx.tail) = (near, near, near, near, near);
        for n in 0..8 {
            let mark = tx.mark();
            assert_eq!(tx.push(n), Ok(()));
            assert_eq!(rx.remove_before(mark, |_| true), None);
            assert_eq!(rx.remove_before(tx.mark(), |_| true), Some(n));
            assert!(rx.has_passed(mark));
            assert_eq!(tx.push(n), Ok(()));
            assert_eq!(tx.push(n + 100), Ok(()));
            assert_eq!(tx.push(0), Err(0));
            assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(n), Some(n + 100), None));
        }
    }

    #[test]
    fn what_is_left_is_dropped_once_staged_values_included() {
        let counted = Arc::new(());
        let (mut tx, mut rx) = ring(4);
        for _ in 0..3 {
            assert!(tx.stage(Arc::clone(&counted)).is_ok());
        }
        drop(tx);
        assert!(rx.pop().is_some());
        assert_eq!(Arc::strong_count(&counted), 3);
        drop(rx);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn a_million_values_through_a_small_ring() {
        const VALUES: u64 = if cfg!(miri) { 20 } else { 1_000_000 };
        let (mut tx, mut rx) = ring(8);
        let producer = std::thread::spawn(move || {
            for mut n in 0..VALUES {
                while let Err(back) = tx.push(n) {
                    n = back;
                    std::thread::yield_now();
                }
            }
        });
        for expected in 0..VALUES {
            let n = loop {
                match rx.pop() {
                    Some(n) => break n,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(n, expected);
        }
        producer.join().unwrap();
    }

    #[test]
    fn a_value_ahead_of_a_mark_is_taken_out_of_order() {
        let (mut tx, mut rx) = ring(4);
        let all = |rx: &mut Consumer<u32>| std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>();
        // Also where the entries in question lie across the end of the ring.
        for lap in 0..4 {
            (0..lap).for_each(|_| assert_eq!((tx.push(9), rx.pop()), (Ok(()), Some(9))));
            for (even, left) in [(true, [1, 2, 3]), (false, [0, 2, 3])] {
                (0..3).for_each(|n| assert_eq!(tx.push(n), Ok(())));
                let mark = tx.mark();
                assert_eq!(tx.push(3), Ok(()));
                assert_eq!(rx.remove_before(mark, |n| *n == 3), None, "it lies behind the mark");
                let expected = u32::from(!even);
                assert_eq!(rx.remove_before(mark, |n| (*n % 2 == 0) == even), Some(expected));
                assert!(!rx.has_passed(mark));
                assert_eq!(tx.push(4), Ok(()), "there is room for one");
                assert_eq!((tx.push(5), all(&mut rx)), (Err(5), [&left[..], &[4]].concat()));
                assert!(rx.has_passed(mark));
                assert_eq!(rx.remove_before(mark, |_| true), None, "what it lay behind is gone");
            }
        }
    }

    #[test]
    fn a_mark_is_passed_when_something_behind_it_is_taken() {
        let (mut tx, mut rx) = ring(4);
        let start = tx.mark();
        assert!(tx.stage(0).is_ok());
        tx.publish();
        let mark = tx.mark();
        assert!(!rx.has_passed(start) && !rx.has_passed(mark));
        assert_eq!(rx.pop(), Some(0));
        assert!(rx.has_passed(start) && !rx.has_passed(mark));
        assert_eq!(rx.remove_before(mark, |_| true), None);
    }

    #[test]
    fn a_portion_is_looked_at_before_it_is_taken() {
        let (mut tx, mut rx) = ring(4);
        for n in 0..3 {
            tx.push(n).expect("there is room");
            assert_eq!(rx.pop(), Some(n));
        }
        for n in 3..7 {
            tx.stage(n).expect("there is room");
        }
        assert_eq!(rx.available(8), 0, "nothing is published");
        tx.publish();
        assert_eq!((rx.available(2), rx.available(8)), (2, 4));
        assert!(rx.front(3).eq(&[3, 4, 5]), "over the end of the list of entries");
        assert_eq!((rx.take(), rx.available(8)), (3, 3));
    }

    #[test]
    #[should_panic(expected = "nothing was seen")]
    fn no_more_is_looked_at_than_is_there() {
        let (mut tx, mut rx) = ring(4);
        tx.push(1).expect("there is room");
        assert_eq!(rx.available(8), 1);
        let _ = rx.front(2);
    }
}

#[cfg(all(test, loom))]
mod model {
    //! Entries are handed over without accesses by both sides: loom watches the `UnsafeCell`s.

    use super::*;
    use loom::thread;

    type Publish = fn(&mut Producer<u32>);
    type Pop = fn(&mut Consumer<u32>) -> Option<u32>;

    /// Three values through a ring of two, the first two published together.
    fn values_arrive_in_order(publish: Publish, pop: Pop) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            let producer = thread::spawn(move || {
                assert!(tx.stage(0).is_ok() && tx.stage(1).is_ok());
                publish(&mut tx);
                while tx.stage(2).is_err() {
                    thread::yield_now();
                }
                publish(&mut tx);
            });
            let mut expected = 0;
            while expected < 3 {
                match pop(&mut rx) {
                    Some(n) => {
                        assert_eq!(n, expected);
                        expected += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            producer.join().expect("the producer does not panic");
        });
    }

    #[test]
    fn loom_values_arrive_in_order() {
        values_arrive_in_order(Producer::publish, Consumer::pop);
    }

    /// Two values together, twice, through a ring of two.
    fn all_arrive_in_order(take_all: fn(&mut Consumer<u32>, &mut u32)) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            let producer = thread::spawn(move || {
                for n in 0..4 {
                    while tx.stage(n).is_err() {
                        thread::yield_now();
                    }
                    if n % 2 == 1 {
                        tx.publish();
                    }
                }
            });
            let mut expected = 0;
            while expected < 4 {
                take_all(&mut rx, &mut expected);
                thread::yield_now();
            }
            producer.join().expect("the producer does not panic");
        });
    }

    #[test]
    fn loom_all_arrive_in_order() {
        all_arrive_in_order(|rx, expected| {
            for n in rx.take_all().into_iter().flatten() {
                assert_eq!(n, *expected);
                *expected += 1;
            }
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_all_given_back_before_they_are_read() {
        all_arrive_in_order(|rx, expected| {
            if rx.is_empty() {
                return;
            }
            rx.shared.head.store(rx.tail, Ordering::Release);
            while rx.head != rx.tail {
                // SAFETY: none; that is the bug.
                assert_eq!(unsafe { rx.shared.take(rx.head) }, *expected);
                rx.head = rx.head.wrapping_add(1);
                *expected += 1;
            }
        });
    }

    /// Reads up to two values, and takes them.
    fn take_portion(rx: &mut Consumer<u32>, available: u32, expected: &mut u32) {
        let seen: Vec<u32> = rx.front(available).copied().collect();
        for n in seen {
            assert_eq!((rx.take(), n), (*expected, *expected));
            *expected += 1;
        }
    }

    #[test]
    fn loom_a_portion_arrives_in_order() {
        all_arrive_in_order(|rx, expected| {
            let available = rx.available(2);
            take_portion(rx, available, expected);
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_a_portion_without_acquire() {
        all_arrive_in_order(|rx, expected| {
            rx.tail = rx.shared.tail.load(Ordering::Relaxed);
            let available = rx.tail.wrapping_sub(rx.head);
            take_portion(rx, available, expected);
        });
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_publish_without_release() {
        let publish: Publish = |tx| {
            tx.shared.tail.store(tx.tail, Ordering::Relaxed);
            tx.published = tx.tail;
        };
        values_arrive_in_order(publish, Consumer::pop);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_entry_given_back_without_release() {
        let pop: Pop = |rx| {
            if rx.is_empty() {
                return None;
            }
            // SAFETY: none; that is the bug.
            let value = unsafe { rx.shared.take(rx.head) };
            rx.head = rx.head.wrapping_add(1);
            rx.shared.head.store(rx.head, Ordering::Relaxed);
            Some(value)
        };
        values_arrive_in_order(Producer::publish, pop);
    }

    /// The values in the ring are dropped after both ends, whichever end is dropped last.
    #[test]
    fn loom_what_is_left_is_dropped() {
        loom::model(|| {
            let counted = Arc::new(());
            let (mut tx, mut rx) = ring(2);
            let value = Arc::clone(&counted);
            let producer = thread::spawn(move || {
                assert!(tx.stage(value).is_ok());
            });
            let popped = rx.pop();
            drop(rx);
            producer.join().expect("the producer does not panic");
            drop(popped);
            assert_eq!(Arc::strong_count(&counted), 1);
        });
    }

    type Remove = fn(&mut Consumer<u32>, Mark) -> Option<u32>;

    /// The second of two values is taken out while the producer waits for room for a third.
    fn a_value_is_taken_out_of_order(remove: Remove) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            assert!(tx.push(0).is_ok() && tx.push(1).is_ok());
            let mark = tx.mark();
            let producer = thread::spawn(move || {
                while tx.push(2).is_err() {
                    thread::yield_now();
                }
            });
            assert_eq!(remove(&mut rx, mark), Some(1));
            let mut left = Vec::new();
            while left.len() < 2 {
                match rx.pop() {
                    Some(n) => left.push(n),
                    None => thread::yield_now(),
                }
            }
            assert_eq!(left, [0, 2]);
            producer.join().expect("the producer does not panic");
        });
    }

    #[test]
    fn loom_a_value_is_taken_out_of_order() {
        a_value_is_taken_out_of_order(|rx, mark| rx.remove_before(mark, |n| *n == 1));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_entry_given_back_before_it_is_moved() {
        a_value_is_taken_out_of_order(|rx, _| {
            assert!(!rx.is_empty(), "two were published");
            rx.shared.head.store(rx.head.wrapping_add(1), Ordering::Release);
            let (first, second) = (rx.head, rx.head.wrapping_add(1));
            // SAFETY: none; that is the bug.
            let (kept, value) = unsafe { (rx.shared.take(first), rx.shared.take(second)) };
            rx.shared.entry(second).with_mut(|entry| {
                // SAFETY: none, as above.
                unsafe { (*entry).write(kept) };
            });
            rx.head = second;
            Some(value)
        });
    }

    /// Values constructed in the ring, and taken after they are read: the variants of the hot path.
    fn what_is_put_is_taken(put: fn(&mut Producer<u32>, u32), take: Pop) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            let producer = thread::spawn(move || {
                for n in 0..3 {
                    // The producer knows that there is room, by a path that need not order anything.
                    while tx.len() == tx.capacity() {
                        thread::yield_now();
                    }
                    put(&mut tx, n);
                    tx.publish();
                }
            });
            for expected in 0..3 {
                while rx.is_empty() {
                    thread::yield_now();
                }
                assert_eq!(take(&mut rx), Some(expected));
            }
            producer.join().expect("the producer does not panic");
        });
    }

    fn put(tx: &mut Producer<u32>, value: u32) {
        tx.put_with(|| value);
    }

    fn take(rx: &mut Consumer<u32>) -> Option<u32> {
        let seen = *rx.peek()?;
        assert_eq!(rx.take(), seen);
        Some(seen)
    }

    #[test]
    fn loom_what_is_put_is_taken() {
        what_is_put_is_taken(put, take);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_put_that_trusts_a_relaxed_look() {
        let put = |tx: &mut Producer<u32>, value| {
            tx.head = tx.shared.head.load(Ordering::Relaxed);
            tx.put_with(|| value);
        };
        what_is_put_is_taken(put, take);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_take_without_release() {
        let take: Pop = |rx| {
            let seen = *rx.peek()?;
            // SAFETY: none; that is the bug.
            let value = unsafe { rx.shared.take(rx.head) };
            assert_eq!(value, seen);
            rx.head = rx.head.wrapping_add(1);
            rx.shared.head.store(rx.head, Ordering::Relaxed);
            Some(seen)
        };
        what_is_put_is_taken(put, take);
    }

    /// A value before a mark is taken out while another one is published behind the mark, which is then taken as well.
    fn what_came_meanwhile_is_whole(remove: Remove) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            assert!(tx.push(0).is_ok());
            let mark = tx.mark();
            let producer = thread::spawn(move || assert!(tx.push(1).is_ok()));
            assert_eq!(remove(&mut rx, mark), Some(0));
            if let Some(n) = rx.pop() {
                assert_eq!(n, 1);
            }
            producer.join().expect("the producer does not panic");
        });
    }

    #[test]
    fn loom_what_came_meanwhile_is_whole() {
        what_came_meanwhile_is_whole(|rx, mark| rx.remove_before(mark, |_| true));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_remove_that_remembers_a_relaxed_look() {
        what_came_meanwhile_is_whole(|rx, _| {
            rx.tail = rx.shared.tail.load(Ordering::Relaxed);
            rx.pop()
        });
    }

    type Waits = fn(&Level<u32>) -> bool;
    type Show = fn(&mut Producer<u32>, &AtomicU32);

    /// A producer publishes and announces it, while the consumer takes and a third thread checks the level.
    fn what_waits_is_seen(show: Show, waits: Waits) {
        loom::model(move || {
            let (mut tx, mut rx) = ring(2);
            let (level, done) = (tx.level(), Arc::new(AtomicU32::new(0)));
            let producer = {
                let done = Arc::clone(&done);
                thread::spawn(move || {
                    assert!(tx.stage(7).is_ok());
                    show(&mut tx, &done);
                })
            };
            if done.load(Ordering::Acquire) == 1 {
                assert!(waits(&level), "published, and no thread sees it");
            }
            producer.join().expect("the producer does not panic");
            assert!(waits(&level), "published, and no thread sees it");
            assert_eq!(rx.pop(), Some(7));
            assert!(!waits(&level), "it was taken");
        });
    }

    #[test]
    fn loom_what_waits_is_seen() {
        let show: Show = |tx, done| {
            tx.publish();
            done.store(1, Ordering::Release);
        };
        what_waits_is_seen(show, Level::waits);
    }

    #[test]
    #[should_panic(expected = "no thread sees it")]
    fn loom_planted_published_after_the_announcement() {
        let show: Show = |tx, done| {
            done.store(1, Ordering::Release);
            tx.publish();
        };
        what_waits_is_seen(show, Level::waits);
    }

    /// A length counts only published values, and every value that it counts can be taken.
    #[test]
    fn loom_a_length_is_what_was_published_or_a_few_fewer() {
        loom::model(|| {
            let (mut tx, mut rx) = ring(2);
            let producer = thread::spawn(move || {
                assert!(tx.stage(0).is_ok() && tx.push(1).is_ok());
            });
            let seen = rx.len();
            assert!(seen == 0 || seen == 2, "{seen}: they are published together");
            let popped = u32::from(rx.pop().is_some());
            let left = rx.len();
            assert!(
                seen <= left + popped && left + popped <= 2,
                "{seen}, then {popped} and {left}"
            );
            producer.join().expect("the producer does not panic");
            assert_eq!(rx.len() + popped, 2);
        });
    }
}
