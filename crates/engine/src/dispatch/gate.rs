//! Gates: how a thread enters an elevator or a pump, and how kicks and timers are kept.
//!
//! A build with the feature `compare` has `compare/gate.rs` instead, which also knows locks and the kernel's kicks. The
//! two have the same methods, so the code around them is the same.

use crate::sync::{AlarmRef, Kick, RunCell, RunGuard};
use blkmq_core::Instant;
use std::ops::{Deref, DerefMut};

/// The parts from which a gate is built, besides its value.
pub(crate) struct GateShape {
    /// Raised when a holder panics.
    pub(crate) alarm: AlarmRef,
}

/// A value that one thread at a time may enter, with a word that says whether a pass is due.
pub(crate) struct Gate<T>(RunCell<T>);

/// The right to the value behind a gate. Dropping it hands the run over: a pass is then due, and another thread has to
/// begin it.
pub(crate) struct Entered<'a, T>(RunGuard<'a, T>);

impl<T> Deref for Entered<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Entered<'_, T> {
    /// Returns whether an earlier holder has panicked or closed the gate.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// Closes the gate. Afterwards it can only be [seized](Gate::seize).
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Releases the right without work left. Hands over a pass that became owed in the meantime.
    pub(crate) fn finish(self) {
        if let Some(owed) = self.0.finish() {
            owed.hand_over();
        }
    }
}

impl<T> Gate<T> {
    pub(crate) fn new(shape: &GateShape, value: T) -> Self {
        Self(RunCell::with_alarm(value, shape.alarm.clone()))
    }

    /// Takes the run; `None` if it is taken.
    #[inline]
    pub(crate) fn try_run(&self) -> Option<RunGuard<'_, T>> {
        self.0.try_enter()
    }

    /// Takes the run. If it is taken, its holder owes another pass.
    #[inline]
    pub(crate) fn run_or_owe(&self) -> Option<RunGuard<'_, T>> {
        self.0.enter_or_owe()
    }

    /// Enters, for a caller that makes no pass. `None` if the run is taken. A run does not depend on the thread.
    pub(crate) fn enter(&self, _thread: usize) -> Option<Entered<'_, T>> {
        self.0.try_enter().map(Entered)
    }

    /// Enters even if an earlier holder panicked or closed the gate. `None` if the run is taken.
    pub(crate) fn seize(&self, _thread: usize) -> Option<Entered<'_, T>> {
        self.0.seize().map(Entered)
    }

    /// Requests a pass. After `Queued` the caller must make sure that a thread begins it.
    pub(crate) fn kick(&self) -> Kick {
        self.0.kick()
    }

    /// Marks a pass as due that the caller is about to begin, or that the runner makes. If the caller loses its CPU
    /// before, another thread begins it.
    pub(crate) fn owe(&self) {
        let _ = self.0.kick();
    }

    /// Requests a pass no later than `at`.
    pub(crate) fn arm(&self, at: Instant) {
        self.0.arm(at);
    }

    /// Requests a pass at `at`. An earlier pass serves the request as well.
    pub(crate) fn run_later(&self, at: Instant) {
        self.0.arm(at);
    }

    /// Returns whether a pass is due by `now`.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        self.0.due(now)
    }

    /// Returns whether there is a runner. A hint.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// Makes an active runner owe another pass if a timer has expired; that pass serves the timer. A thread that is
    /// about to sleep calls this, because its wake-up time would otherwise be in the past as long as the runner is
    /// active.
    pub(crate) fn owe_expired(&self, now: Instant) {
        if self.0.is_running() && self.deadline().is_some_and(|at| at <= now) {
            // If the runner has finished in the meantime, the pass is due and the caller does not sleep.
            let _ = self.0.kick();
        }
    }

    /// When a pass is due without a further kick; time zero if one was requested. `None` if no pass is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.due(Instant::ZERO) { Some(Instant::ZERO) } else { self.0.deadline() }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
