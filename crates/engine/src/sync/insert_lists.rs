//! Lists beside a lock, in which a submitter that finds the lock taken leaves its requests: the insertion lists of the
//! kernel series of 2024 (`spec/history.md` section 2).
//!
//! | list | `park` | `take`, under the lock |
//! |---|---|---|
//! | empty | filled, marked: the next `take` has it | passed by |
//! | filled | longer, marked: likewise | emptied: *the caller* inserts it |
//! | closed: the queue is frozen, or replaced | refused: *you* keep it | - |
//!
//! A list is *closed* by a condition that `park` checks while it holds the list. A thread that closes it, and then
//! finds it [empty](InsertLists::is_empty), knows that it stays so.
//!
//! Invariant: every parked value is in a marked list, or its parker is about to mark it.
//!
//! # Why the orderings are enough
//!
//! A list is a vector under its own mutex, which is held only while a plug is moved. The mark is a bit in a
//! [`Pending`], set after the push: a taker that clears it takes the list afterwards, and finds the values pushed
//! before. A mark set before the push could be cleared in between. `set` ends in a full fence, so a parker that then
//! finds, by a read-modify-write, that another thread is dispatching knows that this thread will check
//! (`dispatch_gate`).
//!
//! *Closing.* `is_empty` takes each list's mutex after the write that closes it. A `park` that has the list later sees
//! that write; an earlier one has left its values in the list.

use super::{Mutex, MutexGuard, Pending, PoisonError, looks_again};
use crossbeam_utils::CachePadded;

pub(crate) struct InsertLists<T> {
    lists: Box<[CachePadded<Mutex<Vec<T>>>]>,
    filled: Pending,
}

impl<T> InsertLists<T> {
    /// `lists` empty lists, at least one.
    pub(crate) fn new(lists: u16) -> Self {
        let list = |_| CachePadded::new(Mutex::new(Vec::new()));
        Self { lists: (0..lists.max(1)).map(list).collect(), filled: Pending::new(lists.max(1)) }
    }

    fn list(&self, at: usize) -> MutexGuard<'_, Vec<T>> {
        // A vector is valid even if a thread panicked while it filled it.
        self.lists[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `fill` add to the caller's list. Returns false, without doing so, if `is_open` says that the list is
    /// closed.
    pub(crate) fn park(
        &self,
        who: usize,
        is_open: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut Vec<T>),
    ) -> bool {
        let at = who % self.lists.len();
        let mut list = self.list(at);
        if !is_open() && looks_again() {
            return false;
        }
        fill(&mut list);
        drop(list);
        // There are as many lists as marks.
        self.filled.set(at as u16);
        true
    }

    /// Returns whether any value is parked. Plain loads: a hint, exact once the `park` in question has returned.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.filled.any()
    }

    /// Empties all lists, oldest first in each. One caller at a time: the holder of the lock.
    pub(crate) fn take(&self, mut each: impl FnMut(T)) {
        self.filled.take(|at| self.list(at.into()).drain(..).for_each(&mut each));
    }

    /// Returns whether all lists are empty. Exact, and stays so if they are closed.
    pub(crate) fn is_empty(&self) -> bool {
        (0..self.lists.len()).all(|at| self.list(at).is_empty())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn taken(lists: &InsertLists<u32>) -> Vec<u32> {
        let mut all = Vec::new();
        lists.take(|value| all.push(value));
        all
    }

    #[test]
    fn what_is_parked_is_taken_once_and_in_order() {
        let lists = InsertLists::new(2);
        assert!(!lists.any() && lists.is_empty());
        assert!(lists.park(0, || true, |list| list.extend([1, 2])));
        assert!(lists.park(2, || true, |list| list.push(3)), "numbers go round");
        assert!(lists.park(1, || true, |list| list.push(9)));
        assert!(lists.any() && !lists.is_empty());
        assert_eq!(taken(&lists), [1, 2, 3, 9]);
        assert!(!lists.any() && lists.is_empty());
        assert_eq!(taken(&lists), []);
    }

    #[test]
    fn a_closed_list_takes_nothing() {
        let lists = InsertLists::new(1);
        assert!(!lists.park(0, || false, |list| list.push(1)));
        assert!(lists.is_empty());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, AtomicU32, Control, DispatchGate, Ordering};
    use loom::thread;

    type Park = fn(&InsertLists<u32>, u32);

    fn park(lists: &InsertLists<u32>, value: u32) {
        assert!(lists.park(0, || true, |list| list.push(value)));
    }

    /// Threads park and then dispatch, or are turned away; the dispatcher checks only marked lists.
    fn nothing_parked_is_left_behind(threads: u32, park: Park) {
        loom::model(move || {
            let shared = Arc::new((InsertLists::new(1), DispatchGate::new(), AtomicU32::new(0)));
            let work = |who: u32| {
                let shared = Arc::clone(&shared);
                move || {
                    let (lists, gate, taken) = &*shared;
                    park(lists, 1 << who);
                    while gate.try_enter() {
                        if lists.any() {
                            lists.take(|value| {
                                taken.fetch_add(value, Ordering::Relaxed);
                            });
                        }
                        if !gate.leave() {
                            break;
                        }
                    }
                }
            };
            let others: Vec<_> = (1..threads).map(|who| thread::spawn(work(who))).collect();
            work(0)();
            others.into_iter().for_each(|other| other.join().expect("no thread panics"));
            let taken = shared.2.load(Ordering::Relaxed);
            assert_eq!(taken, (1 << threads) - 1, "something stays parked");
        });
    }

    #[test]
    fn loom_nothing_parked_is_left_behind() {
        nothing_parked_is_left_behind(2, park);
    }

    #[test]
    #[should_panic(expected = "something stays parked")]
    fn loom_planted_a_list_marked_before_it_is_filled() {
        nothing_parked_is_left_behind(2, |lists, value| {
            lists.filled.set(0);
            lists.list(0).push(value);
        });
    }

    /// A list is closed and found empty, for a queue that takes over; then it is open again, but for the new queue.
    fn nothing_is_parked_in_a_closed_list(park: fn(&InsertLists<u32>, &dyn Fn() -> bool) -> bool) {
        loom::model(move || {
            let shared = Arc::new((InsertLists::new(1), Control::new()));
            let parker = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (lists, control) = &*shared;
                    park(lists, &|| control.is_open(0))
                })
            };
            let (lists, control) = &*shared;
            control.freeze();
            let empty = lists.is_empty();
            if empty {
                control.publish(1);
            }
            control.thaw();
            let parked = parker.join().expect("the parker does not panic");
            assert!(!(parked && empty), "a value is parked where no thread looks");
        });
    }

    #[test]
    fn loom_nothing_is_parked_in_a_closed_list() {
        nothing_is_parked_in_a_closed_list(|lists, is_open| {
            lists.park(0, is_open, |list| list.push(1))
        });
    }

    #[test]
    #[should_panic(expected = "where no thread looks")]
    fn loom_planted_a_look_ahead_of_the_list() {
        nothing_is_parked_in_a_closed_list(|lists, is_open| {
            let open = is_open();
            lists.park(0, || open, |list| list.push(1))
        });
    }
}
