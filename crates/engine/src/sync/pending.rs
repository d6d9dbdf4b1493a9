//! Which submitters have staged work that a runner should admit.
//!
//! A submitter stages into its own ring and then sets its bit; a runner takes all bits and drains those rings. So a
//! pass does not touch the rings of idle submitters.
//!
//! | bit | `set(id)` | `take` |
//! |---|---|---|
//! | 0 | 1: the next `take` visits id | - |
//! | 1 | 1 | 0, and id is visited: *the caller* drains it |
//!
//! Invariant: a bio staged before a `set` is found by the visit of the `take` that clears the bit, or by an earlier
//! one.
//!
//! # Why the orderings are enough
//!
//! `set` is a read-modify-write that releases; `take` swaps with acquire, and whichever read-modify-write it reads
//! from, all sets of the word so far are in that release sequence. The plain load of a word before the swap may be
//! outdated; the run state ensures that the pass after a kick sees a `set` before that kick (`run_state`, R1), because
//! begin and kick have a full fence or a read-modify-write in between.
//!
//! `set` writes even where the bit looks set already. That load may be older than the swap of a runner that drains the
//! ring just before the new bio gets there, and then no pass would visit the ring again.

use super::{AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use crossbeam_utils::CachePadded;

const WORD_BITS: u32 = u64::BITS;

/// A set of submitter numbers, with a value that takers write and setters read: both have that cache line anyway.
pub(crate) struct Pending<B = ()> {
    words: Box<[CachePadded<Word<B>>]>,
    /// Where the next `take` begins. Written by runners only, one at a time.
    start: CachePadded<AtomicU32>,
}

/// One word of bits. The first word also holds the value beside the set.
#[derive(Default)]
struct Word<B> {
    bits: AtomicU64,
    beside: B,
}

impl<B: Default> Pending<B> {
    /// An empty set, for ids below `submitters`.
    pub(crate) fn new(submitters: u16) -> Self {
        let words = u32::from(submitters).div_ceil(WORD_BITS).max(1);
        Self {
            words: (0..words).map(|_| CachePadded::default()).collect(),
            start: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Lets the next [`take`](Self::take) visit `id`. One read-modify-write and a full fence, so that the caller may
    /// check again the condition that made it set the bit. Either the caller finds the condition changed, or it is
    /// visited by the thread that changes it, has a full fence, and then takes.
    ///
    /// # Panics
    /// If `id` is beyond the words of the set.
    #[inline]
    pub(crate) fn set(&self, id: u16) {
        let (word, bit) = (u32::from(id) / WORD_BITS, u32::from(id) % WORD_BITS);
        self.words[word as usize].bits.fetch_or(1 << bit, Ordering::Release);
        fence_after_rmw();
    }

    /// The value stored with the set.
    #[inline]
    pub(crate) fn beside(&self) -> &B {
        &self.words[0].beside
    }

    /// Returns whether `id` is in the set. A plain load.
    ///
    /// # Panics
    /// If `id` is beyond the words of the set.
    #[inline]
    #[must_use]
    pub(crate) fn has(&self, id: u16) -> bool {
        let (word, bit) = (u32::from(id) / WORD_BITS, u32::from(id) % WORD_BITS);
        self.words[word as usize].bits.load(Ordering::Relaxed) & 1 << bit != 0
    }

    /// Returns whether the set is non-empty. Plain loads.
    #[inline]
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|word| word.bits.load(Ordering::Relaxed) != 0)
    }

    /// Empties the set and visits every number that was in it, in ascending order from a rotating start, so that each
    /// number is first in turn. For the runner: one caller at a time. One read-modify-write per non-empty word.
    #[inline]
    pub(crate) fn take(&self, mut f: impl FnMut(u16)) {
        self.take_ahead(|id, _| f(id));
    }

    /// Like [`take`](Self::take), but passes each number together with the next one in the same word.
    #[inline]
    pub(crate) fn take_ahead(&self, mut f: impl FnMut(u16, Option<u16>)) {
        let start = self.start.load(Ordering::Relaxed);
        let (first, offset) = ((start / WORD_BITS) as usize, start % WORD_BITS);
        let wrapped = self.swap(first);
        let mut visited = None;
        let mut visit = |word: usize, mut bits: u64| {
            // There are at most 2^16 bits, because ids are 16 bits wide.
            let lowest = |bits: u64| (word as u32 * WORD_BITS + bits.trailing_zeros()) as u16;
            while bits != 0 {
                let id = lowest(bits);
                bits &= bits - 1;
                visited.get_or_insert(id);
                f(id, (bits != 0).then(|| lowest(bits)));
            }
        };
        let below = (1 << offset) - 1;
        visit(first, wrapped & !below);
        for word in (first + 1..self.words.len()).chain(0..first) {
            visit(word, self.swap(word));
        }
        visit(first, wrapped & below);
        if let Some(id) = visited {
            let next = (u32::from(id) + 1) % (self.words.len() as u32 * WORD_BITS);
            self.start.store(next, Ordering::Relaxed);
        }
    }

    #[inline]
    fn swap(&self, word: usize) -> u64 {
        let word = &self.words[word].bits;
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn taken(pending: &Pending) -> Vec<u16> {
        let mut ids = Vec::new();
        pending.take(|id| ids.push(id));
        ids
    }

    #[test]
    fn each_is_visited_once_and_first_in_turn() {
        let pending = Pending::new(200);
        let set = |ids: &[u16]| ids.iter().for_each(|id| pending.set(*id));
        assert!(!pending.any());
        set(&[3, 70, 199, 70]);
        assert!(pending.any() && pending.has(70) && !pending.has(71) && !pending.has(6));
        assert_eq!(taken(&pending), [3, 70, 199]);
        assert!(!pending.any());
        assert_eq!(taken(&pending), []);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [70, 199, 3]);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [199, 3, 70]);
        set(&[3, 70, 199]);
        assert_eq!(taken(&pending), [3, 70, 199]);
    }

    #[test]
    fn the_next_number_is_told_ahead() {
        let pending: Pending = Pending::new(200);
        [3, 5, 70].into_iter().for_each(|id| pending.set(id));
        let mut seen = Vec::new();
        pending.take_ahead(|id, next| seen.push((id, next)));
        assert_eq!(seen, [(3, Some(5)), (5, None), (70, None)]);
    }

    #[test]
    fn a_start_within_a_word_goes_round_that_word() {
        let pending = Pending::new(4);
        for expected in [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2], [0, 1, 2, 3]] {
            (0..4).for_each(|id| pending.set(id));
            assert_eq!(taken(&pending), expected);
        }
    }

    #[test]
    fn the_largest_id() {
        let pending = Pending::new(u16::MAX);
        pending.set(u16::MAX - 1);
        assert_eq!(taken(&pending), [u16::MAX - 1]);
        pending.set(0);
        assert_eq!(taken(&pending), [0]);
    }

    #[test]
    fn whoever_is_set_during_a_visit_is_visited_next_time() {
        let pending = Pending::new(2);
        pending.set(0);
        pending.take(|_| pending.set(0));
        assert_eq!(taken(&pending), [0]);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, Budget, fence};
    use loom::thread;

    /// A submitter stages twice while a runner takes; the remaining bits are taken afterwards.
    fn nothing_staged_is_missed(take: fn(&Pending, &mut dyn FnMut(u16))) {
        loom::model(move || {
            let shared = Arc::new((Pending::new(1), AtomicU32::new(0)));
            let submitter = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for n in 1..=2 {
                        shared.1.store(n, Ordering::Relaxed);
                        shared.0.set(0);
                    }
                })
            };
            let mut drained = 0;
            take(&shared.0, &mut |_| drained = shared.1.load(Ordering::Relaxed));
            submitter.join().expect("the submitter does not panic");
            take(&shared.0, &mut |_| drained = shared.1.load(Ordering::Relaxed));
            assert_eq!(drained, 2, "something staged was missed");
            assert!(!shared.0.has(0), "nothing is left to visit");
        });
    }

    #[test]
    fn loom_nothing_staged_is_missed() {
        nothing_staged_is_missed(|pending, f| pending.take(f));
    }

    #[test]
    #[should_panic(expected = "was missed")]
    fn loom_planted_bits_cleared_after_the_visit() {
        nothing_staged_is_missed(|pending, f| {
            if pending.any() {
                f(0);
                pending.swap(0);
            }
        });
    }

    #[test]
    #[should_panic(expected = "was missed")]
    fn loom_planted_take_without_acquire() {
        nothing_staged_is_missed(|pending, f| {
            if pending.words[0].bits.swap(0, Ordering::Relaxed) != 0 {
                f(0);
            }
        });
    }

    /// A caller that finds no budget sets its bit and checks again, while the budget is put back.
    fn a_refused_one_is_told(set: fn(&Pending, u16)) {
        loom::model(move || {
            let shared = Arc::new((Pending::new(1), Budget::new(Some(1))));
            assert_eq!(shared.1.take(1), 1);
            let holder = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.put(1);
                    fence(Ordering::SeqCst);
                    let mut told = false;
                    shared.0.take(|_| told = true);
                    told
                })
            };
            set(&shared.0, 0);
            let got = shared.1.take(1);
            let told = holder.join().expect("the holder does not panic");
            assert!(got == 1 || told, "the budget is free and nobody knows");
        });
    }

    #[test]
    fn loom_a_refused_one_is_told() {
        a_refused_one_is_told(Pending::set);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_set_without_a_fence() {
        a_refused_one_is_told(|pending, id| {
            pending.words[0].bits.fetch_or(1 << id, Ordering::AcqRel);
        });
    }
}
