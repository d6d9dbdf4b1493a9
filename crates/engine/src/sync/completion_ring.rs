//! Completions on their way to their submitter: any number of senders, and one receiver that may park.
//!
//! It cannot overflow, by construction: the receiver has a credit of I/Os, each completes once, and the ring has an
//! entry for each. So there is no full state, and a sender never waits.
//!
//! # States
//!
//! `tail` counts the entries reserved so far, in its upper 63 bits; the lowest bit is `PARKED`. An entry holds the lap
//! in which it was written (16 bits) over 48 bits of payload. Laps begin at 1, so a new entry, 0, is unwritten; later,
//! an entry of the preceding lap is unwritten. The receiver's position is private.
//!
//! | `tail` | `push` | `prepare_park` | `cancel_park` | `take_parked` |
//! |---|---|---|---|---|
//! | all taken | + n, entries published: the receiver will look | `PARKED`, true: the next sender wakes you | same | same, false |
//! | some reserved | likewise | same, false: *you* look again | same | same, false |
//! | `PARKED`, all taken | + n, entries published, `PARKED` cleared, true: *you* wake the receiver | same, true | cleared | cleared, true: *you* wake the receiver |
//! | `PARKED`, some reserved | + n, published; the sender that clears `PARKED` wakes the receiver | - | cleared | cleared, true: *you* wake the receiver |
//!
//! Invariant: `PARKED` is set only by a receiver that has taken every reserved entry, and the thread that clears it
//! wakes the receiver or is the receiver. So a parked receiver has taken everything, or a sender is about to wake it.
//!
//! # Why the orderings are enough
//!
//! `tail` is changed by read-modify-writes alone. A push is either before the parking one, which then finds the
//! reservation and does not park, or after it, and then finds `PARKED`. `tail` orders nothing else, so relaxed accesses
//! suffice. Payloads are published by storing the entry with release and loading it with acquire. An entry is
//! overwritten only for an I/O that was submitted after the old payload was taken, because the credit was returned with
//! it; so the old payload has been read.
//!
//! `take_parked` is for a thread that has other work for the receiver. That thread makes the work due, has a full
//! fence, and checks for `PARKED`; the receiver parks, has a full fence, and checks for due work. The fences are in the
//! callers, because only they know which work is due.
//!
//! A woken receiver may find its next entry reserved and not yet written, by a sender that was interrupted in between.
//! It must check again; `prepare_park` refuses until then.
//!
//! Read-modify-writes: one per batch pushed, one more to wake; none to pop.

use super::{Arc, AtomicU64, Ordering, looks_again};
use crossbeam_utils::CachePadded;

/// Bits of payload.
const PAYLOAD_BITS: u32 = 48;
const PAYLOAD_MASK: u64 = (1 << PAYLOAD_BITS) - 1;
const PARKED: u64 = 1;
/// One entry, in units of `tail`.
const ONE: u64 = 2;

/// The sending end, one per sender or shared.
#[derive(Clone)]
pub(crate) struct CompletionSender {
    shared: Arc<Shared>,
}

/// The receiving end.
pub(crate) struct CompletionReceiver {
    shared: Arc<Shared>,
    /// Entries taken so far.
    head: u64,
    /// The lap of `head`.
    lap: u64,
}

struct Shared {
    tail: CachePadded<AtomicU64>,
    entries: Lines<AtomicU64>,
    /// Entries in use, a power of two.
    capacity: u64,
    /// The receiver's position, to detect that it exceeded its credit.
    #[cfg(debug_assertions)]
    taken: CachePadded<AtomicU64>,
}

/// A ring for a receiver with a credit of `capacity`, which is rounded up to a power of two.
///
/// # Panics
/// If `capacity` is 0 or above 2^31.
pub(crate) fn completion_ring(capacity: u32) -> (CompletionSender, CompletionReceiver) {
    assert!((1..=1 << 31).contains(&capacity), "a ring of {capacity} entries");
    let capacity = capacity.next_power_of_two();
    let shared = Arc::new(Shared {
        tail: CachePadded::new(AtomicU64::new(0)),
        entries: Lines::new(capacity as usize, |_| AtomicU64::new(0)),
        capacity: capacity.into(),
        #[cfg(debug_assertions)]
        taken: CachePadded::new(AtomicU64::new(0)),
    });
    let lap = shared.lap(0);
    (CompletionSender { shared: Arc::clone(&shared) }, CompletionReceiver { shared, head: 0, lap })
}

impl Shared {
    #[inline]
    fn entry(&self, position: u64) -> &AtomicU64 {
        self.entries.at((position & (self.capacity - 1)) as usize)
    }

    /// The lap of `position`, shifted to its place in an entry. Consecutive laps differ, and the first is not 0.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        ((position >> self.capacity.trailing_zeros()) + 1) << PAYLOAD_BITS
    }
}

impl CompletionSender {
    /// Sends payloads, of 48 bits each, in order and together. Returns whether the receiver is parked and must be woken
    /// by this caller.
    #[inline]
    #[must_use = "if it returns true, no other thread wakes the receiver"]
    pub(crate) fn push(&self, payloads: &[u64]) -> bool {
        if payloads.is_empty() {
            return false;
        }
        let added = payloads.len() as u64 * ONE;
        let before = self.shared.tail.fetch_add(added, Ordering::Relaxed);
        self.publish(before / ONE, payloads);
        before & PARKED != 0 && self.unpark()
    }

    /// Fills the entries reserved from `first` on.
    #[inline]
    fn publish(&self, first: u64, payloads: &[u64]) {
        #[cfg(debug_assertions)]
        {
            // Not too low: the credit for this entry was returned after the store, by a path that orders the two.
            let held = first + payloads.len() as u64 - self.shared.taken.load(Ordering::Relaxed);
            assert!(held <= self.shared.capacity, "a receiver exceeded its credit");
        }
        for (position, payload) in (first..).zip(payloads) {
            debug_assert!(payload & !PAYLOAD_MASK == 0, "{payload:#x} exceeds 48 bits");
            let entry = self.shared.lap(position) | payload;
            self.shared.entry(position).store(entry, Ordering::Release);
        }
    }

    /// For waking the receiver for another reason than a payload. Returns whether it is parked and must be woken by
    /// this caller. One load if it is not.
    #[inline]
    #[must_use = "if it returns true, no other thread wakes the receiver"]
    pub(crate) fn take_parked(&self) -> bool {
        self.shared.tail.load(Ordering::Relaxed) & PARKED != 0 && self.unpark()
    }

    /// Clears `PARKED`. Returns true for the caller that cleared it.
    #[cold]
    fn unpark(&self) -> bool {
        self.shared.tail.fetch_and(!PARKED, Ordering::Relaxed) & PARKED != 0 || !looks_again()
    }
}

impl CompletionReceiver {
    /// Takes the oldest payload.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let payload = self.peek()?;
        self.head += 1;
        if self.head & (self.shared.capacity - 1) == 0 {
            self.lap = self.shared.lap(self.head);
        }
        #[cfg(debug_assertions)]
        self.shared.taken.store(self.head, Ordering::Relaxed);
        Some(payload)
    }

    /// Returns whether [`pop`](Self::pop) would find nothing.
    #[inline]
    #[must_use]
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    /// Returns whether the `n`th entry from here is written. The entries before it may still be missing, because each
    /// sender fills its reservation independently, so this is a hint. One load.
    #[inline]
    #[must_use]
    pub(crate) fn reaches(&self, n: u32) -> bool {
        let position = self.head + u64::from(n.max(1)) - 1;
        let entry = self.shared.entry(position).load(Ordering::Acquire);
        entry & !PAYLOAD_MASK == self.shared.lap(position)
    }

    /// The oldest payload, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u64> {
        let entry = self.shared.entry(self.head).load(Ordering::Acquire);
        let written = entry & !PAYLOAD_MASK == self.lap;
        written.then_some(entry & PAYLOAD_MASK)
    }

    /// Announces that the receiver is about to sleep. True: the next push wakes it. False: an entry has been reserved
    /// in the meantime, and its payload has arrived or is about to, so check again. One read-modify-write if no entry
    /// is reserved, none otherwise.
    #[inline]
    #[must_use = "false means do not sleep"]
    pub(crate) fn prepare_park(&mut self) -> bool {
        let tail = &self.shared.tail;
        let all_taken = self.head * ONE;
        if tail.load(Ordering::Relaxed) / ONE != self.head {
            return false;
        }
        let parked = all_taken | PARKED;
        match tail.compare_exchange(all_taken, parked, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(now) => now == parked,
        }
    }

    /// Withdraws the announcement, after waking up or deciding to stay awake. Returns true if a sender was faster: its
    /// wake-up is on its way, or has arrived.
    pub(crate) fn cancel_park(&mut self) -> bool {
        self.shared.tail.fetch_and(!PARKED, Ordering::Relaxed) & PARKED == 0
    }
}

/// Two cache lines, which many machines fetch together.
const PAIR: usize = 128;

/// An array of values. The first value begins a pair of lines, if any value can.
#[derive(Debug)]
pub(crate) struct Lines<T> {
    /// It never grows, because growing would move the values.
    values: Vec<T>,
    first: usize,
    len: usize,
}

impl<T> Lines<T> {
    /// `len` values.
    pub(crate) fn new(len: usize, make: impl Fn(usize) -> T) -> Self {
        let size = size_of::<T>().max(1);
        // After the values: a pair of lines. Before them: as many values as it takes until their alignment to pairs
        // repeats.
        let room = PAIR.div_ceil(size);
        let ahead = room.max(PAIR >> size.trailing_zeros().min(PAIR.trailing_zeros()));
        let all = ahead + len + room;
        let mut values = Vec::<T>::with_capacity(all);
        let begins = |at: &usize| (values.as_ptr().addr() + at * size).is_multiple_of(PAIR);
        let first = (1..=ahead).find(begins).unwrap_or(ahead);
        // Values in the room are never used.
        values.extend((0..all).map(|at| make(at.saturating_sub(first).min(len.saturating_sub(1)))));
        Self { values, first, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn at(&self, at: usize) -> &T {
        &self.values[self.first + at]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut T {
        &mut self.values[self.first + at]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn drain(rx: &mut CompletionReceiver) -> Vec<u64> {
        std::iter::from_fn(|| rx.pop()).collect()
    }

    #[test]
    fn payloads_come_out_in_order_round_and_round() {
        let (tx, mut rx) = completion_ring(3);
        assert!(rx.is_empty());
        for lap in 0..10 {
            assert!(!tx.push(&[lap, 0]));
            assert!(!tx.clone().push(&[PAYLOAD_MASK, lap]));
            assert!(!rx.is_empty());
            assert_eq!(drain(&mut rx), [lap, 0, PAYLOAD_MASK, lap]);
        }
        assert!(!tx.push(&[]));
        assert!(rx.is_empty());
    }

    #[test]
    fn laps_wrap_around() {
        let (tx, mut rx) = completion_ring(1);
        for n in 0..(1 << 17) {
            assert_eq!(rx.pop(), None, "lap {n}");
            assert!(!tx.push(&[n & 1]));
            assert_eq!(rx.pop(), Some(n & 1), "lap {n}");
        }
    }

    #[test]
    fn one_sender_wakes_a_parked_receiver() {
        let (tx, mut rx) = completion_ring(4);
        assert!(rx.prepare_park());
        assert!(tx.push(&[1]));
        assert!(!tx.push(&[2]), "the first one does it");
        assert!(rx.cancel_park(), "a sender was quicker");
        assert!(!rx.prepare_park(), "there is something");
        assert_eq!(drain(&mut rx), [1, 2]);
        assert!(rx.prepare_park());
        assert!(!rx.cancel_park());
        assert!(!tx.push(&[3]));
    }

    #[test]
    fn no_receiver_parks_on_an_entry_that_is_reserved() {
        let (tx, mut rx) = completion_ring(2);
        let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
        assert!(rx.is_empty());
        assert!(!rx.prepare_park());
        tx.publish(before / ONE, &[7]);
        assert_eq!(drain(&mut rx), [7]);
    }

    #[test]
    #[should_panic(expected = "exceeded its credit")]
    #[cfg(debug_assertions)]
    fn more_than_the_credit_is_a_bug() {
        let (tx, _rx) = completion_ring(2);
        let _ = tx.push(&[1, 2, 3]);
    }

    /// Each sender's payloads arrive once and in order, with a receiver that parks.
    #[test]
    fn senders_and_a_receiver_that_parks() {
        const SENDERS: u64 = 3;
        const EACH: u64 = if cfg!(miri) { 8 } else { 50_000 };
        const CREDIT: u32 = 64;
        let (tx, mut rx) = completion_ring(CREDIT);
        let budget = crate::sync::TokenPool::new(CREDIT, 1);
        let receiver = std::thread::current();
        let mut next = [0; SENDERS as usize];
        std::thread::scope(|scope| {
            for sender in 0..SENDERS {
                let (tx, budget, receiver) = (tx.clone(), &budget, receiver.clone());
                scope.spawn(move || {
                    let mut n = 0;
                    while n < EACH {
                        let got = u64::from(budget.take(2)).min(EACH - n);
                        let batch = [sender << 32 | n, sender << 32 | (n + 1)];
                        if got == 0 {
                            std::thread::yield_now();
                        } else if tx.push(&batch[..got as usize]) {
                            receiver.unpark();
                        }
                        n += got;
                    }
                });
            }
            let mut left = SENDERS * EACH;
            while left > 0 {
                if let Some(payload) = rx.pop() {
                    let expected = &mut next[(payload >> 32) as usize];
                    assert_eq!(payload & 0xffff_ffff, *expected);
                    *expected += 1;
                    left -= 1;
                    budget.put(1, |_| {});
                } else if rx.prepare_park() {
                    std::thread::park();
                    rx.cancel_park();
                } else {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn each_has_its_place_and_all_have_lines_of_their_own() {
        let mut lines = Lines::new(33, |n| n as u32);
        assert_eq!([0, 1, 31, 32].map(|n| *lines.at(n)), [0, 1, 31, 32]);
        *lines.at_mut(32) = 7;
        assert_eq!((*lines.at(31), *lines.at(32)), (31, 7));
        assert!(std::ptr::from_ref(lines.at(0)).addr().is_multiple_of(PAIR));
        assert!(lines.values.len() - lines.first - 33 >= PAIR / 4, "room behind");
    }

    #[test]
    fn values_of_any_size_have_room_on_both_sides() {
        let large = Lines::new(3, |n| [n as u64; 20]);
        assert_eq!((large.at(0)[19], large.at(2)[0]), (0, 2));
        assert!(large.values.len() > large.first + 3);
        let odd = Lines::new(2, |n| [n as u8; 3]);
        assert_eq!((odd.at(0)[0], odd.at(1)[2]), (0, 1));
        // Every eighth of these begins a pair of lines, if any does; malloc aligns to 16 bytes.
        let cells = Lines::new(4, |n| [n as u128; 3]);
        assert!(std::ptr::from_ref(cells.at(0)).addr().is_multiple_of(PAIR));
        assert_eq!((cells.at(0)[0], cells.at(3)[2]), (0, 3));
    }
}

#[cfg(all(test, loom))]
mod model {
    //! No wake-up is lost and no payload is read before it is written.

    use super::super::{AtomicBool, UnsafeCell, fence};
    use super::*;
    use loom::thread;

    type Push = fn(&CompletionSender, u64) -> bool;
    type Park = fn(&mut CompletionReceiver) -> bool;

    fn push(tx: &CompletionSender, payload: u64) -> bool {
        tx.push(&[payload])
    }

    /// Two senders, and a receiver that sleeps as soon as it may. The wake-up itself is left out: the model checks
    /// whether a sender was told to wake the sleeping receiver.
    fn a_sleeper_is_woken(push: Push, park: Park) {
        loom::model(move || {
            let (tx, mut rx) = completion_ring(2);
            let senders: Vec<_> = (0..2)
                .map(|n| {
                    let tx = tx.clone();
                    thread::spawn(move || push(&tx, n))
                })
                .collect();
            let mut popped = 0;
            while rx.pop().is_some() {
                popped += 1;
            }
            let asleep = popped < 2 && park(&mut rx);
            let woken = senders.into_iter().map(|sender| sender.join().expect("no sender panics"));
            let woken = woken.filter(|woken| *woken).count();
            assert!(!asleep || woken == 1, "{woken} were told to wake a sleeper");
            assert!(asleep || woken == 0, "{woken} were told to wake a receiver that is awake");
            while rx.pop().is_some() {
                popped += 1;
            }
            assert_eq!(popped, 2);
        });
    }

    #[test]
    fn loom_a_sleeper_is_woken() {
        a_sleeper_is_woken(push, CompletionReceiver::prepare_park);
    }

    #[test]
    #[should_panic(expected = "0 were told")]
    fn loom_planted_park_without_looking_again() {
        a_sleeper_is_woken(push, |rx| {
            if rx.shared.tail.load(Ordering::Relaxed) / ONE != rx.head {
                return false;
            }
            rx.shared.tail.fetch_or(PARKED, Ordering::Relaxed);
            true
        });
    }

    #[test]
    #[should_panic(expected = "0 were told")]
    fn loom_planted_look_before_reserving() {
        a_sleeper_is_woken(
            |tx, payload| {
                let parked = tx.shared.tail.load(Ordering::Relaxed) & PARKED != 0;
                let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
                tx.publish(before / ONE, &[payload]);
                parked && tx.unpark()
            },
            CompletionReceiver::prepare_park,
        );
    }

    /// Two senders both saw the receiver parked: it is woken once, not once by each.
    #[test]
    #[should_panic(expected = "2 were told")]
    fn loom_planted_wake_without_claiming_it() {
        a_sleeper_is_woken(
            |tx, payload| {
                let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
                tx.publish(before / ONE, &[payload]);
                tx.shared.tail.fetch_and(!PARKED, Ordering::Relaxed);
                before & PARKED != 0
            },
            CompletionReceiver::prepare_park,
        );
    }

    /// A sender's writes before its push are visible to the receiver after the pop.
    fn a_completion_carries_its_cell(push: Push) {
        loom::model(move || {
            let (tx, mut rx) = completion_ring(1);
            let cell = Arc::new(UnsafeCell::new(0));
            let sender = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    // SAFETY: no other thread touches the cell before the payload arrives; loom checks it.
                    cell.with_mut(|cell| unsafe { *cell = 5 });
                    push(&tx, 0)
                })
            };
            if rx.pop() == Some(0) {
                // SAFETY: the sender is done with the cell; loom checks it.
                assert_eq!(cell.with(|cell| unsafe { *cell }), 5);
            }
            let _ = sender.join().expect("the sender does not panic");
        });
    }

    #[test]
    fn loom_a_completion_carries_its_cell() {
        a_completion_carries_its_cell(push);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_publish_without_release() {
        a_completion_carries_its_cell(|tx, payload| {
            let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
            let entry = tx.shared.lap(before / ONE) | payload;
            tx.shared.entry(before / ONE).store(entry, Ordering::Relaxed);
            false
        });
    }

    /// Like [`a_completion_carries_its_cell`], for a receiver that sees the entry written without taking it, as when it
    /// decides whether to reap.
    fn what_is_reached_carries_its_cell(reaches: fn(&CompletionReceiver, u32) -> bool) {
        loom::model(move || {
            let (tx, rx) = completion_ring(2);
            let cell = Arc::new(UnsafeCell::new(0));
            let sender = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    // SAFETY: no other thread touches the cell before the payload arrives; loom checks it.
                    cell.with_mut(|cell| unsafe { *cell = 5 });
                    tx.push(&[0, 1])
                })
            };
            if reaches(&rx, 2) {
                // SAFETY: the sender is done with the cell; loom checks it.
                assert_eq!(cell.with(|cell| unsafe { *cell }), 5);
            }
            assert!(!sender.join().expect("the sender does not panic"), "no receiver parks");
            assert!(reaches(&rx, 2) && reaches(&rx, 1) && !rx.is_empty());
        });
    }

    #[test]
    fn loom_what_is_reached_carries_its_cell() {
        what_is_reached_carries_its_cell(CompletionReceiver::reaches);
    }

    /// Treats a reserved entry as written.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_reach_of_what_is_reserved() {
        what_is_reached_carries_its_cell(|rx, n| {
            rx.shared.tail.load(Ordering::Acquire) / ONE >= rx.head + u64::from(n)
        });
    }

    /// A ring of one entry, used twice: the second payload is sent when the credit has been returned, and neither is
    /// mistaken for the other.
    fn an_entry_is_reused(pop: fn(&mut CompletionReceiver) -> Option<u64>) {
        loom::model(move || {
            let (tx, mut rx) = completion_ring(1);
            let credit = Arc::new(AtomicU64::new(1));
            let sender = {
                let credit = Arc::clone(&credit);
                thread::spawn(move || {
                    for n in 0..2 {
                        while credit.load(Ordering::Acquire) <= n {
                            thread::yield_now();
                        }
                        assert!(!push(&tx, n), "no receiver parks");
                    }
                })
            };
            for n in 0..2 {
                let payload = loop {
                    match pop(&mut rx) {
                        Some(payload) => break payload,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(payload, n, "an old payload was taken for a new one");
                credit.fetch_add(1, Ordering::Release);
            }
            sender.join().expect("the sender does not panic");
        });
    }

    #[test]
    fn loom_an_entry_is_reused() {
        an_entry_is_reused(CompletionReceiver::pop);
    }

    /// Treats every non-zero entry as written.
    #[test]
    #[should_panic(expected = "an old payload")]
    fn loom_planted_pop_that_ignores_the_lap() {
        an_entry_is_reused(|rx| {
            let entry = rx.shared.entry(rx.head).load(Ordering::Acquire);
            let written = entry != 0;
            rx.head += u64::from(written);
            #[cfg(debug_assertions)]
            rx.shared.taken.store(rx.head, Ordering::Release);
            written.then_some(entry & PAYLOAD_MASK)
        });
    }

    /// A sender has other work for the receiver while a payload arrives: a sleeping receiver is woken, once.
    fn a_sleeper_hears_of_other_work(fence: fn()) {
        loom::model(move || {
            let (tx, mut rx) = completion_ring(1);
            let due = Arc::new(AtomicBool::new(false));
            let waker = {
                let (tx, due) = (tx.clone(), Arc::clone(&due));
                thread::spawn(move || {
                    due.store(true, Ordering::Relaxed);
                    fence();
                    tx.take_parked()
                })
            };
            let sender = thread::spawn(move || tx.push(&[1]));
            let mut asleep = rx.prepare_park();
            fence();
            if asleep && due.load(Ordering::Relaxed) {
                rx.cancel_park();
                asleep = false;
            }
            let told = [waker, sender].map(|thread| thread.join().expect("no thread panics"));
            let told = told.into_iter().filter(|told| *told).count();
            assert!(!asleep || told == 1, "{told} were told to wake a sleeper");
        });
    }

    #[test]
    fn loom_a_sleeper_hears_of_other_work() {
        a_sleeper_hears_of_other_work(|| fence(Ordering::SeqCst));
    }

    /// Like [`a_sleeper_hears_of_other_work`], but no payload comes.
    fn other_work_alone(fence: fn()) {
        loom::model(move || {
            let (tx, mut rx) = completion_ring(1);
            let due = Arc::new(AtomicBool::new(false));
            let waker = {
                let due = Arc::clone(&due);
                thread::spawn(move || {
                    due.store(true, Ordering::Relaxed);
                    fence();
                    tx.take_parked()
                })
            };
            let asleep = rx.prepare_park();
            fence();
            let seen = due.load(Ordering::Relaxed);
            let told = waker.join().expect("the waker does not panic");
            assert!(!asleep || seen || told, "a receiver sleeps and no thread wakes it");
        });
    }

    #[test]
    fn loom_other_work_alone() {
        other_work_alone(|| fence(Ordering::SeqCst));
    }

    #[test]
    #[should_panic(expected = "no thread wakes it")]
    fn loom_planted_park_without_a_fence() {
        other_work_alone(|| ());
    }
}
