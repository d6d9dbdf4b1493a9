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

use super::poison::{AlarmRef, Poison, Unwinding};
use super::{Kick, RunState, UnsafeCell};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

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
#[must_use = "dropping the guard leaves a pass that somebody has to begin"]
pub(crate) struct RunGuard<'a, T> {
    cell: &'a RunCell<T>,
    unwinding: Unwinding,
    /// As `&mut T`: the guard is `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

/// A run that is kept for a while without borrowing its cell. Its owner returns it by [`RunCell::attach`].
#[must_use = "nobody else can run until it is given back"]
#[cfg(feature = "compare")]
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
    #[cfg(feature = "compare")]
    pub(crate) fn attach(&self, run: Detached) -> RunGuard<'_, T> {
        let Detached { cell, unwinding } = run;
        assert!(cell == self.name(), "a run of another cell");
        // There is no guard now: detaching consumed the guard, and this call consumes the detached run.
        RunGuard { cell: self, unwinding, _value: PhantomData }
    }

    #[cfg(feature = "compare")]
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
    #[cfg(feature = "compare")]
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

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
