//! Admits one dispatcher beside a lock: the bit of the kernel series of 2024, which keeps dispatchers from queueing for
//! the lock (`spec/history.md` section 2).
//!
//! In that series a thread that finds the bit set leaves, and relies on the next completion to dispatch its requests.
//! Here it leaves a mark, and the dispatcher continues on its behalf: with a device that completes within the call
//! there is no next completion.
//!
//! | word | `try_enter` | `leave`, by the dispatcher |
//! |---|---|---|
//! | `FREE` | `BUSY`: *you* dispatch | - |
//! | `BUSY` | `ASKED`: leave, the dispatcher continues for you | `FREE`, false: done |
//! | `ASKED` | same: leave, likewise | `FREE`, true: *you* enter again |
//!
//! Invariant: in `BUSY` and `ASKED` there is one dispatcher. A dispatcher that enters, or enters again, sees the writes
//! of every caller that was turned away before. A dispatcher sees the writes of its predecessor.
//!
//! # Why the orderings are enough
//!
//! Every call is a read-modify-write, so all of them lie in one order and in one release sequence. A caller that is
//! turned away writes `ASKED` with release. The next `leave` reads that value or a later one, and its dispatcher enters
//! again: entering acquires, and so sees the writes of every caller that was turned away before. If the dispatcher left
//! first, the call reads `FREE` and is not turned away. `leave` itself has nothing to acquire, and releases the
//! dispatcher's writes. The first of the two writes of a call has nothing to release: if the caller is turned away, the
//! second one does.

use super::{AtomicU8, Ordering, looks_again};

const FREE: u8 = 0;
const BUSY: u8 = 1;
/// A second bit, so that setting it cannot undo a `leave`.
const ASKED: u8 = BUSY | 2;

/// The bit, and a second one that refused callers set.
pub(crate) struct DispatchGate(AtomicU8);

impl DispatchGate {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(FREE))
    }

    /// Returns whether the caller may dispatch. If false, the dispatcher continues on its behalf. One
    /// read-modify-write, two if refused.
    #[inline]
    #[must_use = "the thread that entered has to leave"]
    pub(crate) fn try_enter(&self) -> bool {
        self.0.fetch_or(BUSY, Ordering::Acquire) == FREE
            // The dispatcher may leave in between: then the caller has entered, and will enter once more without need.
            || looks_again() && self.0.fetch_or(ASKED, Ordering::AcqRel) == FREE
    }

    /// Leaves, for the dispatcher. Returns true if a caller was turned away in the meantime: the dispatcher must enter
    /// again for it. One read-modify-write.
    #[inline]
    #[must_use = "the thread that was sent away relies on it"]
    pub(crate) fn leave(&self) -> bool {
        let before = self.0.swap(FREE, Ordering::Release);
        debug_assert!(before != FREE, "left by a thread that does not dispatch");
        before == ASKED
    }

    /// Returns whether there is a dispatcher. A hint.
    #[inline]
    #[must_use]
    pub(crate) fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) != FREE
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_table() {
        let gate = DispatchGate::new();
        assert!(gate.try_enter() && gate.is_busy());
        assert!(!gate.leave(), "no thread came");
        assert!(!gate.is_busy() && gate.try_enter());
        assert!(!gate.try_enter());
        assert_eq!(gate.0.load(Ordering::Relaxed), ASKED);
        assert!(!gate.try_enter());
        assert_eq!(gate.0.load(Ordering::Relaxed), ASKED);
        assert!(gate.leave(), "two came, which is one round");
        assert!(!gate.is_busy());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, AtomicU32, UnsafeCell};
    use loom::thread;

    type Call = fn(&DispatchGate) -> bool;

    /// Each thread publishes work, and dispatches for all until no caller is turned away. The loads of the work are
    /// deliberately relaxed, so that only the gate's own ordering can make them right.
    fn a_thread_sent_away_is_served(threads: usize, times: u32, enter: Call, leave: Call) {
        loom::model(move || {
            let zeros = || (0..threads).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>();
            let rounds = UnsafeCell::new(0);
            let shared = Arc::new((DispatchGate::new(), zeros(), zeros(), rounds));
            let work = |who: usize| {
                let shared = Arc::clone(&shared);
                move || {
                    let (gate, published, dispatched, rounds) = &*shared;
                    for n in 1..=times {
                        published[who].store(n, Ordering::Relaxed);
                        while enter(gate) {
                            // SAFETY: there is one dispatcher; loom checks it.
                            rounds.with_mut(|rounds| unsafe { *rounds += 1 });
                            for (published, dispatched) in published.iter().zip(dispatched) {
                                let n = published.load(Ordering::Relaxed);
                                dispatched.fetch_max(n, Ordering::Relaxed);
                            }
                            if !leave(gate) {
                                break;
                            }
                        }
                    }
                }
            };
            let others: Vec<_> = (1..threads).map(|who| thread::spawn(work(who))).collect();
            work(0)();
            others.into_iter().for_each(|other| other.join().expect("no thread panics"));
            let all = shared.2.iter().all(|n| n.load(Ordering::Relaxed) == times);
            assert!(all, "work was left behind");
            assert!(!shared.0.is_busy());
        });
    }

    #[test]
    fn loom_a_thread_sent_away_is_served() {
        a_thread_sent_away_is_served(2, 2, DispatchGate::try_enter, DispatchGate::leave);
        a_thread_sent_away_is_served(3, 1, DispatchGate::try_enter, DispatchGate::leave);
    }

    /// As proposed: a thread that finds the bit set leaves without a mark.
    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_planted_enter_that_leaves_no_word() {
        let enter: Call = |gate| gate.0.fetch_or(BUSY, Ordering::AcqRel) == FREE;
        a_thread_sent_away_is_served(2, 1, enter, DispatchGate::leave);
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_planted_leave_that_looks_first() {
        let leave: Call = |gate| {
            let asked = gate.0.load(Ordering::Acquire) == ASKED;
            gate.0.store(FREE, Ordering::Release);
            asked
        };
        a_thread_sent_away_is_served(2, 1, DispatchGate::try_enter, leave);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_leave_without_release() {
        let leave: Call = |gate| gate.0.swap(FREE, Ordering::Relaxed) == ASKED;
        a_thread_sent_away_is_served(2, 1, DispatchGate::try_enter, leave);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_enter_without_acquire() {
        let enter: Call = |gate| {
            gate.0.fetch_or(BUSY, Ordering::Release) == FREE
                || gate.0.fetch_or(ASKED, Ordering::Release) == FREE
        };
        a_thread_sent_away_is_served(2, 1, enter, DispatchGate::leave);
    }
}
