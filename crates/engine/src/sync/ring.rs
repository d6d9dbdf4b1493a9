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

use super::prefetch;
use super::{Arc, AtomicU32, Ordering, UnsafeCell};
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
        // SAFETY: as in `pop`; the entry is the producer's only after the store in `drop`.
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
    #[cfg(feature = "compare")]
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
        // SAFETY: as in `pop`.
        let value = unsafe { self.shared.take(self.head) };
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        value
    }

    /// Takes the oldest value.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the entry lies between `head` and a `tail` that was loaded with acquire, so it was
        // written and is ours; `head` moves on immediately.
        let value = unsafe { self.shared.take(self.head) };
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
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
        // SAFETY: as in `pop`; the borrow of `self` keeps the entry from being taken as long as the result lives.
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
            // SAFETY: as in `pop`; the mark lies no further than `tail`.
            self.shared.entry(*at).with(|entry| is(unsafe { (*entry).assume_init_ref() }))
        })?;
        // SAFETY: as in `pop`; the entry is refilled below, or no longer counted.
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

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
