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

/// The word described above. Not padded: the gate gives it a separate cache line.
pub(crate) struct RunState(AtomicU64);

/// The result of a kick.
#[must_use = "a queued kick is lost unless a thread begins a pass"]
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
            debug_assert!(seen.is_running(), "finished by a thread that does not run");
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
            debug_assert!(seen.is_running(), "handed over by a thread that does not run");
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_core::Nanos;

    const NOW: Instant = Instant::from_nanos(1_000);
    const SOON: Instant = Instant::from_nanos(2_000);
    const LATE: Instant = Instant::from_nanos(1_000_001_000);

    /// A new word in every state of the table.
    fn idle() -> RunState {
        RunState::new()
    }

    fn armed() -> RunState {
        let state = idle();
        assert!(state.arm(SOON));
        state
    }

    fn queued() -> RunState {
        let state = idle();
        assert_eq!(state.kick(), Kick::Queued);
        state
    }

    fn running() -> RunState {
        let state = idle();
        assert!(state.try_begin());
        state
    }

    fn rerun() -> RunState {
        let state = running();
        assert_eq!(state.kick(), Kick::Coalesced);
        state
    }

    fn word(state: &RunState) -> (State, Option<Instant>) {
        let word = Word(state.0.load(Ordering::Relaxed));
        (word.state(), word.deadline())
    }

    #[test]
    fn every_cell_of_the_table() {
        use State::{Idle, Queued, Rerun, Running};
        type Row = (fn() -> RunState, bool, State, bool, State, Kick, State);
        let rows: [Row; 5] = [
            (idle, true, Running, true, Running, Kick::Queued, Queued),
            (armed, true, Running, true, Running, Kick::Queued, Queued),
            (queued, true, Running, true, Running, Kick::Coalesced, Queued),
            (running, false, Running, false, Rerun, Kick::Coalesced, Rerun),
            (rerun, false, Rerun, false, Rerun, Kick::Coalesced, Rerun),
        ];
        for (make, began, after_begin, owed, after_owe, kick, after_kick) in rows {
            let state = make();
            assert_eq!((state.try_begin(), word(&state)), (began, (after_begin, None)));
            let state = make();
            assert_eq!((state.begin_or_owe(), word(&state)), (owed, (after_owe, None)));
            let state = make();
            assert_eq!((state.kick(), word(&state)), (kick, (after_kick, None)));
        }
        for (make, changed, after) in [
            (idle as fn() -> RunState, true, (Idle, Some(LATE))),
            (armed, false, (Idle, Some(SOON))),
            (queued, false, (Queued, None)),
            (running, true, (Running, Some(LATE))),
            (rerun, false, (Rerun, None)),
        ] {
            let state = make();
            assert_eq!((state.arm(LATE), word(&state)), (changed, after));
        }
        for (make, done, after) in
            [(running as fn() -> RunState, true, Idle), (rerun, false, Running)]
        {
            let state = make();
            assert_eq!((state.finish(), word(&state)), (done, (after, None)));
            let state = make();
            state.hand_over();
            assert_eq!(word(&state), (Queued, None));
        }
    }

    #[test]
    fn a_deadline_set_during_a_pass_survives_it() {
        let state = running();
        assert!(state.arm(LATE));
        assert!(state.arm(SOON), "an earlier one replaces it");
        assert!(!state.arm(LATE), "a later one does not");
        assert!(!state.arm(SOON), "nor does the same");
        assert!(state.finish());
        assert_eq!(state.deadline(), Some(SOON));
        assert!(!state.due(NOW));
        assert!(state.due(SOON));
        assert!(state.try_begin());
        assert_eq!(state.deadline(), None, "the pass satisfies it");
    }

    #[test]
    fn a_pass_that_is_owed_swallows_the_deadline() {
        let state = running();
        assert!(state.arm(SOON));
        assert_eq!(state.kick(), Kick::Coalesced);
        assert!(!state.finish());
        assert_eq!(word(&state), (State::Running, None));
    }

    #[test]
    fn deadlines_at_both_ends_of_time() {
        let state = idle();
        assert!(state.arm(Instant::MAX));
        assert!(state.deadline().is_some_and(|at| at.as_nanos() == u64::MAX - 7));
        assert!(state.arm(Instant::ZERO));
        assert!(state.due(Instant::from_nanos(1)));
    }

    /// Regression test: deadlines from 2^62 ns on became 2^62 - 1, which had passed. Each pass was due again
    /// immediately, and asked the policy again, for ever.
    #[test]
    fn no_deadline_is_too_early_at_any_uptime() {
        for exponent in [10, 32, 54, 60, 61, 62, 63] {
            let around = 1_u64 << exponent;
            for at in
                [around - 9, around - 1, around, around + 1, around + 9].map(Instant::from_nanos)
            {
                let state = idle();
                assert!(state.arm(at));
                let kept = state.deadline().expect("it was set");
                let late = kept.since(at).0;
                assert!(
                    kept >= at && late <= if exponent < 61 { 0 } else { 7 },
                    "{at:?}: {kept:?}"
                );
                assert!(!state.due(Instant::from_nanos(at.as_nanos() - 1)) && state.due(kept));
                // The earlier of two counts is kept, across the change of units too.
                assert!(!state.arm(at + Nanos(16)) || state.deadline() == Some(kept));
            }
        }
    }

    #[derive(Clone, Copy)]
    enum Call {
        Now,
        Delay,
    }

    /// All six orders of now, delay, now.
    fn orders() -> [[Call; 3]; 6] {
        let calls = [Call::Now, Call::Delay, Call::Now];
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
            .map(|order| order.map(|i| calls[i]))
    }

    fn make(state: &RunState, calls: &[Call]) -> usize {
        let mut queued = 0;
        for call in calls {
            match call {
                Call::Now => queued += usize::from(state.kick() == Kick::Queued),
                Call::Delay => {
                    state.arm(LATE);
                }
            }
        }
        queued
    }

    #[test]
    fn s16_09_three_calls_in_any_order_while_the_worker_is_stalled() {
        for order in orders() {
            // The worker has been notified, or has no work, and does not come.
            let state = idle();
            assert_eq!(make(&state, &order), 1, "exactly one caller wakes a thread");
            assert!(state.due(NOW), "a pass must begin at once");
            assert!(state.try_begin());
            assert!(state.finish());

            // The worker is in the middle of a pass.
            let state = running();
            assert_eq!(make(&state, &order), 0);
            assert!(!state.finish(), "another pass begins at once");
            assert!(state.finish());
        }
    }

    #[test]
    fn s16_09_a_delay_alone_is_due_when_it_says() {
        let state = idle();
        assert_eq!(make(&state, &[Call::Delay]), 0);
        assert!(!state.due(Instant::from_nanos(LATE.as_nanos() - 1)));
        assert!(state.due(LATE));
        assert_eq!(state.deadline(), Some(LATE));
    }

    #[test]
    fn s16_10_a_kick_during_a_pass_makes_another_pass() {
        let state = running();
        assert_eq!(state.kick(), Kick::Coalesced);
        assert!(!state.finish());
        assert!(state.is_running());
        assert!(state.finish());
        assert!(!state.is_running());
    }

    #[test]
    #[should_panic(expected = "does not run")]
    #[cfg(debug_assertions)]
    fn finishing_without_running_is_a_bug() {
        let _ = idle().finish();
    }
}

#[cfg(all(test, loom))]
mod model {
    //! R1 to R3 under every schedule and every outcome that the memory model allows. The loads of a pass are
    //! deliberately relaxed, so that only the word's own ordering can make them right.

    use super::super::{Arc, AtomicBool, AtomicU32};
    use super::*;
    use loom::thread;

    type Bool = fn(&RunState) -> bool;

    /// Runs passes until none is owed; each counts the staged work.
    fn serve(state: &RunState, staged: &[AtomicU32], drained: &AtomicU32, finish: Bool) {
        loop {
            for inbox in staged {
                let n = inbox.swap(0, Ordering::Relaxed);
                if n > 0 {
                    drained.fetch_add(n, Ordering::Relaxed);
                }
            }
            if finish(state) {
                return;
            }
        }
    }

    /// Each of `threads` submitters leaves work `times` times, and continues when another thread runs; at the end no
    /// work is left.
    fn nothing_is_left_behind(threads: usize, times: u32, finish: Bool) {
        loom::model(move || {
            let staged: Box<[_]> = (0..threads).map(|_| AtomicU32::new(0)).collect();
            let shared = Arc::new((RunState::new(), staged, AtomicU32::new(0)));
            let submit = |who: usize| {
                let shared = Arc::clone(&shared);
                move || {
                    let (state, staged, drained) = &*shared;
                    for _ in 0..times {
                        staged[who].fetch_add(1, Ordering::Relaxed);
                        if state.begin_or_owe() {
                            serve(state, staged, drained, finish);
                        }
                    }
                }
            };
            let others: Vec<_> = (1..threads).map(|who| thread::spawn(submit(who))).collect();
            submit(0)();
            others.into_iter().for_each(|other| other.join().expect("no submitter panics"));
            let drained = shared.2.load(Ordering::Relaxed);
            assert_eq!(drained, threads as u32 * times, "work was left behind");
            assert!(!shared.0.is_running());
        });
    }

    #[test]
    fn loom_nothing_is_left_behind() {
        nothing_is_left_behind(2, 2, RunState::finish);
    }

    #[test]
    fn loom_nothing_is_left_behind_by_three() {
        nothing_is_left_behind(3, 1, RunState::finish);
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_planted_finish_that_stores() {
        nothing_is_left_behind(2, 1, |state| {
            let word = Word(state.0.load(Ordering::Acquire));
            let done = word.state() == State::Running;
            let next = if done { Word::IDLE } else { Word::RUNNING };
            state.0.store(next.0, Ordering::SeqCst);
            done
        });
    }

    /// A runner hands over after each pass, and the thread responsible for the next pass begins it. All calls of the
    /// table together.
    #[test]
    fn loom_a_pump_and_two_kickers() {
        loom::model(|| {
            let shared =
                Arc::new((RunState::new(), [AtomicBool::new(false), AtomicBool::new(false)]));
            let kickers: Vec<_> = (0..2)
                .map(|who| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (state, work) = &*shared;
                        work[who].store(true, Ordering::Relaxed);
                        match who {
                            0 => state.kick() == Kick::Queued,
                            _ => state.arm(Instant::from_nanos(5)),
                        }
                    })
                })
                .collect();
            let (state, work) = &*shared;
            let mut seen = [false; 2];
            let mut look = || (0..2).for_each(|who| seen[who] |= work[who].load(Ordering::Relaxed));
            if state.try_begin() {
                look();
                state.hand_over();
            }
            for kicker in kickers {
                let _a_thread_must_come = kicker.join().expect("no kicker panics");
            }
            if state.due(Instant::from_nanos(5)) {
                assert!(state.try_begin());
                look();
                assert!(state.finish());
            }
            assert_eq!(seen, [true; 2], "a thread's work was not looked at by the requested time");
        });
    }

    /// A word that another thread has queued, and one worker that begins. If a thread publishes and then kicks, that
    /// pass sees the value, or a pass is due afterwards.
    fn a_kick_is_never_dropped_too_late(
        kick: fn(&RunState) -> Kick,
        begin: Bool,
        finish: Bool,
        passes: u32,
    ) {
        loom::model(move || {
            let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
            assert_eq!(shared.0.kick(), Kick::Queued);
            let worker = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (state, work) = &*shared;
                    assert!(begin(state), "no other thread begins");
                    for _ in 1..passes {
                        assert_eq!(state.kick(), Kick::Coalesced);
                        assert!(!finish(state));
                    }
                    let seen = work.load(Ordering::Relaxed);
                    (seen, !finish(state))
                })
            };
            let (state, work) = &*shared;
            work.store(true, Ordering::Relaxed);
            let answer = kick(state);
            let (seen, owed) = worker.join().expect("the worker does not panic");
            let due = state.due(Instant::ZERO);
            assert_eq!(answer == Kick::Queued, due, "the one who queued it is the one who knows");
            assert!(seen || owed || due, "a kick was dropped after the pass had begun");
        });
    }

    #[test]
    fn loom_a_kick_is_never_dropped_too_late() {
        a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, RunState::finish, 1);
        a_kick_is_never_dropped_too_late(
            RunState::kick,
            RunState::begin_or_owe,
            RunState::finish,
            1,
        );
    }

    #[test]
    fn loom_a_kick_is_never_dropped_too_late_for_a_second_pass() {
        a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, RunState::finish, 2);
    }

    #[test]
    #[should_panic(expected = "dropped after the pass had begun")]
    fn loom_planted_kick_without_a_fence() {
        let kick = |state: &RunState| {
            if Word(state.0.load(Ordering::Relaxed)).state() == State::Queued {
                return Kick::Coalesced;
            }
            state.kick()
        };
        a_kick_is_never_dropped_too_late(kick, RunState::try_begin, RunState::finish, 1);
    }

    #[test]
    #[should_panic(expected = "dropped after the pass had begun")]
    fn loom_planted_begin_without_a_fence() {
        let begin = |state: &RunState| {
            let next = |_| Some(Word::RUNNING.0);
            state.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
        };
        a_kick_is_never_dropped_too_late(RunState::kick, begin, RunState::finish, 1);
    }

    #[test]
    #[should_panic(expected = "dropped after the pass had begun")]
    fn loom_planted_rerun_without_a_fence() {
        let finish = |state: &RunState| {
            let mut done = false;
            let next = |word| {
                let word = Word(word);
                done = word.state() == State::Running;
                Some(if done { word.in_state(Word::IDLE).0 } else { Word::RUNNING.0 })
            };
            state
                .0
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next)
                .expect("it always goes on");
            done
        };
        a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, finish, 2);
    }

    /// R2: a value is published and a pass requested no later than 20, while another pass, armed for 10, takes place.
    fn an_armed_pass_comes_no_later(arm: fn(&RunState, Instant) -> bool, finish: Bool) {
        const EARLY: Instant = Instant::from_nanos(10);
        const LATE: Instant = Instant::from_nanos(20);
        loom::model(move || {
            let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
            assert!(shared.0.arm(EARLY));
            let worker = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (state, work) = &*shared;
                    assert!(state.try_begin(), "no other thread begins");
                    let seen = work.load(Ordering::Relaxed);
                    assert!(finish(state), "no thread kicks");
                    seen
                })
            };
            let (state, work) = &*shared;
            work.store(true, Ordering::Relaxed);
            arm(state, LATE);
            let seen = worker.join().expect("the worker does not panic");
            assert!(seen || state.due(LATE), "no thread will come by the deadline");
            assert_eq!(state.due(LATE), state.deadline().is_some_and(|at| at <= LATE));
        });
    }

    #[test]
    fn loom_an_armed_pass_comes_no_later() {
        an_armed_pass_comes_no_later(RunState::arm, RunState::finish);
    }

    #[test]
    #[should_panic(expected = "no thread will come")]
    fn loom_planted_arm_without_a_fence() {
        let arm = |state: &RunState, at| {
            let word = Word(state.0.load(Ordering::Relaxed));
            let earlier = word.state() == State::Idle && word.deadline().is_some_and(|e| e <= at);
            !earlier && state.arm(at)
        };
        an_armed_pass_comes_no_later(arm, RunState::finish);
    }

    #[test]
    #[should_panic(expected = "no thread will come")]
    fn loom_planted_finish_that_forgets_the_deadline() {
        let finish = |state: &RunState| {
            state.0.swap(Word::IDLE.0, Ordering::AcqRel);
            true
        };
        an_armed_pass_comes_no_later(RunState::arm, finish);
    }

    /// A runner that hands over leaves the pass to another thread, which sees the runner's writes.
    fn a_hand_over_is_taken_up(hand_over: fn(&RunState)) {
        loom::model(move || {
            let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
            assert!(shared.0.try_begin());
            let kicker = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (state, work) = &*shared;
                    work.store(true, Ordering::Relaxed);
                    state.begin_or_owe()
                })
            };
            let (state, work) = &*shared;
            hand_over(state);
            let kicker_runs = kicker.join().expect("the kicker does not panic");
            if !kicker_runs {
                assert!(state.try_begin(), "a pass was owed, and no thread learns of it");
                assert!(work.load(Ordering::Relaxed));
                assert!(state.finish());
            }
        });
    }

    #[test]
    fn loom_a_hand_over_is_taken_up() {
        a_hand_over_is_taken_up(RunState::hand_over);
    }

    #[test]
    #[should_panic(expected = "no thread learns of it")]
    fn loom_planted_hand_over_that_forgets_who_came_meanwhile() {
        a_hand_over_is_taken_up(|state| {
            // Intends to write QUEUED only if no kick came in the meantime, but forgets that RERUN is also running.
            let _ = state.exchange(Word::RUNNING, Word::QUEUED);
        });
    }
}
