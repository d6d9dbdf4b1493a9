//! Kicks as in the kernel: a work item with a due time, which every call sets anew, and the flag that was proposed to
//! avoid such calls (`spec/framework.md` section 9.1).
//!
//! For comparison; this project uses `run_state` instead. Beside a `RunState`, it only says whether a thread must come;
//! the `RunState` decides which thread runs.
//!
//! # States
//!
//! | word | `run_now`, always | `run_now`, flag | `run_later(d)` | `begin` |
//! |---|---|---|---|---|
//! | nothing | due now: *you* wake a thread | due now, flag: *you* wake a thread | due at d | same |
//! | due at e | due now: *you* wake a thread | due now, flag: *you* wake a thread | due at d, earlier or later | nothing |
//! | due at e, flag | - | same: dropped | due at d, earlier or later; flag stays | nothing |
//!
//! # Missing guarantees
//!
//! R1 and R2 of `spec/framework.md` section 9.1. The latest call decides, so `run_later` postpones a pass that was due
//! now. Without the flag the next `run_now` corrects that. With the flag, `run_now` is dropped because an earlier one
//! has set the flag, although that one has been postponed in the meantime: of *now, later, now* only *later* is left.
//! The pass is not lost, but late.
//!
//! # Orderings
//!
//! Every call but the hints is a read-modify-write, so all of them lie in one order and in one release sequence. The
//! calls for a pass release and `begin` acquires: a `run_now` that is dropped reads a flag that no `begin` has cleared
//! yet, and the next `begin` sees everything that was published before that call. So the fault is not in the memory
//! ordering.

use super::{AtomicU64, Kick, Ordering};
use blkmq_core::Instant;

const FLAG: u64 = 1;
const TIME_SHIFT: u32 = 1;
/// Due from the first nanosecond on; 0 is nothing.
const NOW: u64 = 1 << TIME_SHIFT;

/// The word described above.
pub(crate) struct DelayedWork {
    word: AtomicU64,
    has_flag: bool,
}

impl DelayedWork {
    /// A work item with nothing due. Every `run_now` makes its caller wake a thread.
    pub(crate) fn always() -> Self {
        Self { word: AtomicU64::new(0), has_flag: false }
    }

    /// Like [`always`](Self::always), but with the flag.
    pub(crate) fn with_flag() -> Self {
        Self { has_flag: true, ..Self::always() }
    }

    /// Makes a pass due now, or drops the call. One read-modify-write, a second one if it is not dropped.
    pub(crate) fn run_now(&self) -> Kick {
        if self.has_flag && self.word.fetch_or(FLAG, Ordering::Release) & FLAG != 0 {
            return Kick::Coalesced;
        }
        self.set(NOW);
        Kick::Queued
    }

    /// Makes a pass due at `at` and at no other time.
    pub(crate) fn run_later(&self, at: Instant) {
        self.set(at.as_nanos().clamp(1, u64::MAX >> TIME_SHIFT) << TIME_SHIFT);
    }

    fn set(&self, time: u64) {
        let next = |word| Some(time | word & FLAG);
        let set = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        set.expect("there is always a next word");
    }

    /// Begins a pass. One read-modify-write.
    pub(crate) fn begin(&self) {
        self.word.swap(0, Ordering::Acquire);
    }

    /// The time at which a pass is due; `None` if none is. A hint, by one plain load.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.word.load(Ordering::Relaxed) >> TIME_SHIFT {
            0 => None,
            1 => Some(Instant::ZERO),
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    /// Returns whether a pass is due by `now`. A hint, by one plain load.
    pub(crate) fn due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::RunState;

    const T0: Instant = Instant::from_nanos(1_000);
    const LATER: Instant = Instant::from_nanos(3_001_000);

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Call {
        Now,
        Later,
    }
    use Call::{Later, Now};

    /// After these calls, if the worker does not come: how many callers had to wake it, and whether a pass is due
    /// immediately.
    fn delayed(work: &DelayedWork, calls: [Call; 3]) -> (usize, bool) {
        let mut wakes = 0;
        for call in calls {
            match call {
                Now => wakes += usize::from(work.run_now() == Kick::Queued),
                Later => work.run_later(LATER),
            }
        }
        assert!(work.due(LATER), "nothing is lost");
        (wakes, work.due(T0))
    }

    fn coalesced(calls: [Call; 3]) -> (usize, bool) {
        let (state, mut wakes) = (RunState::new(), 0);
        for call in calls {
            match call {
                Now => wakes += usize::from(state.kick() == Kick::Queued),
                Later => {
                    state.arm(LATER);
                }
            }
        }
        (wakes, state.due(T0))
    }

    /// The fault that Long Li, the author of the patch, found: the second *now* is dropped, and no pass begins until
    /// the delay is over.
    #[test]
    fn seed_002_now_later_now_with_the_flag_waits_for_later() {
        let work = DelayedWork::with_flag();
        assert_eq!(work.run_now(), Kick::Queued);
        work.run_later(LATER);
        assert_eq!(work.run_now(), Kick::Coalesced, "dropped");
        assert_eq!(work.deadline(), Some(LATER));
        work.begin();
        assert_eq!((work.deadline(), work.run_now()), (None, Kick::Queued));
    }

    #[test]
    fn s16_09_three_calls_in_every_order_and_mode() {
        for (calls, always, flag) in [
            ([Now, Later, Now], (2, true), (1, false)),
            // As in the kernel: R2 is stricter.
            ([Now, Now, Later], (2, false), (1, false)),
            // The case that Damien Le Moal asked about is not a fault.
            ([Later, Now, Now], (2, true), (1, true)),
        ] {
            assert_eq!(delayed(&DelayedWork::always(), calls), always, "{calls:?}");
            assert_eq!(delayed(&DelayedWork::with_flag(), calls), flag, "{calls:?}");
            assert_eq!(coalesced(calls), (1, true), "{calls:?}");
        }
    }

    #[test]
    fn times_at_both_ends() {
        let work = DelayedWork::always();
        work.run_later(Instant::MAX);
        assert!(!work.due(LATER) && work.deadline().is_some());
        work.run_later(Instant::ZERO);
        assert!(work.due(Instant::ZERO));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, AtomicBool, RunState};
    use loom::thread;

    const LATER: Instant = Instant::from_nanos(10);

    /// A way to kick.
    struct Way<S> {
        new: fn() -> S,
        now: fn(&S) -> Kick,
        later: fn(&S),
        /// A pass, if it begins. Returns whether it sees the published value.
        pass: fn(&S, &AtomicBool) -> bool,
        is_due: fn(&S) -> bool,
    }

    fn look(published: &AtomicBool) -> bool {
        published.load(Ordering::Relaxed)
    }

    const COALESCED: Way<RunState> = Way {
        new: RunState::new,
        now: RunState::kick,
        later: |state| {
            state.arm(LATER);
        },
        pass: |state, published| state.try_begin() && look(published),
        is_due: |state| state.due(Instant::ZERO) || state.is_running() && !state.finish(),
    };

    const FLAGGED: Way<DelayedWork> = Way {
        new: DelayedWork::with_flag,
        now: DelayedWork::run_now,
        later: |work| work.run_later(LATER),
        pass: |work, published| {
            work.begin();
            look(published)
        },
        is_due: |work| work.due(Instant::ZERO),
    };

    const ALWAYS: Way<DelayedWork> = Way { new: DelayedWork::always, ..FLAGGED };

    const NOBODY: fn(&DelayedWork) = |_| {};

    /// One thread requests a pass now, publishes a value, and requests again; another requests a later pass, and a
    /// worker may come. In every order the worker has seen the value, or a pass is due now.
    fn a_pass_is_due_after_now<S: Send + Sync + 'static>(way: Way<S>, worker: bool) {
        let Way { new, now, later, pass, is_due } = way;
        loom::model(move || {
            let shared = Arc::new((new(), AtomicBool::new(false)));
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || later(&shared.0))
            };
            let worker = worker.then(|| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || pass(&shared.0, &shared.1))
            });
            let (state, published) = &*shared;
            let _ = now(state);
            published.store(true, Ordering::Relaxed);
            let _ = now(state);
            other.join().expect("no thread panics");
            let seen = worker.is_some_and(|worker| worker.join().expect("no thread panics"));
            assert!(seen || is_due(state), "a call for now is not heard");
        });
    }

    #[test]
    fn loom_now_and_later_in_every_order_coalesced() {
        a_pass_is_due_after_now(COALESCED, false);
        a_pass_is_due_after_now(COALESCED, true);
    }

    #[test]
    #[should_panic(expected = "is not heard")]
    fn loom_seed_002_now_later_now_with_the_flag() {
        a_pass_is_due_after_now(FLAGGED, false);
    }

    /// Without later passes the flag drops no call that it should keep: its memory ordering is right.
    #[test]
    fn loom_the_flag_alone_loses_nothing() {
        a_pass_is_due_after_now(Way { later: NOBODY, ..FLAGGED }, true);
    }

    /// Without the flag nothing is dropped.
    #[test]
    fn loom_every_call_is_heard_without_the_flag() {
        a_pass_is_due_after_now(Way { later: NOBODY, ..ALWAYS }, true);
    }

    #[test]
    #[should_panic(expected = "is not heard")]
    fn loom_planted_a_call_without_release() {
        let now = |work: &DelayedWork| {
            work.word.swap(NOW, Ordering::Relaxed);
            Kick::Queued
        };
        a_pass_is_due_after_now(Way { now, later: NOBODY, ..ALWAYS }, true);
    }

    #[test]
    #[should_panic(expected = "is not heard")]
    fn loom_planted_a_flag_cleared_behind_the_look() {
        let pass = |work: &DelayedWork, published: &AtomicBool| {
            let seen = look(published);
            work.begin();
            seen
        };
        a_pass_is_due_after_now(Way { pass, later: NOBODY, ..FLAGGED }, true);
    }
}
