//! The combining protocol, in one word: whether a runner is active, whether another pass is owed, and when the next
//! pass is due. It guards an elevator or a pump, which at most one thread may run at a time.
//!
//! A *pass* is one check of all pending work. This file is independent of the guarded value. It holds no work and wakes
//! no thread: it says which thread must.
//!
//! # States
//!
//! Two bits of state, 62 bits of deadline in nanoseconds (0: none). `QUEUED` and `RERUN` have no deadline, because a
//! pass is due immediately, which satisfies every deadline.
//!
//! | from \ call | `try_begin` | `begin_or_owe` | `kick` | `arm(d)` | `finish` | `hand_over` |
//! |---|---|---|---|---|---|---|
//! | `IDLE` | `RUNNING`: *you* run | `RUNNING`: *you* run | `QUEUED`: *you* see that a thread begins | `IDLE(d)`: *you* see that a thread begins at d | - | - |
//! | `IDLE(e)`, armed | `RUNNING`: *you* run | `RUNNING`: *you* run | `QUEUED`: *you* see that a thread begins | `IDLE(min)` | - | - |
//! | `QUEUED` | `RUNNING`: *you* run | `RUNNING`: *you* run | same: the earlier caller sees to it | same: the earlier caller sees to it | - | - |
//! | `RUNNING(e)` | same, refused | `RERUN`: the runner | `RERUN`: the runner | `RUNNING(min)`: the runner leaves it armed | `IDLE(e)`: done | `QUEUED`: *you* see that a thread begins |
//! | `RERUN` | same, refused | same: the runner | same: the runner | same: the runner | `RUNNING`: *you* run again | `QUEUED`: *you* see that a thread begins |
//!
//! Invariant: in `QUEUED` a thread is on its way that will begin; in `RUNNING` and `RERUN` there is exactly one
//! runner; in `RERUN` it will begin again.
//!
//! # Guarantees
//!
//! The three guarantees of `spec/framework.md` section 9.1. *Published* means stored into an atomic that the pass
//! loads.
//!
//! * R1: after `kick` returns, a pass that starts afterwards sees everything published before the call.
//! * R2: after `arm(d)` returns, such a pass is due no later than d; an earlier deadline stays.
//! * R3: a kick is dropped only in `QUEUED` and `RERUN`, when a pass is due immediately and has not begun. `begin` and
//!   `finish` publish that it has begun before the pass looks.
//!
//! # Why the orderings are enough
//!
//! *A call that writes the word.* Every transition is a read-modify-write, so all of them lie in one release
//! sequence: a beginning (acquire) sees everything that precedes any earlier call (release).
//!
//! *A call that finds nothing to write* (R3, and `arm` behind an earlier deadline) decides on a load that follows a
//! full fence K. The beginning B writes the word, then has a full fence, then looks. If K comes before B's fence, the
//! look sees everything published before K. If K comes after it, the load sees that B has begun, so the call decides
//! otherwise. Without either fence both can miss (store buffering).
//!
//! *A pass after a pass.* `finish` releases the writes of the pass to the value; the next beginning acquires them.

use super::{AtomicU64, Ordering, fence, fence_after_rmw, looks_again};
use crate::planted::{self, Planted};
use blkmq_core::Instant;

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
/// From this time on, deadlines are stored in units of 8 ns, in the upper half of the values.
const COARSE: u64 = 1 << (u64::BITS - STATE_BITS - 1);
const COARSE_SHIFT: u32 = 3;

/// The word described above. Not padded: `RunCell` gives it a separate cache line.
pub(crate) struct RunState(AtomicU64);

/// The result of a kick.
#[must_use = "a queued kick is lost unless somebody begins a pass"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kick {
    /// A pass is due now, and the caller must make sure that a thread begins it.
    Queued,
    /// A pass that has not begun yet serves the kick, and another thread already makes sure that it begins.
    Coalesced,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Queued,
    Running,
    Rerun,
}

/// A value of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    const IDLE: Self = Self(0);
    const QUEUED: Self = Self(1);
    const RUNNING: Self = Self(2);
    const RERUN: Self = Self(3);

    const fn state(self) -> State {
        match Self(self.0 & STATE_MASK) {
            Self::IDLE => State::Idle,
            Self::QUEUED => State::Queued,
            Self::RUNNING => State::Running,
            _ => State::Rerun,
        }
    }

    const fn deadline(self) -> Option<Instant> {
        match self.0 >> STATE_BITS {
            0 => None,
            ns if ns < COARSE => Some(Instant::from_nanos(ns)),
            coarse => Some(Instant::from_nanos((coarse - COARSE) << COARSE_SHIFT)),
        }
    }

    /// Returns the word with the deadline `at`. The deadline is never rounded down, because a policy that is asked
    /// before the time that it named would name it again, and the pass would not end. 62 bits hold nanoseconds up to
    /// 2^61, which is 73 years. A later time becomes due up to 7 ns late, and so does the end of time. The epoch
    /// itself, 0, is a nanosecond late.
    fn due_at(self, at: Instant) -> Self {
        let time = match at.as_nanos() {
            ns if ns < COARSE => ns.max(1),
            ns => (COARSE + ns.div_ceil(1 << COARSE_SHIFT)).min(u64::MAX >> STATE_BITS),
        };
        Self(time << STATE_BITS | self.0 & STATE_MASK)
    }

    const fn in_state(self, state: Self) -> Self {
        Self(self.0 & !STATE_MASK | state.0)
    }
}

impl RunState {
    /// A word without a runner and without an owed pass.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(Word::IDLE.0))
    }

    /// Becomes the runner if there is none. Leaves no mark otherwise: for a thread that may run but need not. One
    /// read-modify-write, none if refused.
    #[inline]
    #[must_use]
    pub(crate) fn try_begin(&self) -> bool {
        let mut seen = Word(self.0.load(Ordering::Relaxed));
        while matches!(seen.state(), State::Idle | State::Queued) {
            match self.exchange(seen, Word::RUNNING) {
                Ok(()) => {
                    fence_after_rmw();
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Becomes the runner if there is none; otherwise makes the runner owe another pass. One read-modify-write, none if
    /// that pass is already owed.
    #[inline]
    #[must_use]
    pub(crate) fn begin_or_owe(&self) -> bool {
        let before = self.update(|word| match word.state() {
            State::Idle | State::Queued => Some(Word::RUNNING),
            State::Running => Some(Word::RERUN),
            State::Rerun => None,
        });
        let begun = before.is_some_and(|word| word.state() != State::Running);
        if begun {
            fence_after_rmw();
        }
        begun
    }

    /// Makes a pass due now. One read-modify-write, none if one is due already.
    #[inline]
    pub(crate) fn kick(&self) -> Kick {
        let before = self.update(|word| match word.state() {
            State::Idle => Some(Word::QUEUED),
            State::Running => Some(Word::RERUN),
            State::Queued | State::Rerun => None,
        });
        match before.map(Word::state) {
            Some(State::Idle) => Kick::Queued,
            _ => Kick::Coalesced,
        }
    }

    /// Makes a pass due at `at`, unless one is due earlier. Returns true if the earliest deadline has changed, so that
    /// a thread that sleeps until the old one must be notified. One read-modify-write in that case, none otherwise.
    #[inline]
    pub(crate) fn arm(&self, at: Instant) -> bool {
        let changed = self.update(|word| match word.state() {
            State::Queued | State::Rerun => None,
            State::Idle | State::Running => {
                let armed = word.due_at(at);
                // Deadlines are the upper bits, so within one state the words compare like their deadlines.
                let sooner = word.deadline().is_none() || armed.0 < word.0;
                sooner.then_some(armed)
            }
        });
        changed.is_some()
    }

    /// For the runner, at the end of a pass. Returns whether it may leave. If false, another pass is owed and has
    /// begun. One read-modify-write; a second one if there is a pass owed, or a deadline.
    #[inline]
    #[must_use]
    pub(crate) fn finish(&self) -> bool {
        // A guess instead of a load. A load would fetch the line from the last kicker's core, and the exchange would
        // then fetch it again to write it.
        let mut seen = Word::RUNNING;
        loop {
            debug_assert!(seen.is_running(), "finish by somebody who does not run");
            let done = seen.state() == State::Running || planted::is(Planted::LosesOwedPass);
            let next = if done { seen.in_state(Word::IDLE) } else { Word::RUNNING };
            match self.exchange(seen, next) {
                Ok(()) if done => return true,
                Ok(()) => {
                    fence_after_rmw();
                    return false;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// For the runner: leaves although more work may be pending. A pass is then due, and the caller must make sure that
    /// a thread begins it. One read-modify-write.
    #[inline]
    pub(crate) fn hand_over(&self) {
        // A swap would do, but would detect a misuse too late.
        let mut seen = Word(self.0.load(Ordering::Relaxed));
        loop {
            debug_assert!(seen.is_running(), "handed over by somebody who does not run");
            match self.exchange(seen, Word::QUEUED) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether a thread should begin a pass at `now`. A hint, by one plain load: a thread that goes to sleep on
    /// false must announce that first, with a full fence in between, as for any flag.
    #[inline]
    #[must_use]
    pub(crate) fn due(&self, now: Instant) -> bool {
        let word = Word(self.0.load(Ordering::Relaxed));
        match word.state() {
            State::Queued => true,
            State::Idle => word.deadline().is_some_and(|at| at <= now),
            State::Running | State::Rerun => false,
        }
    }

    /// The time at which the next pass is due, if it is not due immediately. A hint, as [`due`](Self::due).
    #[inline]
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Word(self.0.load(Ordering::Relaxed)).deadline()
    }

    /// Returns whether there is a runner. A hint, as [`due`](Self::due).
    #[inline]
    #[must_use]
    pub(crate) fn is_running(&self) -> bool {
        Word(self.0.load(Ordering::Relaxed)).is_running()
    }

    #[inline]
    fn exchange(&self, seen: Word, next: Word) -> Result<(), Word> {
        self.0
            .compare_exchange_weak(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed)
            .map(drop)
            .map_err(Word)
    }

    /// Writes the word that `step` returns, and returns the preceding word. `None` if `step` found nothing to write, on
    /// a load that follows a full fence.
    #[inline]
    fn update(&self, step: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        let mut fenced = false;
        let mut seen = Word(self.0.load(Ordering::Relaxed));
        loop {
            match step(seen) {
                Some(next) => match self.exchange(seen, next) {
                    Ok(()) => return Some(seen),
                    Err(now) => seen = now,
                },
                None if fenced || !looks_again() => return None,
                None => {
                    fence(Ordering::SeqCst);
                    fenced = true;
                    seen = Word(self.0.load(Ordering::Relaxed));
                }
            }
        }
    }
}

impl Word {
    fn is_running(self) -> bool {
        matches!(self.state(), State::Running | State::Rerun)
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
