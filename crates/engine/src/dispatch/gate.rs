//! Gates: how a thread enters an elevator or a pump, by combining or by a lock as in the kernel, and how kicks are kept.

use crate::shared::modes::{Access, COMPARE, EffectiveModes, KickMode};
use crate::sync::{
    AlarmRef, DelayedWork, Detached, DetachedLock, Kick, LockCell, LockGuard, LockKind, Ordering,
    RunCell, RunGuard, RunState, fence,
};
use blkmq_core::Instant;
use std::ops::{Deref, DerefMut};

/// The parts from which a gate is built, besides its value.
pub(crate) struct GateShape {
    pub(crate) modes: EffectiveModes,
    /// Callers of [`lock`](Gate::lock) identify themselves with numbers below this.
    pub(crate) threads: usize,
    /// Raised when a holder panics.
    pub(crate) alarm: AlarmRef,
}

/// A value behind one kind of entrance, with a word that says whether a pass is due.
pub(crate) enum Gate<T> {
    Run(RunCell<T>),
    /// Kicks go to a work item like the kernel's; the word of the run still keeps the run and the timers.
    RunWork(RunCell<T>, DelayedWork),
    /// A lock has no word for kicks and timers, so the gate keeps a separate one.
    Lock(LockCell<T>, RunState),
    /// A lock, with a work item like the kernel's.
    LockWork(LockCell<T>, RunState, DelayedWork),
}

/// The right to the value behind a gate, by either kind of entrance.
pub(crate) enum Entered<'a, T> {
    /// Dropping the guard hands the run over: a pass is then due, and another thread has to begin it.
    Run(RunGuard<'a, T>),
    Lock(LockGuard<'a, T>),
}

/// A right like [`Entered`], but kept for a while without borrowing the gate.
pub(crate) enum Kept {
    Run(Detached),
    Lock(DetachedLock),
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            Self::Run(guard) => guard,
            Self::Lock(guard) => guard,
        }
    }
}

impl<T> Entered<'_, T> {
    /// Returns whether an earlier holder has panicked or closed the gate.
    pub(crate) fn is_poisoned(&self) -> bool {
        match self {
            Self::Run(guard) => guard.is_poisoned(),
            Self::Lock(guard) => guard.is_poisoned(),
        }
    }

    /// Closes the gate. Afterwards it can only be [seized](Gate::seize).
    pub(crate) fn close(&self) {
        match self {
            Self::Run(guard) => guard.close(),
            Self::Lock(guard) => guard.close(),
        }
    }

    /// Releases the right without work left. Hands over a pass that became owed in the meantime.
    pub(crate) fn finish(self) {
        if let Self::Run(guard) = self
            && let Some(owed) = guard.finish()
        {
            owed.hand_over();
        }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Run(guard) => guard,
            Self::Lock(guard) => guard,
        }
    }
}

impl<T> Gate<T> {
    pub(crate) fn new(shape: &GateShape, value: T) -> Self {
        let GateShape { modes, threads: waiters, ref alarm } = *shape;
        let alarm = alarm.clone();
        if !COMPARE {
            return Self::Run(RunCell::with_alarm(value, alarm));
        }
        let work = match modes.kick {
            KickMode::Coalesced => None,
            KickMode::Always => Some(DelayedWork::always()),
            KickMode::Flag => Some(DelayedWork::with_flag()),
        };
        let kind = match modes.access {
            Access::Combining => None,
            Access::Spin | Access::Serialised => Some(LockKind::Spin),
            Access::Mutex => Some(LockKind::Mutex),
        };
        match (kind, work) {
            (None, None) => Self::Run(RunCell::with_alarm(value, alarm)),
            (None, Some(work)) => Self::RunWork(RunCell::with_alarm(value, alarm), work),
            (Some(kind), None) => {
                Self::Lock(LockCell::with_alarm(kind, waiters, value, alarm), RunState::new())
            }
            (Some(kind), Some(work)) => {
                let cell = LockCell::with_alarm(kind, waiters, value, alarm);
                Self::LockWork(cell, RunState::new(), work)
            }
        }
    }

    /// Enters by combining: the run, if it is free.
    #[inline]
    pub(crate) fn try_run(&self) -> Option<RunGuard<'_, T>> {
        match self {
            Self::Run(cell) => cell.try_enter(),
            _ => self.begun(RunCell::try_enter),
        }
    }

    /// Enters by combining. If the run is taken, its holder owes another pass.
    #[inline]
    pub(crate) fn run_or_owe(&self) -> Option<RunGuard<'_, T>> {
        match self {
            Self::Run(cell) => cell.enter_or_owe(),
            _ => self.begun(RunCell::enter_or_owe),
        }
    }

    /// Takes the run of a gate with a work item, and clears the item: the pass that begins here serves its kicks.
    #[cold]
    fn begun<'a>(
        &'a self,
        enter: impl FnOnce(&'a RunCell<T>) -> Option<RunGuard<'a, T>>,
    ) -> Option<RunGuard<'a, T>> {
        let Self::RunWork(cell, work) = self else {
            unreachable!("a queue is driven by the access it was built with")
        };
        let guard = enter(cell)?;
        work.begin();
        Some(guard)
    }

    fn cell(&self) -> &LockCell<T> {
        match self {
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell,
            Self::Run(_) | Self::RunWork(..) => {
                unreachable!("a queue is driven by the access it was built with")
            }
        }
    }

    /// Enters by the lock, waiting for it. `None` if an earlier holder panicked.
    #[inline]
    pub(crate) fn lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        self.cell().enter(who)
    }

    /// Enters by the lock; `None` if it is taken.
    #[inline]
    pub(crate) fn try_lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        self.cell().try_enter(who)
    }

    /// Enters by either kind, for a caller that makes no pass. Waits for a lock; `None` if a run is taken.
    pub(crate) fn enter(&self, who: usize) -> Option<Entered<'_, T>> {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.try_enter().map(Entered::Run),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.enter(who).map(Entered::Lock),
        }
    }

    /// Enters by either kind, even if an earlier holder panicked or closed the gate. `None` if the gate is taken.
    pub(crate) fn seize(&self, who: usize) -> Option<Entered<'_, T>> {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.seize().map(Entered::Run),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.seize(who).map(Entered::Lock),
        }
    }

    /// Keeps the right without the borrow. If it cannot be kept, releases it and returns `None`.
    pub(crate) fn keep(&self, entered: Entered<'_, T>) -> Option<Kept> {
        match entered {
            Entered::Run(guard) => Some(Kept::Run(guard.detach())),
            Entered::Lock(guard) => self.cell().detach(guard).map(Kept::Lock),
        }
    }

    /// Turns a kept right into a guard again.
    pub(crate) fn resume(&self, kept: Kept) -> Entered<'_, T> {
        match (self, kept) {
            (Self::Run(cell) | Self::RunWork(cell, _), Kept::Run(run)) => {
                Entered::Run(cell.attach(run))
            }
            (_, Kept::Lock(lock)) => Entered::Lock(self.cell().attach(lock)),
            _ => unreachable!("what is kept was entered here"),
        }
    }

    fn state(&self) -> Option<&RunState> {
        match self {
            Self::Lock(_, state) | Self::LockWork(_, state, _) if COMPARE => Some(state),
            _ => None,
        }
    }

    /// The work item like the kernel's; `None` if kicks do not go to one.
    #[inline]
    fn work(&self) -> Option<&DelayedWork> {
        match self {
            Self::RunWork(_, work) | Self::LockWork(.., work) if COMPARE => Some(work),
            _ => None,
        }
    }

    /// Requests a pass. After `Queued` the caller must make sure that a thread begins it.
    pub(crate) fn kick(&self) -> Kick {
        match self {
            Self::Run(cell) => cell.kick(),
            Self::Lock(_, due) => due.kick(),
            Self::RunWork(_, work) | Self::LockWork(.., work) => work.run_now(),
        }
    }

    /// Marks a pass as due that the caller is about to begin, or that the runner makes. If the caller loses its CPU
    /// before, another thread begins it. A work item like the kernel's has no such mark, because it would count as a
    /// kick there.
    pub(crate) fn owe(&self) {
        if let Self::Run(cell) = self {
            let _ = cell.kick();
        }
    }

    /// Requests a pass no later than `at`.
    pub(crate) fn arm(&self, at: Instant) {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.arm(at),
            Self::Lock(_, due) | Self::LockWork(_, due, _) => due.arm(at),
        };
    }

    /// Requests a pass at `at`, as the kernel requests a delayed run of a hardware queue. With a work item like the
    /// kernel's, this postpones a pass that is due earlier.
    pub(crate) fn run_later(&self, at: Instant) {
        match self.work() {
            Some(work) => work.run_later(at),
            None => self.arm(at),
        }
    }

    /// Returns whether a pass is due by `now`.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        match self {
            Self::Run(cell) => cell.due(now),
            _ => self.due_otherwise(now),
        }
    }

    #[inline(never)]
    fn due_otherwise(&self, now: Instant) -> bool {
        match self {
            Self::Run(cell) => cell.due(now),
            Self::Lock(_, due) => due.due(now),
            Self::RunWork(cell, work) => {
                // A runner checks this after it has finished, and a thread that finds a runner active checks it after
                // its kick. With a fence in between on both sides, one of the two sees the other.
                fence(Ordering::SeqCst);
                cell.due(now) || work.due(now) && !cell.is_running()
            }
            Self::LockWork(_, due, work) => due.due(now) || work.due(now),
        }
    }

    /// Returns whether there is a runner. A hint.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.is_running(),
            // A thread that finds a lock taken waits for it.
            Self::Lock(..) | Self::LockWork(..) => false,
        }
    }

    /// Makes an active runner owe another pass if a timer has expired; that pass serves the timer. A thread that is
    /// about to sleep calls this, because its wake-up time would otherwise be in the past as long as the runner is
    /// active.
    pub(crate) fn owe_expired(&self, now: Instant) {
        let (Self::Run(cell) | Self::RunWork(cell, _)) = self else { return };
        if cell.is_running() && cell.deadline().is_some_and(|at| at <= now) {
            // If the runner has finished in the meantime, the pass is due and the caller does not sleep.
            let _ = cell.kick();
        }
    }

    /// Returns whether a pass was postponed after a thread had been woken for it. True only with a work item like the
    /// kernel's.
    pub(crate) fn is_put_off(&self, now: Instant) -> bool {
        self.work().is_some() && !self.due(now)
    }

    /// The time at which a pass is due without a further kick; zero if one was requested. `None` if no pass is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.due(Instant::ZERO) {
            return Some(Instant::ZERO);
        }
        let (timer, work) = match self {
            Self::Run(cell) => (cell.deadline(), None),
            // The active runner serves the remaining work.
            Self::RunWork(cell, _) if cell.is_running() => (cell.deadline(), None),
            Self::RunWork(cell, work) => (cell.deadline(), work.deadline()),
            Self::Lock(_, due) => (due.deadline(), None),
            Self::LockWork(_, due, work) => (due.deadline(), work.deadline()),
        };
        timer.into_iter().chain(work).min()
    }

    /// For gates with a lock: clears the kicks and timers that are due, which the caller is about to serve.
    pub(crate) fn take_due(&self) {
        if let Some(due) = self.state()
            && due.try_begin()
        {
            // The caller also serves a kick that came in the meantime.
            while !due.finish() {}
        }
        if let Some(work) = self.work() {
            work.begin();
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.get_mut(),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.get_mut(),
        }
    }
}
