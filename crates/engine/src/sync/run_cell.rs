//! A value that only the runner touches: [`RunState`] beside the value that it protects.
//!
//! Entering never waits. A caller that finds a runner leaves its work where the runner will find it, marks that a pass
//! is owed, and continues.
//!
//! *Invariant: while the state is `RUNNING` or `RERUN` there is exactly one [`RunGuard`] or [`Detached`], and the
//! value is reached only through the former.* A guard comes from a successful `begin`, which does not succeed a
//! second time before the guard's `finish` or `hand_over`; both consume the guard. `finish` and `hand_over` release,
//! `begin` acquires, so successive guards see each other's changes.
//!
//! Threads that kick write the state all the time, so it has a separate cache line; the value begins another one.
//!
//! A cell remembers that a thread panicked while it changed the value, so that no other thread trusts the value, and
//! raises an [`Alarm`], so that no thread continues to wait for it. [`Orphans`] are the tokens on the stack of that
//! thread.

use super::{AtomicBool, Kick, Ordering, RunState, UnsafeCell};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
// `std` types under the model checkers too: theirs cannot hold a trait object or be in a static. The reference count
// orders nothing, and the mutex only a list.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value with a runner.
pub(crate) struct RunCell<T> {
    state: CachePadded<RunState>,
    held: CachePadded<Held<T>>,
}

struct Held<T> {
    poison: Poison,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one guard at a time (module invariant), so sharing the cell amounts to
// sending the value from runner to runner.
unsafe impl<T: Send> Sync for RunCell<T> {}

/// The run. Ends with [`finish`](Self::finish) or [`hand_over`](Self::hand_over); dropping it hands over.
#[must_use = "dropping the guard leaves a pass that a thread has to begin"]
pub(crate) struct RunGuard<'a, T> {
    cell: &'a RunCell<T>,
    unwinding: Unwinding,
    /// As `&mut T`: the guard is `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

/// A run that is kept for a while without borrowing its cell. Its owner returns it by [`RunCell::attach`].
#[must_use = "no other thread can run until it is given back"]
pub(crate) struct Detached {
    /// The address of the cell, to identify it; never dereferenced.
    cell: usize,
    unwinding: Unwinding,
}

impl<T> RunCell<T> {
    /// A cell without a runner.
    #[cfg(test)]
    pub(crate) fn new(value: T) -> Self {
        Self::with_alarm(value, None)
    }

    /// A cell without a runner. `alarm` is raised when a runner panics.
    pub(crate) fn with_alarm(value: T, alarm: AlarmRef) -> Self {
        let held = Held { poison: Poison::new(alarm), value: UnsafeCell::new(value) };
        Self { state: CachePadded::new(RunState::new()), held: CachePadded::new(held) }
    }

    /// Takes the run, if it is free and no earlier runner panicked. Leaves no mark otherwise.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<RunGuard<'_, T>> {
        if self.state.try_begin() { self.guard() } else { None }
    }

    /// Like [`try_enter`](Self::try_enter), but if the run is taken, its holder owes another pass.
    #[inline]
    pub(crate) fn enter_or_owe(&self) -> Option<RunGuard<'_, T>> {
        if self.state.begin_or_owe() { self.guard() } else { None }
    }

    /// Takes the run, if it is free, even if an earlier runner panicked.
    pub(crate) fn seize(&self) -> Option<RunGuard<'_, T>> {
        let unwinding = self.held.poison.ignore();
        let guard = || RunGuard { cell: self, unwinding, _value: PhantomData };
        self.state.try_begin().then(guard)
    }

    /// The guard of a run that was detached from this cell.
    ///
    /// # Panics
    /// If it was detached from another cell.
    #[allow(clippy::needless_pass_by_value, reason = "the detached run is given up")]
    pub(crate) fn attach(&self, run: Detached) -> RunGuard<'_, T> {
        let Detached { cell, unwinding } = run;
        assert!(cell == self.name(), "a run of another cell");
        // There is no guard now: detaching consumed the guard, and this call consumes the detached run.
        RunGuard { cell: self, unwinding, _value: PhantomData }
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// See [`RunState::kick`].
    #[inline]
    pub(crate) fn kick(&self) -> Kick {
        self.state.kick()
    }

    /// See [`RunState::arm`].
    #[inline]
    pub(crate) fn arm(&self, at: Instant) -> bool {
        self.state.arm(at)
    }

    /// See [`RunState::due`].
    #[inline]
    #[must_use]
    pub(crate) fn due(&self, now: Instant) -> bool {
        self.state.due(now)
    }

    /// See [`RunState::deadline`].
    #[inline]
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.state.deadline()
    }

    /// See [`RunState::is_running`].
    #[inline]
    #[must_use]
    pub(crate) fn is_running(&self) -> bool {
        self.state.is_running()
    }

    /// The value, without entering: `&mut self` shows that there is no runner.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes guards, which borrow the cell.
        self.held.value.with_mut(|value| unsafe { &mut *value })
    }

    /// Must be called once after each successful begin.
    #[inline]
    fn guard(&self) -> Option<RunGuard<'_, T>> {
        match self.held.poison.check() {
            Ok(unwinding) => Some(RunGuard { cell: self, unwinding, _value: PhantomData }),
            Err(_) => {
                self.state.hand_over();
                None
            }
        }
    }
}

impl<T> RunGuard<'_, T> {
    /// Returns whether an earlier runner has panicked. True is possible only for the guard of a
    /// [seized](RunCell::seize) run.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.cell.held.poison.is_poisoned()
    }

    /// Closes the cell: afterwards the run can only be [seized](RunCell::seize).
    pub(crate) fn close(&self) {
        self.cell.held.poison.close();
    }

    /// Ends the pass. `None` if that is all; otherwise another pass is owed and has begun.
    #[inline]
    #[must_use = "if another pass is owed, it has to take place"]
    pub(crate) fn finish(self) -> Option<Self> {
        if self.cell.state.finish() {
            // The state is no longer ours to hand over.
            std::mem::forget(self);
            return None;
        }
        Some(self)
    }

    /// Keeps the run without borrowing the cell, which must not move until the run is attached again.
    pub(crate) fn detach(self) -> Detached {
        let detached = Detached { cell: self.cell.name(), unwinding: self.unwinding };
        std::mem::forget(self);
        detached
    }

    /// Leaves although more work may be pending: a pass is then due, and the caller must make sure that a thread begins
    /// it.
    #[inline]
    pub(crate) fn hand_over(self) {
        drop(self);
    }
}

impl<T> Drop for RunGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let poisoned = self.cell.held.poison.note(self.unwinding);
        self.cell.state.hand_over();
        if poisoned {
            self.cell.held.poison.raise();
        }
    }
}

impl<T> Deref for RunGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard (module invariant), and it is borrowed, so no `&mut` exists.
        self.cell.held.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for RunGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard (module invariant), and it is borrowed mutably.
        self.cell.held.value.with_mut(|value| unsafe { &mut *value })
    }
}

/// A shared alarm; `None` for a value without one.
pub(crate) type AlarmRef = Option<Arc<dyn Alarm>>;

/// The reaction to a poisoned value.
pub(crate) trait Alarm: Send + Sync {
    /// Called when the value has been released, or is about to be, on a thread that unwinds. Must not panic.
    fn raise(&self);
}

/// | state | `note`, unwinding | `note`, as usual | `check` |
/// |---|---|---|---|
/// | clean | poisoned, true: *you* raise the alarm | clean | continues |
/// | poisoned | poisoned | poisoned | refuses |
///
/// Relaxed throughout: the word lies beside the value and is only used by the holder of the value, so the path that
/// orders accesses to the value also orders these.
pub(crate) struct Poison {
    here: AtomicBool,
    alarm: AlarmRef,
}

/// Whether the thread was already unwinding when it took the value. If true, this value is not the cause.
#[derive(Clone, Copy)]
pub(crate) struct Unwinding(bool);

impl Poison {
    pub(crate) fn new(alarm: AlarmRef) -> Self {
        Self { here: AtomicBool::new(false), alarm }
    }

    /// Must be called when the value is taken; the result goes to [`note`](Self::note).
    ///
    /// # Errors
    /// If a thread panicked while it held the value.
    #[inline]
    pub(crate) fn check(&self) -> Result<Unwinding, Poisoned> {
        if self.here.load(Ordering::Relaxed) {
            return Err(Poisoned);
        }
        Ok(self.ignore())
    }

    /// Like [`check`](Self::check), for a thread that takes the value whatever its state.
    #[inline]
    pub(crate) fn ignore(&self) -> Unwinding {
        Unwinding(std::thread::panicking())
    }

    /// Returns whether the value is poisoned. For its holder.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.here.load(Ordering::Relaxed)
    }

    /// Must be called before the value is released. Returns whether the caller has to [`raise`](Self::raise) the alarm.
    #[inline]
    #[must_use = "if it says true, no other thread raises the alarm"]
    pub(crate) fn note(&self, before: Unwinding) -> bool {
        let panics = !before.0 && std::thread::panicking();
        if panics {
            self.here.store(true, Ordering::Relaxed);
        }
        panics
    }

    /// Keeps every other thread out, without an alarm. For the holder of the value.
    pub(crate) fn close(&self) {
        self.here.store(true, Ordering::Relaxed);
    }

    /// Raises the alarm. Best after the value has been released.
    #[cold]
    pub(crate) fn raise(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.raise();
        }
    }
}

/// The value cannot be trusted.
#[derive(Debug)]
pub(crate) struct Poisoned;

/// Tokens that were dropped instead of being consumed: pairs of a table's number and an index.
///
/// Not on the path of an I/O: a stack that unwinds leaves tokens here, and so does a device that drops one. A queue
/// takes its own when it has failed, and when it ends. Entries of dropped tables remain, a few bytes each.
pub(crate) struct Orphans(Mutex<Vec<(NonZeroU32, u32)>>);

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn list(&self) -> MutexGuard<'_, Vec<(NonZeroU32, u32)>> {
        // A push or a removal cannot panic: running out of memory ends the process.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, table: NonZeroU32, index: u32) {
        self.list().push((table, index));
    }

    /// Takes out all indices of `table`.
    pub(crate) fn take(&self, table: NonZeroU32) -> Vec<u32> {
        let mut list = self.list();
        let mut taken = Vec::new();
        list.retain(|(of, index)| {
            let mine = *of == table;
            if mine {
                taken.push(*index);
            }
            !mine
        });
        taken
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn the_state_and_the_value_are_on_different_lines() {
        let cell = RunCell::new(0u64);
        let state = std::ptr::from_ref(&*cell.state).addr();
        let value = cell.held.value.with(<*const u64>::addr);
        assert!(state.abs_diff(value) >= 64);
    }

    #[test]
    fn one_runner_at_a_time_and_the_other_is_owed_a_pass() {
        let mut cell = RunCell::new(0);
        let mut run = cell.try_enter().expect("no thread runs");
        assert!(cell.try_enter().is_none());
        *run += 1;
        assert!(run.finish().is_none(), "try_enter leaves no mark");

        let run = cell.enter_or_owe().expect("no thread runs");
        assert!(cell.enter_or_owe().is_none());
        let mut run = run.finish().expect("another pass is owed");
        *run += 1;
        assert!(run.finish().is_none());
        assert!(!cell.is_running());
        assert_eq!(*cell.get_mut(), 2);
    }

    #[test]
    fn handing_over_and_dropping_leave_a_pass_that_is_due() {
        let cell = RunCell::new(());
        cell.try_enter().expect("no thread runs").hand_over();
        assert!(cell.due(Instant::ZERO));
        assert_eq!(cell.kick(), Kick::Coalesced);
        drop(cell.try_enter().expect("no thread runs"));
        assert!(cell.due(Instant::ZERO));
        assert!(cell.try_enter().expect("no thread runs").finish().is_none());
        assert!(!cell.due(Instant::MAX));
        assert!(cell.arm(Instant::from_nanos(5)));
        assert_eq!(cell.deadline(), Some(Instant::from_nanos(5)));
    }

    #[test]
    fn after_a_panic_in_a_pass_the_alarm_is_raised_and_the_run_can_only_be_seized() {
        struct Raised(crate::sync::AtomicU32);
        impl Alarm for Raised {
            fn raise(&self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let raised = Arc::new(Raised(crate::sync::AtomicU32::new(0)));
        let cell = RunCell::with_alarm(0, Some(raised.clone()));
        let pass = catch_unwind(AssertUnwindSafe(|| {
            let mut run = cell.try_enter().expect("the run is free");
            *run = 1;
            panic!("in the middle of it");
        }));
        assert!(pass.is_err());
        for _ in 0..2 {
            assert!(cell.enter_or_owe().is_none() && cell.try_enter().is_none());
            let run = cell.seize().expect("the run is free");
            assert!(run.is_poisoned() && *run == 1);
        }
        assert_eq!(raised.0.load(Ordering::Relaxed), 1);
    }

    /// Real threads, more than CPUs: no staged work is lost, and no two passes overlap.
    #[test]
    fn threads_combine_without_losing_anything() {
        const THREADS: u64 = 4;
        const EACH: u64 = if cfg!(miri) { 8 } else { 20_000 };
        let cell = Arc::new(RunCell::new(0u64));
        let staged: Arc<Vec<_>> =
            Arc::new((0..THREADS).map(|_| crate::sync::AtomicU64::new(0)).collect());
        let threads: Vec<_> = (0..THREADS as usize)
            .map(|who| {
                let (cell, staged) = (Arc::clone(&cell), Arc::clone(&staged));
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        staged[who].fetch_add(1, Ordering::Relaxed);
                        let mut run = cell.enter_or_owe();
                        while let Some(mut pass) = run {
                            for inbox in &*staged {
                                *pass += inbox.swap(0, Ordering::Relaxed);
                            }
                            run = pass.finish();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        let mut cell = Arc::into_inner(cell).expect("all threads are gone");
        assert_eq!(*cell.get_mut(), THREADS * EACH);
    }
}

/// No two threads touch the value at the same time, and every runner sees the writes of the last one: loom watches the
/// `UnsafeCell`.
#[cfg(all(test, loom))]
mod model {
    use super::super::{Arc, AtomicU32, Ordering};
    use super::*;
    use loom::thread;

    type Shared = (RunCell<u32>, AtomicU32);

    fn submit(shared: &Shared, enter: fn(&RunCell<u32>) -> Option<RunGuard<'_, u32>>) {
        let (cell, staged) = shared;
        staged.fetch_add(1, Ordering::Relaxed);
        let mut run = enter(cell);
        while let Some(mut pass) = run {
            *pass += staged.swap(0, Ordering::Relaxed);
            run = pass.finish();
        }
    }

    fn runs_do_not_overlap(enter: fn(&RunCell<u32>) -> Option<RunGuard<'_, u32>>) {
        loom::model(move || {
            let shared = Arc::new((RunCell::new(0), AtomicU32::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || submit(&shared, enter))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no submitter panics"));
            assert_eq!(*shared.0.try_enter().expect("no thread runs"), 2, "work was left behind");
        });
    }

    #[test]
    fn loom_runs_do_not_overlap() {
        runs_do_not_overlap(RunCell::enter_or_owe);
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_planted_refusal_without_a_mark() {
        runs_do_not_overlap(RunCell::try_enter);
    }

    /// Checks first and begins afterwards.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_entry_without_a_compare() {
        runs_do_not_overlap(|cell| {
            if cell.is_running() {
                return cell.enter_or_owe();
            }
            let _ = cell.state.begin_or_owe();
            cell.guard()
        });
    }

    /// The writes of a run that was handed over are seen by the next runner.
    #[test]
    fn loom_a_hand_over_publishes_the_value() {
        loom::model(|| {
            let cell = Arc::new(RunCell::new(0));
            let first = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || {
                    let mut run = cell.try_enter().expect("the other waits for this one");
                    *run = 7;
                    run.hand_over();
                })
            };
            while !cell.due(Instant::ZERO) {
                thread::yield_now();
            }
            let run = cell.try_enter().expect("it was handed over");
            assert_eq!(*run, 7);
            assert!(run.finish().is_none());
            first.join().expect("the first runner does not panic");
        });
    }
}
